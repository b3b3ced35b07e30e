// quantize_kv.cu: keys and values of a step's tokens, from bf16 to a quantized cache.
//
//   k, v : [ceil(N / Tb), Hkv, Tb, Dh] bf16, token t in block t / Tb at t % Tb
//   slots : [N] int64, block * Tb + offset; -1 writes nothing     keys, values : [P, Hkv, Tb, bytes of a row]
//   math : float32, as ops/reference/kv_cache/ defines it
//   grid : (ceil(2 N * Hkv * lanes / 128), 1, 1)    block : (128, 1, 1)    shared : none
//   needs: Dh % 16 == 0, Dh <= 256, Tb % 16 == 0; 16-byte aligned arrays (ops/cuda/kv_cache/quantized_kv.py checks)
//   check: tests/gpu/kv_cache/test_quantized_kv.py against ops/reference/kv_cache/, 1 code of 1,000 may differ by one
#include "kv_cache/rows.cuh"
#include "sync/pdl.cuh"

constexpr int kThreads = WISP_KV_THREADS;

template <class Format>
__device__ __forceinline__ void quantize(const bf16* k, const bf16* v, const int64_t* slots, uint8_t* keys,
                                         uint8_t* values, int tokens, float k_scale, float v_scale,
                                         const RowShape& shape) {
  // 1. The row of this thread, and its 16 channels.
  pdl_launch_dependents();
  const int index = blockIdx.x * kThreads + threadIdx.x, row = index / shape.lanes, unit = index % shape.lanes;
  const int head = row % shape.kv_heads, token = row / shape.kv_heads / 2;
  const bool is_value = row / shape.kv_heads % 2, exists = token < tokens && unit * kGroupChannels < shape.head_size;
  pdl_wait();
  float x[kGroupChannels] = {};
  int64_t slot = -1;
  if (exists) {
    slot = slots[token];
    const int block = token / shape.block_tokens;
    load_group(
        (is_value ? v : k) + plain_row(block, head, token - block * shape.block_tokens, shape) + unit * kGroupChannels,
        x);
  }

  // 2. Code them.
  if constexpr (Format::kIsRotated) rotate_row(x, unit, shape);
  if (slot < 0) return;
  Codes<Format::kBits> codes;
  Format::encode(x, is_value ? v_scale : k_scale, codes);
  const int block = static_cast<int>(slot / shape.block_tokens), offset = static_cast<int>(slot % shape.block_tokens);
  const QuantizedRow<Format> to(block, head, offset, shape);
  uint8_t* cache = is_value ? values : keys;
  codes.store(cache + to.codes + unit * Codes<Format::kBits>::kBytes);
  if constexpr (Format::kHasScale) cache[to.scales + unit] = static_cast<uint8_t>(codes.scale);
}

#define QUANTIZE_KV(name, format)                                                                          \
  extern "C" __global__ void __launch_bounds__(kThreads)                                                   \
      name(const bf16* k, const bf16* v, const int64_t* slots, uint8_t* keys, uint8_t* values, int tokens, \
           float k_scale, float v_scale, RowShape shape) {                                                 \
    quantize<format>(k, v, slots, keys, values, tokens, k_scale, v_scale, shape);                          \
  }

QUANTIZE_KV(quantize_kv_fp8, Fp8)
QUANTIZE_KV(quantize_kv_turbo8, Turbo8)
QUANTIZE_KV(quantize_kv_nvfp4, NvFp4)
QUANTIZE_KV(quantize_kv_turbo4, Turbo<4>)
QUANTIZE_KV(quantize_kv_turbo3, Turbo<3>)
