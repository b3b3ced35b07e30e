#!/bin/bash
# Variants of Qwen3-30B-A3B's persistent step in block FP8: correctness, times and phases at 1, 8, 16, 32 sequences; then
# main and all patches as served. In the root of a checkout, kernels of main built. At most 150 s; cubins that are not in
# $CUBINS are built first, all at once (a minute on 16 cores). Records in $OUT.
py=${PYTHON:-python3}; [ -x .venv/bin/python ] && py=.venv/bin/python
OUT=${OUT:-/tmp/fp8moe-out}; CUBINS=${CUBINS:-/tmp/fp8moe-cubins}; mkdir -p "$OUT" "$CUBINS"; start=$SECONDS; failed=0
export PYTHONPATH=runtime:operator:tests/bench:tests:tests/gpu/persistent PYTHONUNBUFFERED=1
here=$(dirname "$(readlink -f "$0")")
"$py" "$here/build_variants.py" "$CUBINS" >"$OUT/fp8moe-variants.txt" || exit 1
echo "== cubins, $((SECONDS - start)) s"
stage() { local name=$1 until=$2; shift 2; local t=$((until - SECONDS + start)); [ "$t" -gt 3 ] || { echo "OUT OF TIME: $name"; failed=1; return; }
  timeout "$t" "$@" >"$OUT/fp8moe-$name.log" 2>&1 <"$OUT/fp8moe-variants.txt" || { failed=1; echo "FAILED: $name"; }
  tail -n "${LINES_OF:-12}" "$OUT/fp8moe-$name.log" | cut -c1-160; echo "== $name, $((SECONDS - start)) s"; }
LINES_OF=150 stage times 110 "$py" "$here/time_variants.py" "$OUT/fp8moe-times.json"
for name in main all; do
  cubin=$(sed -n "s/^$name //p" "$OUT/fp8moe-variants.txt")
  LINES_OF=4 stage "served-$name" 150 "$py" "$here/served.py" "$cubin" bench decode --shape qwen3-30b-a3b \
    --quantization fp8_block --batch 1,8,16,32 --context 512 --steps 32 --json "$OUT/fp8moe-served-$name.json"
done
[ $failed = 0 ] && echo "fp8moe: all passed" || { echo "fp8moe: FAILURES"; exit 1; }
