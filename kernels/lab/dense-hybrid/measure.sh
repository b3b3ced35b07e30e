#!/bin/bash
# Variants of the persistent step of Qwen3.8-27B in block FP8, on one H200: README.md says what each is expected to give.
# In the root of a tree of main; WISP_KERNELS: a folder with main's kernels, and those of the patched trees, else nvcc
# compiles these first (this model's alone, all at once: a minute). Logs in $OUT.
#   measure.sh         today's, 0001, 0001 and 0002, all but 0006; timelines and tests of the last. 85 s, 150 with nvcc
#   measure.sh each    0003 and 0004 alone, all with 0006; today's timelines at 8 and 32; general at 32. 70 s, 135 with nvcc
#   measure.sh experts Qwen3-30B-A3B: today's, and 0001 with 0007. 30 s, 90 with nvcc
py=${PYTHON:-python3}; [ -x .venv/bin/python ] && py=$PWD/.venv/bin/python
OUT=${OUT:-/tmp/dense-hybrid}; mkdir -p "$OUT"; OUT=$(realpath "$OUT"); start=$SECONDS; failed=0
here=$(realpath "$(dirname "$0")"); root=$PWD; limit=${LIMIT:-150}
export PYTHONPATH=runtime:operator:tests/bench:tests PYTHONUNBUFFERED=1
export WISP_KERNELS=${WISP_KERNELS:-${XDG_CACHE_HOME:-$HOME/.cache}/wisp/kernels}
stage() {  # name, seconds, tree, command…
  local name=$1 s=$2 tree=$3 left=$((limit - SECONDS + start)); shift 3
  [ "$left" -gt 4 ] || { echo "OUT OF TIME: $name"; failed=1; return; }
  (cd "$tree" && timeout $((s < left ? s : left)) "$@") >"$OUT/$name.log" 2>&1 || { failed=1; echo "FAILED: $name"; }
  grep -v Warning "$OUT/$name.log" | tail -n "${LINES_OF:-10}" | cut -c1-150; echo "== $name, $((SECONDS - start)) s"; }
tree() {  # name, patches…: a copy of the tree with them (not with what they do to the emulator)
  local to=/tmp/dense-hybrid-$1; shift; rm -rf "$to"; mkdir -p "$to"; cp -r runtime operator tests kernels pyproject.toml "$to"
  for number in "$@"; do
    (cd "$to" && GIT_CEILING_DIRECTORIES=/tmp git apply --include="kernels/*" "$here/$number"-*.patch) || { echo "FAILED: $number"; exit 1; }
  done; }
measure() { local name=$1 tree=$2; shift 2; stage "$name" 40 "$tree" "$py" "$here/measure.py" "$@"; }
if [ "$1" = each ]; then
  variants="ahead gates vectors"
  tree gates 0003; tree vectors 0004; tree ahead 0001 0002 0003 0004 0005 0006
elif [ "$1" = experts ]; then
  export SHAPE=qwen3-30b-a3b; variants=experts
  tree experts 0001 0007
else
  variants="all lean shared"
  tree lean 0001; tree shared 0001 0002; tree all 0001 0002 0003 0004 0005
fi
for name in $variants; do (cd /tmp/dense-hybrid-$name && "$py" "$here/measure.py" build) & done; wait
echo "== kernels, $((SECONDS - start)) s"

if [ "$1" = each ]; then
  for name in $variants; do measure "decode-$name" /tmp/dense-hybrid-$name decode 1,8,16,32; done
  for batch in 8 32; do LINES_OF=1 measure "phases-now-$batch" "$root" phases $batch; done
  measure decode-general "$root" decode 32 general
elif [ "$1" = experts ]; then
  measure decode-experts-now "$root" decode 1,8,16,32
  measure decode-experts /tmp/dense-hybrid-experts decode 1,8,16,32
  stage tests-experts 25 /tmp/dense-hybrid-experts "$py" -m pytest -q --tb=short --no-header -p no:cacheprovider \
    tests/gpu/persistent/test_persistent_experts.py
else
  measure decode-now "$root" decode 1,8,16,32
  for name in $variants; do measure "decode-$name" /tmp/dense-hybrid-$name decode 1,8,16,32; done
  stage tests-all 30 /tmp/dense-hybrid-all "$py" -m pytest -q --tb=short --no-header -p no:cacheprovider \
    tests/gpu/persistent/test_persistent_hybrid.py -k block
  for batch in 1 16 32; do LINES_OF=1 measure phases-all-$batch /tmp/dense-hybrid-all phases $batch; done
fi
for log in "$OUT"/decode-*.log; do echo "$(basename "$log" .log): $(grep -a "^B " "$log" | tr '\n' ' ')"; done
[ $failed = 0 ] && echo "dense-hybrid: all passed" || { echo "dense-hybrid: FAILURES"; exit 1; }
