#!/usr/bin/env bash
# up.sh [IMAGE.tar…]: one real Kubernetes node (etcd, API server, controllers, scheduler, kube-proxy, kubelet, containerd)
# in its own network namespace, with no way out of it. Ready in about 5 s. Needs root; build.sh makes what it runs.
#   eval "$(tests/cluster/node/env.sh)"       afterwards: KUBECONFIG, PATH, and `inside` for everything that talks to the node
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/node.sh"
[ "$(id -u)" = 0 ] || fail "a node needs root (network namespaces, cgroups, mounts); or point KUBECONFIG at a cluster you have"
export PATH=$NODE_BIN:/usr/sbin:/sbin:$PATH

install_packages() {
  local missing=()
  for pair in runc:runc nft:nftables iptables:iptables conntrack:conntrack ip:iproute2 openssl:openssl; do
    command -v "${pair%%:*}" >/dev/null || missing+=("${pair##*:}")
  done
  [ -x /usr/lib/cni/bridge ] || missing+=(containernetworking-plugins)
  [ ${#missing[@]} = 0 ] || { apt-get update -qq; apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null; }
}

make_network() {
  ip netns add $NS
  inside ip link set lo up
  inside ip link add node0 type veth peer name node1      # a veth pair carries the address where the kernel has no dummy device
  inside ip link set node1 up
  inside ip link set node0 up
  inside ip addr add $NODE_IP/32 dev node0
  inside ip route add default dev node0                   # the API server wants a default route; it leads nowhere
  inside sysctl -qw net.ipv4.ip_forward=1
}

# A cgroup of its own, so that the kubelet of another node does not take this one's pods for strays. It weighs as much
# as four processes: with the weight of one, all pods together starve beside the node's own components.
make_cgroups() {
  local root
  for root in $(cgroup_roots); do
    mkdir -p "$root/$NS"
    [ ! -e "$root/$NS/cpu.shares" ] || echo 4096 >"$root/$NS/cpu.shares"
    [ ! -e "$root/$NS/cpu.weight" ] || echo 400 >"$root/$NS/cpu.weight"
  done
  for root in cpus mems; do
    [ ! -e "/sys/fs/cgroup/cpuset/cpuset.$root" ] || cat "/sys/fs/cgroup/cpuset/cpuset.$root" >"/sys/fs/cgroup/cpuset/$NS/cpuset.$root"
  done
}

make_credentials() {
  umask 077
  openssl genrsa -out pki/sa.key 2048 2>/dev/null
  : >pki/tokens.csv
  local user groups token
  while read -r user name groups; do
    token=$(openssl rand -hex 16)
    echo "$token,$name,$user,$groups" >>pki/tokens.csv
    cat >pki/$user.kubeconfig <<K
apiVersion: v1
kind: Config
clusters: [{name: $NS, cluster: {server: "https://$NODE_IP:6443", insecure-skip-tls-verify: true}}]
users: [{name: $user, user: {token: $token}}]
contexts: [{name: $NS, context: {cluster: $NS, user: $user}}]
current-context: $NS
K
  done <<'U'
admin admin system:masters
controllers system:kube-controller-manager controllers
scheduler system:kube-scheduler scheduler
node system:node:node1 system:nodes
proxy system:kube-proxy proxy
dns system:coredns system:masters
U
  umask 022
}

write_configuration() {
  cat >cni/10-bridge.conflist <<C
{"cniVersion": "0.4.0", "name": "wisp", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true,
   "ipam": {"type": "host-local", "dataDir": "$RUN/cni", "ranges": [[{"subnet": "$PODS"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
C
  # restrict_oom_score_adj: without CAP_SYS_RESOURCE runc dies with "can't get final child's PID".
  cat >containerd.toml <<C
version = 3
root = "$DATA/containerd"
state = "$RUN/containerd"
[grpc]
  address = "$RUN/containerd.sock"
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "wisp.test/pause:1"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["/usr/lib/cni"]
    conf_dir = "$DATA/cni"
C
  cat >kubelet.yaml <<C
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
cgroupDriver: cgroupfs
cgroupRoot: /$NS
podLogsDir: $DATA/log/pods
failCgroupV1: false
failSwapOn: false
containerRuntimeEndpoint: unix://$RUN/containerd.sock
resolvConf: ""
clusterDomain: cluster.local
clusterDNS: [$NODE_IP]
imageGCHighThresholdPercent: 100
evictionHard: {memory.available: "200Mi", nodefs.available: "1%", imagefs.available: "1%", nodefs.inodesFree: "1%"}
nodeStatusUpdateFrequency: 5s
registerWithTaints: []
maxPods: 200
featureGates: {ImageVolume: true}
C
  cat >proxy.yaml <<C
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
clientConnection: {kubeconfig: $DATA/pki/proxy.kubeconfig}
clusterCIDR: $PODS
hostnameOverride: node1
conntrack: {maxPerCore: 0, min: 0, tcpCloseWaitTimeout: 0s, tcpEstablishedTimeout: 0s}
C
  printf '.:53 {\n  bind %s\n  kubernetes cluster.local {\n    kubeconfig %s/pki/dns.kubeconfig\n  }\n}\n' $NODE_IP $DATA >Corefile
}

start_control_plane() {
  start etcd etcd --data-dir etcd --unsafe-no-fsync --log-level warn
  start apiserver kube-apiserver --etcd-servers http://127.0.0.1:2379 --service-cluster-ip-range $SERVICES --advertise-address $NODE_IP \
    --cert-dir pki/api --service-account-key-file pki/sa.key --service-account-signing-key-file pki/sa.key \
    --service-account-issuer https://kubernetes.default.svc --token-auth-file pki/tokens.csv --authorization-mode Node,RBAC \
    --enable-admission-plugins NodeRestriction --allow-privileged --kubelet-preferred-address-types InternalIP \
    --feature-gates ImageVolume=true
  until_true 60 inside kubectl get --raw /readyz
  local as='--leader-elect=false'
  for flag in kubeconfig authentication-kubeconfig authorization-kubeconfig; do as="$as --$flag pki/USER.kubeconfig"; done
  # shellcheck disable=SC2086
  start controllers kube-controller-manager ${as//USER/controllers} --service-account-private-key-file pki/sa.key \
    --root-ca-file pki/api/apiserver.crt --use-service-account-credentials
  # shellcheck disable=SC2086
  start scheduler kube-scheduler ${as//USER/scheduler}
  start dns coredns -conf Corefile
  start proxy kube-proxy --config proxy.yaml
}

start_kubelet() {
  until_true 30 ctr -a $RUN/containerd.sock version
  python3 "$here/image.py" $RUN/pause.tar wisp.test/pause:1 /pause "$NODE_BIN/pause=/pause"
  for image in $RUN/pause.tar "$@"; do ctr -a $RUN/containerd.sock -n k8s.io images import "$image" >/dev/null; done
  start kubelet kubelet --config kubelet.yaml --kubeconfig pki/node.kubeconfig --hostname-override node1 --node-ip $NODE_IP \
    --root-dir $DATA/kubelet --cert-dir $DATA/kubelet/pki
  until_true 60 inside sh -c "kubectl get node node1 | grep -q ' Ready'"
}

install_packages
[ ! -e /run/netns/$NS ] || "$here/down.sh"
mkdir -p $DATA/{log,pki,etcd,kubelet,cni} $RUN
cd $DATA
export KUBECONFIG=$DATA/pki/admin.kubeconfig
make_network
make_cgroups
make_credentials
write_configuration
start containerd containerd --config containerd.toml
start_control_plane
start_kubelet "$@"
inside kubectl get nodes
