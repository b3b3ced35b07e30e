#!/bin/bash
# MXFP4 of experts in fields, the streaming kernel up to 64 tokens, its fences, block FP8's loads. Run in the root of the
# tree, kernels of main built before. The patches lie beside this script (or in $BESIDE), as may mxfp4.cubins/: cubins of
# what they change, else nvcc builds them.
#   mxfp4.sh        tests and GEMMs before and after, at most 95 s
#   mxfp4.sh steps  decode steps of gpt-oss before and after, at most 95 s
#   mxfp4.sh persistent  the same of the persistent kernel, which is compiled if it is not there (30 s each)
py=${PYTHON:-python3}; [ -x .venv/bin/python ] && py=$PWD/.venv/bin/python
OUT=${OUT:-/tmp/mxfp4}; mkdir -p "$OUT"; OUT=$(realpath "$OUT"); start=$SECONDS; failed=0
BESIDE=$(realpath "${BESIDE:-$(dirname "$0")}"); export PYTHONPATH=runtime:operator:tests/bench:tests:tests/bench/kernels PYTHONUNBUFFERED=1
stage() { local name=$1 until=$2; shift 2; local t=$((until - SECONDS + start)); [ "$t" -gt 3 ] || { echo "OUT OF TIME: $name"; failed=1; return; }
  timeout "$t" "$@" >"$OUT/$name.log" 2>&1 || { failed=1; echo "FAILED: $name"; }
  tail -n "${LINES_OF:-8}" "$OUT/$name.log" | cut -c1-180; echo "== $name, $((SECONDS - start)) s"; }
tests="-m pytest -q --maxfail=4 --tb=short --no-header -p no:cacheprovider"
moe='import bench_moe; bench_moe.main()'
forced="import wisp_runtime.ops.cuda.moe.stream_experts as s; s.MAX_STREAM_TOKENS = 64; s.max_stream_tokens = lambda _: 64; $moe"
decode='from wisp_runtime.cli.main import main; main()'
oss="--shape gpt-oss-20b --shape gpt-oss-120b --format mxfp4 --format mxfp4_fields"
others="--shape qwen3-30b-a3b --shape qwen3.6-35b-a3b --format fp8_block"
bench() { local name=$1 until=$2; shift 2; stage "$name" "$until" $py -c "$decode" bench decode --decode-path "$path" --context 512 --steps 48 --json "$OUT/$name.json" "$@"; }
patched() {  # all patches in a copy of the tree, cubins of what they change beside main's
  local kernels=${WISP_KERNELS:-${XDG_CACHE_HOME:-$HOME/.cache}/wisp/kernels} copy=/tmp/mxfp4-tree; rm -rf $copy /tmp/mxfp4-kernels
  mkdir -p $copy && cp -r runtime operator tests kernels docs pyproject.toml $copy && cp -r "$kernels" /tmp/mxfp4-kernels
  export WISP_KERNELS=/tmp/mxfp4-kernels; cd $copy || exit 1
  local patches=$BESIDE/mxfp4.patches; [ -d "$patches" ] || patches=$BESIDE
  for each in "$patches"/*.patch; do patch -s -p1 <"$each" || git apply "$each" || { echo "FAILED: $each"; exit 1; }; done
  cp "$BESIDE"/mxfp4.cubins/*.cubin $WISP_KERNELS || $py -c "$decode" kernels build --arch sm_90a --out $WISP_KERNELS | tail -n 2; }

step_kernels() {  # persistent kernels of gpt-oss for the order in which this tree holds experts
  for shape in gpt-oss-20b gpt-oss-120b; do
    mkdir -p "$OUT/$shape" && $py -c "import json; from wisp_plan.presets import shape_config; print(json.dumps(shape_config('$shape')))" >"$OUT/$shape/config.json"
    $py -c "$decode" kernels build --arch sm_90a --for "$OUT/$shape" 2>&1 | grep -a "decode kernel"
  done; }

path=general; [ "$1" = persistent ] && path=persistent
if [ "$1" = persistent ]; then
  step_kernels; start=$SECONDS
  bench before-persistent-20b 20 --shape gpt-oss-20b --batch 1,8,32
  bench before-persistent-120b 46 --shape gpt-oss-120b --batch 1,8,32
  patched; step_kernels; start=$((SECONDS - 46))
  bench persistent-20b 66 --shape gpt-oss-20b --batch 1,8,32
  bench persistent-120b 92 --shape gpt-oss-120b --batch 1,8,32
elif [ "$1" = steps ]; then
  bench before-20b 16 --shape gpt-oss-20b --batch 1,8,32
  patched
  bench after-20b 32 --shape gpt-oss-20b --batch 1,8,32
  bench after-120b 70 --shape gpt-oss-120b --batch 1,8,32
  stage model-tests 95 $py $tests tests/gpu/moe/test_gpt_oss_model.py
else
  stage tests 22 $py $tests tests/gpu/gemm/test_pack_quantized.py tests/gpu/moe/test_mixture.py -k "mxfp4"
  LINES_OF=40 stage gemms 36 $py -c "$moe" "$OUT/gemms.json" $oss --tokens 1 --tokens 8 --tokens 32 --stage gate_up --stage down --stage both
  LINES_OF=12 stage forced 44 $py -c "$forced" "$OUT/forced.json" $oss --tokens 16 --tokens 32 --tokens 64 --stage both
  LINES_OF=8 stage fp8 50 $py -c "$moe" "$OUT/fp8.json" $others --tokens 1 --tokens 8 --tokens 16 --tokens 32 --stage both
  patched
  stage patched-tests 66 $py $tests tests/gpu/moe/test_stream_experts.py
  LINES_OF=16 stage patched-gemms 75 $py -c "$forced" "$OUT/patched-gemms.json" $oss --tokens 1 --tokens 8 --tokens 32 --stage both
  LINES_OF=8 stage patched-fp8 81 $py -c "$forced" "$OUT/patched-fp8.json" $others --tokens 1 --tokens 8 --tokens 16 --tokens 32 --stage both
  for blocks in 2 3 4; do  # of an SM; now as many as take the first GEMM's items at once
    own="import wisp_runtime.ops.cuda.moe.stream_plan as p; p._MIN_BLOCKS = p._MAX_BLOCKS = $blocks; $moe"
    LINES_OF=4 stage "blocks-$blocks" 95 $py -c "$own" "$OUT/blocks-$blocks.json" --shape gpt-oss-20b --shape gpt-oss-120b --format mxfp4_fields --tokens 1 --tokens 8 --stage both
  done
fi
[ $failed = 0 ] && echo "mxfp4: all passed" || { echo "mxfp4: FAILURES"; exit 1; }
