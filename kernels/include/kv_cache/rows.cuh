// rows.cuh: a row of keys or values (a token, a head), 16 channels a thread: place in a cache, rotation.
//
// `lanes` threads of one warp hold a row: the power of two that holds its groups of 16, rounded up.
#pragma once

#include "kv_cache/codes.cuh"
#include "math/reduce.cuh"

// By value, as ops/cuda/kv_cache/quantized_kv.py fills it.
struct RowShape {
  int kv_heads, head_size, block_tokens, lanes;
  int run;                // channels that the rotation mixes: the largest power of two that divides Dh
  float rotation_factor;  // 1 / sqrt(run)
};

// Bytes of a quantized cache [P, Hkv, Tb, bytes of a row]: of a head's block the codes of all rows, then their scales.
template <class Format>
struct QuantizedRow {
  int64_t codes, scales;  // offsets of the row's first

  __device__ __forceinline__ QuantizedRow(int block, int head, int offset, const RowShape& shape) {
    const int code_bytes = shape.head_size * Format::kBits / 8, scale_bytes = scales_of(shape.head_size);
    const int64_t first = static_cast<int64_t>(block) * shape.kv_heads + head;
    const int64_t start = first * shape.block_tokens * (code_bytes + scale_bytes);
    codes = start + offset * code_bytes;
    scales = start + shape.block_tokens * code_bytes + offset * scale_bytes;
  }
  __device__ __forceinline__ static int scales_of(int channels) {
    return Format::kHasScale ? channels / kGroupChannels : 0;
  }
};

// First element of a row of a bf16 cache [P, Hkv, Tb, Dh].
__device__ __forceinline__ int64_t plain_row(int block, int head, int offset, const RowShape& shape) {
  const int64_t first = static_cast<int64_t>(block) * shape.kv_heads + head;
  return (first * shape.block_tokens + offset) * shape.head_size;
}

// Transform each run of the row's channels; `unit` is the thread's group of 16. Called by whole warps.
__device__ __forceinline__ void rotate_row(float (&x)[kGroupChannels], int unit, const RowShape& shape) {
#pragma unroll
  for (int distance = 1; distance < kGroupChannels; distance *= 2) {
#pragma unroll
    for (int i = 0; i < kGroupChannels; i++) {
      if (i & distance) continue;
      const float low = x[i], high = x[i + distance];
      x[i] = low + high, x[i + distance] = low - high;
    }
  }
  for (int distance = 1; distance < shape.run / kGroupChannels; distance *= 2) {
#pragma unroll
    for (int i = 0; i < kGroupChannels; i++) {
      const float other = __shfl_xor_sync(kWholeWarp, x[i], distance);
      x[i] = unit & distance ? other - x[i] : x[i] + other;
    }
  }
#pragma unroll
  for (int i = 0; i < kGroupChannels; i++) x[i] *= shape.rotation_factor;
}

__device__ __forceinline__ void load_group(const bf16* from, float (&x)[kGroupChannels]) {
  float half[8];
#pragma unroll
  for (int part = 0; part < 2; part++) {
    load8(from + 8 * part, half);
#pragma unroll
    for (int i = 0; i < 8; i++) x[8 * part + i] = half[i];
  }
}

__device__ __forceinline__ void store_group(bf16* to, const float (&x)[kGroupChannels]) {
#pragma unroll
  for (int part = 0; part < 2; part++) {
    store16(to + 8 * part,
            make_uint4(pack_bf16(x[8 * part], x[8 * part + 1]), pack_bf16(x[8 * part + 2], x[8 * part + 3]),
                       pack_bf16(x[8 * part + 4], x[8 * part + 5]), pack_bf16(x[8 * part + 6], x[8 * part + 7])));
  }
}
