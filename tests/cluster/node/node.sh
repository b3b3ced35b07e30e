# What the test node is made of. The cache of binaries is keyed by all of it.
KUBERNETES=1.34.4
HELM=3.22.0
COREDNS=1.14.7
CONTAINERD=2.4.2
NODE_BIN=${WISP_NODE_BIN:-${XDG_CACHE_HOME:-$HOME/.cache}/wisp/node-k$KUBERNETES-c$CONTAINERD-h$HELM-d$COREDNS}

# One network namespace holds the node; every path and address of it is here. Another WISP_NODE is another node beside it.
NS=${WISP_NODE:-wisp-node}
DATA=/var/lib/$NS
RUN=/run/$NS
NODE_IP=192.0.2.10          # documentation and benchmark ranges: they route nowhere
PODS=198.18.0.0/24
SERVICES=198.19.0.0/24

inside() { nsenter --net=/run/netns/$NS "$@"; }   # not `ip netns exec`: that hides /sys/fs/cgroup from the kubelet
fail() { echo "$(basename "$0"): $*" >&2; exit 1; }

# start NAME COMMAND…: run in the node's namespace, in a session of its own; restart.sh repeats it from $RUN/NAME.command.
start() {
  local name=$1; shift
  printf '%q ' "$@" >"$RUN/$name.command"
  (cd "$DATA" && exec nsenter --net=/run/netns/$NS setsid "$@" >>"$DATA/log/$name.log" 2>&1 </dev/null) &
  echo $! >"$RUN/$name.pid"
}

# end NAME: ask it to stop, wait two seconds, then insist.
end() {
  local pid
  pid=$(cat "$RUN/$1.pid" 2>/dev/null) || return 0
  kill "$pid" 2>/dev/null || return 0
  for _ in $(seq 20); do kill -0 "$pid" 2>/dev/null || return 0; sleep 0.1; done
  kill -9 "$pid" 2>/dev/null || true
}

# cgroup_roots: the mount point of each hierarchy; one with cgroup v2.
cgroup_roots() { awk '$3 ~ /^cgroup2?$/ && $2 ~ "^/sys/fs/cgroup" { print $2 }' /proc/mounts; }

# until_true SECONDS COMMAND…: poll five times a second.
until_true() {
  local tries=$(($1 * 5)); shift
  for _ in $(seq "$tries"); do "$@" >/dev/null 2>&1 && return; sleep 0.2; done
  fail "timed out waiting for: $* (logs are in $DATA/log)"
}
