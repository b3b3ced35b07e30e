#!/usr/bin/env bash
# pin_base.sh [IMAGE:TAG]: write the digest that IMAGE:TAG has now into the Dockerfile's ARG BASE.
# Needs docker with buildx, or skopeo, and a machine that reaches the image's registry; look at the difference and commit.
set -euo pipefail
cd "$(dirname "$0")/../.."
current=$(sed -n 's/^ARG BASE=//p' Dockerfile)
image=${1:-${current%@*}}

if command -v skopeo >/dev/null; then
  digest=$(skopeo inspect --raw "docker://$image" | sha256sum | cut -d' ' -f1)
  digest=sha256:$digest
else
  digest=$(docker buildx imagetools inspect --format '{{.Manifest.Digest}}' "$image")
fi
[[ $digest =~ ^sha256:[0-9a-f]{64}$ ]] || { echo "pin_base.sh: no digest for $image: $digest" >&2; exit 1; }
sed -i "s|^ARG BASE=.*|ARG BASE=$image@$digest|" Dockerfile
echo "Dockerfile: ARG BASE=$image@$digest"
