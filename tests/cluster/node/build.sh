#!/usr/bin/env bash
# build.sh [helm]: the node's binaries from Go modules, or helm alone, into a cache outside the tree, keyed by version.
# The first build takes about nine minutes on two cores and 1.2 GB of modules, helm's 80 s; afterwards it does nothing.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/node.sh"
command -v go >/dev/null || { [ "${1:-}" = helm ] && [ -x "$NODE_BIN/helm" ]; } || fail "Go is not installed; install Go 1.24 or newer, or point KUBECONFIG at a cluster you have"
mkdir -p "$NODE_BIN"
export CGO_ENABLED=0 GOBIN=$NODE_BIN GOFLAGS=-trimpath
say() { echo "build.sh: $*" >&2; }

make_kubernetes() {
  local stamp=v$KUBERNETES major minor
  IFS=. read -r major minor _ <<<"$KUBERNETES"
  say "Kubernetes $KUBERNETES (about five minutes)"
  (cd "$here/kube" && go build -o "$NODE_BIN/kube.partial" -ldflags "-s -w \
    -X k8s.io/component-base/version.gitVersion=$stamp -X k8s.io/component-base/version.gitMajor=$major \
    -X k8s.io/component-base/version.gitMinor=$minor -X k8s.io/client-go/pkg/version.gitVersion=$stamp" .)
  for component in etcd kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubelet kubectl; do
    ln -sf kube "$NODE_BIN/$component"
  done
  mv "$NODE_BIN/kube.partial" "$NODE_BIN/kube"
}

[ -x "$NODE_BIN/helm" ] || { say "Helm $HELM"; go install -ldflags "-s -w" "helm.sh/helm/v3/cmd/helm@v$HELM"; }
[ "${1:-}" != helm ] || exit 0
[ -x "$NODE_BIN/kube" ] || make_kubernetes
[ -x "$NODE_BIN/coredns" ] || { say "CoreDNS $COREDNS"; go install -ldflags "-s -w" "github.com/coredns/coredns@v$COREDNS"; }
[ -x "$NODE_BIN/ctr" ] || { say "containerd $CONTAINERD"; go install -ldflags "-s -w" \
  github.com/containerd/containerd/v2/cmd/{containerd,containerd-shim-runc-v2,ctr}@v"$CONTAINERD"; }
[ -x "$NODE_BIN/pause" ] || (cd "$here/pause" && go build -ldflags "-s -w" -o "$NODE_BIN/pause" .)
echo "$NODE_BIN"
