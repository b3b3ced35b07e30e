#!/usr/bin/env bash
# run.sh [PYTEST-ARGUMENT…]: the tests of this folder on a cluster with Wisp's images; `make test-cluster` calls it.
#   KUBECONFIG  a cluster to use. Without one a node is brought up, and taken down again unless KEEP=1 is set.
#   WISP_VALUES more values for the chart: where such a cluster finds the images, if it is neither kind nor k3d
#   RECORD=1    write tests/bench/records/cluster.json
#   RETRY=1     run tests that failed a second time; CI does, since its machine is shared
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/node/node.sh"
pytest_from() { "$@" "$here/../../.venv/bin/python" -m pytest -m cluster -o cache_dir="$cache" "${arguments[@]}"; }

# run_tests [COMMAND]: COMMAND is what the tests run inside of.
run_tests() {
  local cache; cache=$(mktemp -d)
  pytest_from "$@" && return
  [ -n "${RETRY:-}" ] || return 1
  echo "run.sh: once more, what failed: a test that passes now depends on the machine's load" >&2
  arguments+=(--last-failed)
  pytest_from "$@"
}

own_node() {
  "$here/node/build.sh" >/dev/null
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
  run_tests
}

arguments=("$@")
[ $# -gt 0 ] || arguments=("$here" "$here/../attacks/operator")
if [ -n "${KUBECONFIG:-}" ]; then given_cluster; else own_node; fi
