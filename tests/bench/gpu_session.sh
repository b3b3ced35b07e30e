#!/usr/bin/env bash
# What is proved and measured on a GPU, stage by stage, in a session of limited time:
#
#   bash tests/bench/gpu_session.sh build tests parity bench        from the repository's root
#   bash tests/bench/gpu_session.sh --list                          the stages
#
# A stage that fails or runs out of time stops nothing. Logs, records and pictures go to $OUT (default: a folder
# under /tmp) as logs.tar.gz and records.tar.gz, after each stage again; a summary is printed at the end.
#
#   OUT       where results go                     BUDGET_S   seconds for everything (default 570)
#   COMMIT    for the records, without .git        SHAPE      of the bench stages (default llama-3-8b)
#   PYTHON    default python3                      WISP_SMOLLM2   a SmolLM2 checkpoint, for parity
#
# Where packages are missing, wheels in .whl/ are used: serving needs fastapi starlette pydantic pydantic_core
# annotated_types uvicorn httptools.
set -u
cd "$(dirname "$0")/../.."

PYTHON=${PYTHON:-python3} SHAPE=${SHAPE:-llama-3-8b} BUDGET_S=${BUDGET_S:-570}
OUT=${OUT:-/tmp/wisp-gpu-session} WORK=${WORK:-$(mktemp -d /tmp/wisp-gpu-XXXXXX)}
CHECKPOINT=${CHECKPOINT:-/tmp/wisp-checkpoints/$SHAPE}  # written once, for this session and the next
COMMIT=${COMMIT:-$(git rev-parse --short HEAD 2>/dev/null || echo unknown)}
KERNEL_TESTS="device embedding norms gather_rows rope_write_kv pack pack_quantized linear linear_splits linear_rotary portable_linear portable_quantized quantized_linear w8a8_linear decode_attention prefill_attention attention_variants gate_heads activation scaling router sort_pairs mixture wide_experts stream_experts combine causal_conv delta_decode delta_prefill delta_net gated_norm mamba quantized_kv quantized_attention kv_model sampling persistent_decode persistent_formats persistent_kv persistent_experts persistent_gpt_oss persistent_hybrid persistent_hybrid_experts"
ENGINE_TESTS="loading quantized_models mixture_models gpt_oss_model hybrid_model preflight engine deterministic deterministic_families grammars pooling"
export PYTHONPATH="$PWD/runtime:$PWD/operator:$PWD/tests/bench${PYTHONPATH:+:$PYTHONPATH}"
export PYTHONUNBUFFERED=1 WISP_KERNELS=${WISP_KERNELS:-/tmp/wisp-kernels}
mkdir -p "$OUT" "$WORK/logs" "$WORK/records"

expand() {  # a group's stages, or the stage itself
  case $1 in
    all) expand build; expand tests; expand parity; expand bench; expand formats; expand profile; expand sanitizer ;;
    tests) echo "$KERNEL_TESTS $ENGINE_TESTS" ;;
    parity) echo "test_parity gates pooling_parity" ;;
    bench) echo "decode decode-long decode-kv decode-wide first-token first-cached first-kv prefill memory memory-formats kv-capacity small startup serving fairness torch" ;;
    formats) echo "decode-fp8 decode-fp8_block decode-int8 decode-int4 decode-head-fp8 decode-mxfp4 decode-nvfp4 first-token-fp8 prefill-fp8 first-token-int4 prefill-int4" ;;
    profile) echo "profile-1 profile-8 profile-64 profile-prefill" ;;
    kernels) echo "kernel-linear kernel-decode_attention kernel-prefill_attention kernel-sampling" ;;
    sanitizer)  # racecheck does not know the persistent kernel's barriers, and takes its steps beyond their time limit
      for test in $KERNEL_TESTS; do
        echo "memcheck-$test"
        [[ $test = persistent_* ]] || echo "racecheck-$test"
      done ;;
    *) echo "$1" ;;
  esac
}

arch() {  # of the GPU here
  nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1 | sed 's/^/sm_/; s/\.//; s/90/90a/'
}
wisp() { env -u WISP_SMOLLM2 "$PYTHON" -c 'from wisp_runtime.cli.main import main; main()' "$@"; }
bench() {  # measurement, name of the record, flags
  local what=$1 name=$2; shift 2
  wisp bench "$what" --name "$name" --json "$WORK/records/$name.json" --commit "$COMMIT" "$@"
}
profile() {  # name, flags
  local name=$1; shift
  wisp profile --shape "$SHAPE" --svg "$WORK/records/$name.svg" --json "$WORK/records/$name.json" --commit "$COMMIT" "$@"
}
tested() { "$PYTHON" -m pytest -q -p no:cacheprovider --durations=3 "$@"; }
sanitized() {  # tool, test: of our kernels; the references, CuPy's and cuBLAS's, would take most of the time
  local flags="" other
  for other in cupy gemm gemv cublas cutlass splitK nvjet widened is_wrong random_bf16_bits; do
    flags="$flags --kernel-name-exclude kns=$other"
  done
  [ "$1" = memcheck ] && flags="$flags --report-api-errors no"  # the driver's noes are answers: ops/cuda/device/kernels.py
  # shellcheck disable=SC2086  # flags are words
  compute-sanitizer --tool "$1" --target-processes all --error-exitcode 86 --print-limit 20 $flags \
    "$PYTHON" -m pytest -q -p no:cacheprovider -p under_sanitizer tests/gpu/*/"test_$2.py"
}
stamp() { "$PYTHON" tests/bench/stamp_record.py "$1" "$2" "bash tests/bench/gpu_session.sh $1"; }  # name, file
kernel_bench() {  # name
  local program=tests/bench/bench_$1.py record=$WORK/records/kernel-$1.json
  if grep -q -e '"--record"' "$program"; then "$PYTHON" "$program" --record "$record"; else "$PYTHON" "$program" "$record"; fi &&
    stamp "kernel-$1" "$record"
}
compared() {  # name, test: with transformers; what they found is a record too
  local lines=$WORK/records/$1.jsonl status
  WISP_TEST_PARITY_JSON=$lines tested -s tests/gpu/*/"test_$2.py"
  status=$?
  [ -s "$lines" ] && stamp "$1" "$lines" && rm "$lines"
  return $status
}
memory() {  # four shapes, a process each: what one holds is no other's
  local shape
  for shape in "$SHAPE" llama-3.2-1b qwen3-4b smollm2-135m; do
    bench memory "memory-$shape" --shape "$shape" --batch 32 --context 4096 || return
  done
}

decode_kv() {  # a long context over each KV format, on the path that all of them take
  local kv
  for kv in bf16 fp8 turbo8 nvfp4 turbo4 turbo3; do
    bench decode "decode-kv-$kv-$SHAPE" --shape "$SHAPE" --batch 1,8,32 --context 7900 --steps 64 \
      --decode-path general --kv-cache-dtype $kv || return
  done
}

memory_formats() {  # of quantized weights: what is predicted is what is allocated
  local shape format
  for shape in "$SHAPE" llama-3.2-1b; do
    for format in fp8 int4 nvfp4; do
      bench memory "memory-$format-$shape" --shape "$shape" --batch 32 --context 4096 --quantization $format || return
    done
  done
}
constrained() {  # steps with a grammar beside steps without
  "$PYTHON" tests/bench/constrained/cost.py --device cuda --shape "$SHAPE" --batch 1,8,32 --prompt 512 --tokens 256 \
    --record "$WORK/records/constrained-$SHAPE.json" && stamp "constrained-$SHAPE" "$WORK/records/constrained-$SHAPE.json"
}
kv_capacity() {
  "$PYTHON" tests/bench/memory/kv_capacity.py "$WORK/records/kv-capacity.json" &&
    stamp kv-capacity "$WORK/records/kv-capacity.json"
}

limit_of() {  # seconds
  case $1 in
    env) echo 30 ;;
    build) echo 300 ;;
    test_parity | gates | memory | memory-formats) echo 240 ;;
    torch | startup | serving | fairness) echo 280 ;;
    decode* | first-token-* | prefill* | small) echo 150 ;;
    racecheck-linear_splits) echo 300 ;;
    memcheck-* | racecheck-*) echo 150 ;;
    *) echo 100 ;;
  esac
}

run() {
  case $1 in
    env) nvidia-smi; nvcc --version | tail -n 2; "$PYTHON" -m pip list 2>/dev/null | grep -Ei "cupy|cuda|numpy|torch|transformers" ;;
    build) wisp kernels build --arch "$(arch)" ;;
    test_parity) compared parity parity ;;
    gates) compared gates gates ;;
    memcheck-*) sanitized memcheck "${1#memcheck-}" ;;
    racecheck-*) sanitized racecheck "${1#racecheck-}" ;;
    decode) bench decode "decode-$SHAPE" --shape "$SHAPE" --batch 1,4,8,16,32,64 --context 512 ;;
    decode-wide) bench decode "decode-wide-$SHAPE" --shape "$SHAPE" --batch 128,256 --context 512 ;;
    decode-long) bench decode "decode-long-$SHAPE" --shape "$SHAPE" --batch 1,16 --context 7900 --steps 128 ;;
    decode-kv) decode_kv ;;
    decode-sampled) bench decode "decode-sampled-$SHAPE" --shape "$SHAPE" --batch 1,32 --temperature 0.8 --top-p 0.95 ;;
    decode-fp8* | decode-int* | decode-mxfp4 | decode-nvfp4)  # a format of the weights, random ones
      bench decode "$1-$SHAPE" --shape "$SHAPE" --quantization "${1#decode-}" --batch 1,8,16,32,64 --context 512 ;;
    decode-head-fp8)  # beside int4
      bench decode "decode-int4-head-fp8-$SHAPE" --shape "$SHAPE" --quantization int4 --head-quantization fp8 \
        --batch 1,8,16,32,64 --context 512 ;;
    first-token-*)
      bench first-token "$1-$SHAPE" --shape "$SHAPE" --quantization "${1#first-token-}" --prompt 128,512,2048,7900 ;;
    prefill-*) bench prefill "$1-$SHAPE" --shape "$SHAPE" --quantization "${1#prefill-}" --batch 16,64 --prompt 512,2048 ;;
    first-token) bench first-token "first-token-$SHAPE" --shape "$SHAPE" --prompt 128,512,2048,7900 ;;
    first-kv)  # over an FP8 cache, and with all but the last 16 tokens in the prefix cache
      bench first-token "first-kv-fp8-$SHAPE" --shape "$SHAPE" --prompt 128,512,7900 --kv-cache-dtype fp8 &&
        bench first-token "first-cached-kv-fp8-$SHAPE" --shape "$SHAPE" --prompt 7016 --cached --kv-cache-dtype fp8 ;;
    first-cached) bench first-token "first-cached-$SHAPE" --shape "$SHAPE" --prompt 7916 --cached ;;
    prefill) bench prefill "prefill-$SHAPE" --shape "$SHAPE" --batch 16,64 --prompt 512,2048 ;;
    startup) bench startup "startup-$SHAPE" --shape "$SHAPE" --checkpoint "$CHECKPOINT" ;;
    serving) bench serving "serving-$SHAPE" --shape "$SHAPE" --checkpoint "$CHECKPOINT" --clients 1,8,32 ;;
    fairness) "$PYTHON" tests/bench/bench_fairness.py cuda --shape "$SHAPE" --record "$WORK/records/fairness-cuda.json" --commit "$COMMIT" ;;
    memory) memory ;;
    memory-formats) memory_formats ;;
    kv-capacity) kv_capacity ;;
    small)
      bench decode decode-smollm2-135m --shape smollm2-135m --batch 1,32 &&
        bench decode decode-llama-3.2-3b --shape llama-3.2-3b --batch 1,8 &&
        bench decode decode-qwen3-8b --shape qwen3-8b --batch 1,8,32 ;;
    constrained) constrained ;;
    torch) bench decode "torch-$SHAPE" --shape "$SHAPE" --batch 1,32 --against torch --steps 128 ;;
    profile-prefill) profile profile-prefill --prompt 2048 ;;
    profile-*) profile "$1" --batch "${1#profile-}" --context 512 ;;
    *)
      if compgen -G "tests/gpu/*/test_$1.py" >/dev/null; then tested tests/gpu/*/"test_$1.py"
      elif [ -f "tests/bench/bench_${1#kernel-}.py" ]; then kernel_bench "${1#kernel-}"
      else echo "no stage $1; see --list" >&2; return 2; fi ;;
  esac
}

if [ "${1:-}" = --list ] || [ $# = 0 ]; then
  for group in env build tests parity bench formats profile kernels sanitizer; do echo "$group: $(expand "$group" | tr '\n' ' ')"; done
  echo "also: decode-sampled, constrained, any tests/gpu/*/test_NAME.py as NAME, any tests/bench/bench_NAME.py as kernel-NAME"
  exit 0
fi
if [ "${1:-}" = --run ]; then run "$2"; exit; fi  # one stage, in a process of its own that timeout can end

if ls .whl/*.whl >/dev/null 2>&1; then
  "$PYTHON" -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target "$WORK/site" .whl/*.whl &&
    export PYTHONPATH="$PYTHONPATH:$WORK/site"
fi
export OUT WORK COMMIT PYTHON SHAPE CHECKPOINT
trap 'rm -rf "$WORK"' EXIT
began=$SECONDS summary=$OUT/summary.txt
echo "commit $COMMIT, $(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null || echo no GPU)" | tee "$summary"
failed=""
for stage in $(for name in "$@"; do expand "$name"; done); do
  left=$((BUDGET_S - (SECONDS - began))) limit=$(limit_of "$stage")
  if [ "$left" -lt 15 ]; then echo "$stage: skipped, no time left" | tee -a "$summary"; continue; fi
  [ "$left" -lt "$limit" ] && limit=$left
  start=$SECONDS log=$WORK/logs/$stage.log
  WORK=$WORK timeout -k 5 "$limit" bash tests/bench/gpu_session.sh --run "$stage" >"$log" 2>&1
  status=$?
  [ $status = 124 ] && echo "ended after its limit of $limit s" >>"$log"
  [ $status = 0 ] || failed="$failed $stage"
  case $stage in
    memcheck-* | racecheck-*)
      "$PYTHON" tests/bench/sanitizer_record.py "$stage" "$log" $status $((SECONDS - start)) \
        "$WORK/records/sanitizer.json" >>"$log" 2>&1 ;;
  esac
  printf '%-28s %s %4d s  %s\n' "$stage" "$([ $status = 0 ] && echo ok || echo "FAILED($status)")" $((SECONDS - start)) \
    "$(grep -v '^$' "$log" | tail -n 1 | cut -c 1-110)" | tee -a "$summary"
  tar -C "$WORK" -czf "$OUT/logs.tar.gz" logs && tar -C "$WORK" -czf "$OUT/records.tar.gz" records
done

for stage in $failed; do
  printf '\n=== %s\n' "$stage"
  grep -v '^$' "$WORK/logs/$stage.log" | tail -n 18 | cut -c 1-220
done | tail -c 6500
for stage in decode decode-wide decode-long first-token first-cached prefill memory small startup serving fairness torch; do
  [ -f "$WORK/logs/$stage.log" ] && grep -hE "decode_step|first_token|prefill_tok|start_|memory_|served_|gap_p" "$WORK/logs/$stage.log" | cut -c 1-150
done | tail -c 4000
[ -z "$failed" ]
