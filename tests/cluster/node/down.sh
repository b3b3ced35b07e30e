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
rm -rf $DATA $RUN
