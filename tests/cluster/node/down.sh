#!/usr/bin/env bash
# down.sh: end what up.sh started, by process id, and remove every trace of the node.
set -uo pipefail
. "$(dirname "$0")/node.sh"
for name in kubelet dns proxy controllers scheduler apiserver etcd; do end $name; done

# The pods' own processes: whatever still lives in the node's and the pods' network namespaces, containerd apart.
containerd=$(cat $RUN/containerd.pid 2>/dev/null)
inodes=$(stat -c 'net:[%i]' /run/netns/$NS $RUN/containerd/*/netns/* 2>/dev/null)
[ -z "$inodes" ] || for process in /proc/[0-9]*; do
  pid=${process#/proc/}
  [ "$pid" != "$containerd" ] && [ "$pid" != $$ ] && grep -qxF "$(readlink "$process/ns/net")" <<<"$inodes" && kill -9 "$pid" 2>/dev/null
done
sleep 0.3
end containerd

awk -v below="^($RUN|$DATA)/" '$2 ~ below { print $2 }' /proc/mounts | sort -r | while read -r mount; do umount -l "$mount"; done
ip netns del $NS 2>/dev/null
for root in $(cgroup_roots); do [ ! -d "$root/$NS" ] || find "$root/$NS" -depth -type d -exec rmdir {} + 2>/dev/null; done

# Traces in folders that components choose themselves; a folder goes if nothing else is in it. A socket that nobody
# listens on is a trace of a process that is gone, whosever it was.
for sandbox in $DATA/containerd/io.containerd.grpc.v1.cri/sandboxes/*; do
  rm -f /var/lib/cni/results/*-"$(basename "$sandbox")"-*
done
[ ! -d /var/log/containers ] || find /var/log/containers -type l -lname "$DATA/*" -delete
python3 - /var/lib/kubelet/device-plugins/kubelet.sock /run/nri/nri.sock /run/containerd/s/* <<'P'
import contextlib, os, socket, sys

for path in filter(os.path.exists, sys.argv[1:]):
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
P
[ -e /run/containerd/containerd.sock ] || rm -f /etc/cni/net.d/cni.lock
rmdir /var/lib/cni/results /var/lib/cni /var/log/containers /var/lib/kubelet/device-plugins /var/lib/kubelet \
  /run/nri /run/containerd/s /run/containerd/runc/k8s.io /run/containerd/runc /run/containerd /etc/cni/net.d /etc/cni \
  2>/dev/null
rm -rf $DATA $RUN
echo "down.sh: the node is gone; kept for the next one: ${NODE_BIN%/*} and the Debian packages that up.sh installed" >&2
