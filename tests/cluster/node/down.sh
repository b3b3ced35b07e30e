#!/usr/bin/env bash
# down.sh: end what up.sh started, by process id, and remove every trace of the node.
set -uo pipefail
. "$(dirname "$0")/node.sh"
for name in kubelet dns proxy controllers scheduler apiserver etcd; do end $name; done

# The pods' own processes: whatever still lives in the node's and the pods' network namespaces, containerd apart.
containerd=$(cat $RUN/containerd.pid 2>/dev/null)
for ns in $NS $(cd /run/netns 2>/dev/null && ls -d cni-* 2>/dev/null); do
  for pid in $(ip netns pids "$ns" 2>/dev/null); do [ "$pid" = "$containerd" ] || kill -9 "$pid" 2>/dev/null; done
done
sleep 0.3
end containerd

awk -v below="^($RUN|$DATA)/" '$2 ~ below { print $2 }' /proc/mounts | sort -r | while read -r mount; do umount -l "$mount"; done
for ns in /run/netns/cni-*; do [ -e "$ns" ] && ip netns del "$(basename "$ns")"; done
ip netns del $NS 2>/dev/null
rm -rf $DATA $RUN
