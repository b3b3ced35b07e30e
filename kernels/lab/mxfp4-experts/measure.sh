#!/bin/bash
# MXFP4 of experts in fields, the streaming kernel up to 64 tokens, and its fences. Run in the root of the tree, kernels
# of main built before; mxfp4.patches/ and mxfp4.cubins/ lie beside this script (or in $BESIDE). At most 100 s.
# 1 tests, 2 GEMMs of main in both orders, 3 the streaming kernel forced up to 64 tokens, 4 with all patches, 5 decode.
py=${PYTHON:-python3}; [ -x .venv/bin/python ] && py=$PWD/.venv/bin/python
OUT=${OUT:-/tmp/mxfp4}; mkdir -p "$OUT"; OUT=$(realpath "$OUT"); start=$SECONDS; failed=0
BESIDE=$(realpath "${BESIDE:-$(dirname "$0")}"); export PYTHONPATH=runtime:operator:tests/bench:tests:tests/bench/kernels PYTHONUNBUFFERED=1
stage() { local name=$1 until=$2; shift 2; local t=$((until - SECONDS + start)); [ "$t" -gt 3 ] || { echo "OUT OF TIME: $name"; failed=1; return; }
  timeout "$t" "$@" >"$OUT/$name.log" 2>&1 || { failed=1; echo "FAILED: $name"; }
  tail -n "${LINES_OF:-8}" "$OUT/$name.log" | cut -c1-180; echo "== $name, $((SECONDS - start)) s"; }
tests="-m pytest -q --maxfail=4 --tb=short --no-header -p no:cacheprovider"
moe='import sys, bench_moe; bench_moe.main()'
forced='import sys, wisp_runtime.ops.cuda.moe.stream_experts as s; s.MAX_STREAM_TOKENS = 64; s.max_stream_tokens = lambda _: 64; import bench_moe; bench_moe.main()'
decode='from wisp_runtime.cli.main import main; main()'
oss="--shape gpt-oss-20b --shape gpt-oss-120b --format mxfp4 --format mxfp4_fields"
fp8="--shape qwen3-30b-a3b --shape qwen3.6-35b-a3b --format fp8_block"
bench() { local name=$1 until=$2; shift 2; stage "$name" "$until" $py -c "$decode" bench decode --decode-path general --context 512 --steps 48 --json "$OUT/$name.json" "$@"; }

stage tests 22 $py $tests tests/gpu/moe/test_stream_experts.py tests/gpu/gemm/test_pack_quantized.py tests/gpu/moe/test_mixture.py -k "stream or mxfp4"
LINES_OF=40 stage gemms 36 $py -c "$moe" "$OUT/gemms.json" $oss --tokens 1 --tokens 8 --tokens 32 --stage gate_up --stage down --stage both
LINES_OF=8 stage gemms-fp8 42 $py -c "$moe" "$OUT/gemms-fp8.json" $fp8 --tokens 1 --tokens 8 --tokens 16 --tokens 32 --stage both
LINES_OF=12 stage forced 50 $py -c "$forced" "$OUT/forced.json" $oss --tokens 16 --tokens 32 --tokens 64 --stage both
bench decode-20b 58 --shape gpt-oss-20b --batch 1,8,32

# The patches in a copy of the tree; cubins of what they change beside main's.
kernels=${WISP_KERNELS:-${XDG_CACHE_HOME:-$HOME/.cache}/wisp/kernels}; copy=/tmp/mxfp4-tree; rm -rf $copy /tmp/mxfp4-kernels
mkdir -p $copy && cp -r runtime operator tests kernels pyproject.toml $copy && cp -r "$kernels" /tmp/mxfp4-kernels && cp "$BESIDE"/mxfp4.cubins/*.cubin /tmp/mxfp4-kernels
cd $copy && for each in "$BESIDE"/mxfp4.patches/*.patch; do patch -s -p1 <"$each" || git apply "$each" || { echo "FAILED: $each"; exit 1; }; done
export WISP_KERNELS=/tmp/mxfp4-kernels
stage patched-tests 68 $py $tests tests/gpu/moe/test_stream_experts.py tests/gpu/moe/test_gpt_oss_model.py
LINES_OF=16 stage patched-gemms 76 $py -c "$forced" "$OUT/patched-gemms.json" $oss --tokens 1 --tokens 8 --tokens 32 --stage both
LINES_OF=8 stage patched-fp8 82 $py -c "$forced" "$OUT/patched-fp8.json" $fp8 --tokens 1 --tokens 8 --tokens 16 --tokens 32 --stage both
bench patched-20b 90 --shape gpt-oss-20b --batch 1,8,32
bench patched-120b 118 --shape gpt-oss-120b --batch 1,8,32
[ $failed = 0 ] && echo "mxfp4: all passed" || { echo "mxfp4: FAILURES"; exit 1; }
