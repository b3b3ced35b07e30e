// dequantize_kv.cu: blocks of a quantized cache to bf16, for prefill attention.
//
//   keys, values : [P, Hkv, Tb, bytes of a row]     tables : [B, W] int32     runs : [C] BlockRun, ascending
//   k, v : [E, Hkv, Tb, Dh] bf16, rotated back; E is the number of blocks of all runs
//   math : float32; values times the layer's scale, rounded once
//   grid : (ceil(2 E * Hkv * Tb * lanes / 128), 1, 1)    block : (128, 1, 1)    shared : none
//   needs: Dh % 16 == 0, Dh <= 256, Tb % 16 == 0; 16-byte aligned arrays (ops/cuda/kv_cache/quantized_kv.py checks)
//   check: tests/gpu/kv_cache/test_quantized_kv.py against ops/reference/kv_cache/, max |err| 2^-7 of the row
#include "kv_cache/rows.cuh"
#include "sync/pdl.cuh"

constexpr int kThreads = WISP_KV_THREADS;

// Blocks of one sequence, one after another in k and v; as ops/cuda/attention/prefill_rounds.py fills it.
struct BlockRun {
  int sequence;  // row of the block tables
  int column;    // first block in that row
  int first;     // block of k and v that it becomes
  int blocks;
};

// Return the place in `tables` of block `entry` of k and v.
__device__ __forceinline__ int64_t table_place(const BlockRun* runs, int run_count, int table_width, int entry) {
  int low = 0;  // the run that holds the entry is this or a later one, before `high`
  for (int high = run_count; high - low > 1;) {
    const int middle = (low + high) / 2;
    if (runs[middle].first <= entry) {
      low = middle;
    } else {
      high = middle;
    }
  }
  const BlockRun run = runs[low];
  return static_cast<int64_t>(run.sequence) * table_width + run.column + entry - run.first;
}

template <class Format>
__device__ __forceinline__ void dequantize(const uint8_t* keys, const uint8_t* values, const int* tables,
                                           int table_width, const BlockRun* runs, bf16* k, bf16* v, int run_count,
                                           int count, float k_scale, float v_scale, const RowShape& shape) {
  // 1. The row of this thread.
  pdl_launch_dependents();
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x, row = index / shape.lanes;
  const int unit = static_cast<int>(index % shape.lanes), offset = static_cast<int>(row % shape.block_tokens);
  const int head = static_cast<int>(row / shape.block_tokens % shape.kv_heads);
  const int64_t part = row / shape.block_tokens / shape.kv_heads;
  const bool is_value = part % 2;
  const int entry = static_cast<int>(part / 2);
  const bool exists = entry < count && unit * kGroupChannels < shape.head_size;
  pdl_wait();

  // 2. Decode its 16 channels.
  float x[kGroupChannels] = {};
  if (exists) {
    const QuantizedRow<Format> coded(tables[table_place(runs, run_count, table_width, entry)], head, offset, shape);
    const uint8_t* cache = is_value ? values : keys;
    Codes<Format::kBits> codes;
    codes.load(cache + coded.codes + unit * Codes<Format::kBits>::kBytes);
    if constexpr (Format::kHasScale) codes.scale = cache[coded.scales + unit];
    uint32_t pairs[kGroupChannels / 2];
    Format::decode(codes, false, pairs);
#pragma unroll
    for (int i = 0; i < kGroupChannels / 2; i++) {
      const float2 two = from_f16x2(pairs[i]);
      x[2 * i] = two.x, x[2 * i + 1] = two.y;
    }
  }

  // 3. Rotate back, and scale.
  if constexpr (Format::kIsRotated) rotate_row(x, unit, shape);
  if (!exists) return;
  const float scale = is_value ? v_scale : k_scale;
#pragma unroll
  for (int i = 0; i < kGroupChannels; i++) x[i] *= scale;
  store_group((is_value ? v : k) + plain_row(entry, head, offset, shape) + unit * kGroupChannels, x);
}

#define DEQUANTIZE_KV(name, format)                                                                               \
  extern "C" __global__ void __launch_bounds__(kThreads)                                                          \
      name(const uint8_t* keys, const uint8_t* values, const int* tables, int table_width, const BlockRun* runs,  \
           bf16* k, bf16* v, int run_count, int count, float k_scale, float v_scale, RowShape shape) {            \
    dequantize<format>(keys, values, tables, table_width, runs, k, v, run_count, count, k_scale, v_scale, shape); \
  }

DEQUANTIZE_KV(dequantize_kv_fp8, Fp8)
DEQUANTIZE_KV(dequantize_kv_turbo8, Turbo8)
DEQUANTIZE_KV(dequantize_kv_nvfp4, NvFp4)
DEQUANTIZE_KV(dequantize_kv_turbo4, Turbo<4>)
DEQUANTIZE_KV(dequantize_kv_turbo3, Turbo<3>)
