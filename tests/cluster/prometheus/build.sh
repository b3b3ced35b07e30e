#!/usr/bin/env bash
# build.sh: prometheus and promtool from their Go module, without web UI and service discoveries, into a cache outside
# the tree, keyed by version; prints the folder. The first build takes seven minutes on two cores; then it does nothing.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
version=$(awk '$1 == "github.com/prometheus/prometheus" { print substr($2, 4) }' "$here/go.mod")
bin=${XDG_CACHE_HOME:-$HOME/.cache}/wisp/prometheus-0.$version
if [ ! -x "$bin/prometheus" ] || [ ! -x "$bin/promtool" ]; then
  command -v go >/dev/null || { echo "build.sh: Go is not installed; install Go 1.26 or newer" >&2; exit 1; }
  echo "build.sh: Prometheus 0.$version (about seven minutes)" >&2
  mkdir -p "$bin.partial"
  (cd "$here" && CGO_ENABLED=0 GOFLAGS=-trimpath go build -tags remove_all_sd -ldflags "-s -w" -o "$bin.partial/" \
    github.com/prometheus/prometheus/cmd/{prometheus,promtool})
  rm -rf "$bin" && mv "$bin.partial" "$bin"
fi
echo "$bin"
