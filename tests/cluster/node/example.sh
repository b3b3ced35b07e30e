#!/usr/bin/env bash
# example.sh: lay the example model into a folder of the node, and print a manifest that serves it from there:
#   tests/cluster/node/example.sh | inside kubectl apply -f -
# The node has no way out, so weights of a hub cannot be had; pods run as user 65532, who must be able to read the folder.
set -euo pipefail
root=$(cd "$(dirname "$0")/../../.." && pwd)
. "$root/tests/cluster/node/node.sh"
folder=$DATA/models/smollm2
[ -d "$DATA" ] || fail "there is no node; make cluster brings one up"
if [ ! -d "$folder" ]; then
  [ -x "$root/.venv/bin/wisp-runtime" ] || make --silent -C "$root" .venv/run >&2
  made=$("$root/.venv/bin/wisp-runtime" example | tail -n 1)
  rm -rf "$folder.partial"
  mkdir -p "$DATA/models"
  cp -r "$made" "$folder.partial"
  chmod -R a+rX "$DATA/models"
  mv "$folder.partial" "$folder"
fi
cat <<M
apiVersion: wisp.dev/v1alpha1
kind: InferenceModel
metadata:
  name: smollm2
  namespace: default
spec:
  model:
    uri: file://$folder
  gpu:
    count: 0
  runtime:
    maxContext: 2048
    maxConcurrent: 4
  resources:
    limits: {memory: 2Gi}
  scaling:
    idleAfter: 5m
M
