#!/usr/bin/env bash
# try_out.sh DIST: install a release from its files alone, as docs/releases.md says, and use it.
# Leaves nothing but the example model in the cache. PYTHON chooses the interpreter (default python3).
set -euo pipefail
dist=$(cd "$1" && pwd)
work=$(mktemp -d) server=
cleanup() { [ -z "$server" ] || { kill "$server" && wait "$server" || true; } 2>/dev/null; rm -rf "$work"; }
trap cleanup EXIT
step() { echo "try_out: $*" >&2; }

cd "$work"
step "checksums"
(cd "$dist" && sha256sum --check --quiet SHA256SUMS)

step "a fresh environment, packages by hash, the wheel without an index"
"${PYTHON:-python3}" -m venv venv
export PATH=$work/venv/bin:$PATH PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONSAFEPATH=1
unset PYTHONPATH
python -m pip install --quiet --require-hashes -r "$dist/requirements-run.txt"
python -m pip install --quiet --no-deps --no-index "$dist"/wisp_serving-*.whl
python -m pip check

step "what the wheel holds"
python - "$dist" <<'PY'
import sys, zipfile
from importlib import metadata
from pathlib import Path
wheel = next(Path(sys.argv[1]).glob("*.whl"))
names = zipfile.ZipFile(wheel).namelist()
version = wheel.name.split("-")[1]
assert metadata.version("wisp-serving") == version
wanted = ("licenses/LICENSE", "wisp_runtime/kernels/hopper/manifest.toml", "wisp_operator/py.typed")
assert all(any(name.endswith(end) for name in names) for end in wanted), names[:20]
extra = {name.split("/")[0] for name in names} - {
    *("wisp_operator", "wisp_gateway", "wisp_names", "wisp_plan", "wisp_http", "wisp_runtime"),
    f"wisp_serving-{version}.dist-info",
}
assert not extra, f"not ours to install: {extra}"
PY
version=$(basename "$dist"/wisp_serving-*.whl | cut -d- -f2)
[ "$(wisp --version)" = "wisp $version" ] && [ "$(wisp-runtime --version)" = "wisp-runtime $version" ]
wisp-runtime kernels list >/dev/null

step "wisp doctor, demo --manifest, fit"
wisp doctor >doctor.txt || { cat doctor.txt >&2; exit 1; }
wisp demo --manifest >model.yaml
wisp fit model.yaml

step "wisp-runtime serve, asked once"
wisp-runtime serve "$(wisp-runtime example)" --device cpu --served-name smollm2 --host 127.0.0.1 --port 0 >serve.log 2>&1 &
server=$!
port=
for _ in $(seq 600); do
  port=$(grep -soE 'http://127\.0\.0\.1:[0-9]+' serve.log | head -n 1 | grep -oE '[0-9]+$' || true)
  [ -z "$port" ] || break
  kill -0 "$server" || { cat serve.log >&2; exit 1; }
  sleep 0.2
done
python - "$port" <<'PY'
import json, sys, time, urllib.error, urllib.request
base = f"http://127.0.0.1:{sys.argv[1]}"
body = {"model": "smollm2", "prompt": "The capital of France is", "max_tokens": 8, "temperature": 0}
for _ in range(600):
    try:
        urllib.request.urlopen(f"{base}/readyz").read()
        break
    except urllib.error.URLError:
        time.sleep(0.2)
request = urllib.request.Request(f"{base}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"})
answer = json.load(urllib.request.urlopen(request))
print(answer["choices"][0]["text"].strip(), answer["usage"])
assert "Paris" in answer["choices"][0]["text"]
PY

step "wisp demo: woken, asked, asleep again"
wisp demo >demo.txt 2>&1 || { cat demo.txt >&2; exit 1; }

if helm=$(command -v helm || ls -d "${XDG_CACHE_HOME:-$HOME/.cache}"/wisp/*/helm 2>/dev/null | tail -n 1); [ -n "$helm" ]; then
  step "the packaged chart, rendered"
  "$helm" template wisp "$dist"/wisp-"$version".tgz --kube-version 1.34 --namespace wisp-system >chart.yaml
  grep -q 'name: inferencemodels.wisp.dev' chart.yaml
fi
step "works"
