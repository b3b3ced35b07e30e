#!/usr/bin/env bash
# run.sh [PYTEST-ARGUMENT…]: the tests of this folder on a cluster with Wisp's images; `make test-cluster` calls it.
# Without arguments all but faults/, which takes 15 minutes: PYTEST_ARGS=tests/cluster/faults.
#   KUBECONFIG  a cluster to use. Without one a node is brought up, and taken down again unless KEEP=1 is set.
#   WISP_VALUES more values for the chart: where such a cluster finds the images, if it is neither kind nor k3d
#   RECORD=1    write tests/bench/records/cluster.json and faults.json
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/node/node.sh"

# run_tests [COMMAND]: COMMAND is what the tests run inside of. One after the other, since an operator serves every
# namespace of a cluster.
run_tests() { "$@" "$here/../../.venv/bin/python" -m pytest -m cluster -p no:cacheprovider "${arguments[@]}"; }

own_node() {
  "$here/node/build.sh" >/dev/null
  "$here/prometheus/build.sh" >/dev/null  # the node has no way out
  [ -n "${KEEP:-}" ] && [ -S $RUN/containerd.sock ] || "$here/node/up.sh"
  [ -n "${KEEP:-}" ] || trap '"$here/node/down.sh"' EXIT
  "$here/images.sh"
  eval "$("$here/node/env.sh")"
  run_tests inside
}

# Whatever talks to a cluster of the user's own does so from here.
given_cluster() {
  local context
  context=$(kubectl config current-context)
  echo "run.sh: on the cluster of $KUBECONFIG, context $context" >&2
  case $context in
    kind-*) IMPORT="kind load image-archive --name ${context#kind-}" "$here/images.sh" ;;
    k3d-*) IMPORT="k3d image import --cluster ${context#k3d-}" "$here/images.sh" ;;
    *) [ -n "${IMPORT:-}" ] && "$here/images.sh" || [ -n "${WISP_VALUES:-}" ] ||
      fail "say in WISP_VALUES=FILE.yaml where this cluster finds the images, or in IMPORT how it takes an archive" ;;
  esac
  "$here/prometheus/build.sh" >/dev/null
  run_tests
}

arguments=("$@")
[ $# -gt 0 ] || arguments=("$here" "$here/../attacks/operator" --ignore="$here/faults")
if [ -n "${KUBECONFIG:-}" ]; then given_cluster; else own_node; fi
