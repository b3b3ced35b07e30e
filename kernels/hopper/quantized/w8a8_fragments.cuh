// w8a8_fragments.cuh: weights in E4M3 as fragments that meet activations in E4M3; w8a8_rows.cuh and w8a8_blocks.cuh
// share them.
//
// A stage of tokens is 128 columns. quantize_tokens.cu has stored the 16 columns of a group so that a lane's codes of
// weights, four of a row to a word, meet them: columns 2 p, 2 p + 1, 8 + 2 p, 9 + 2 p are neighbours.
#pragma once

#include "linear_quantized.cuh"
#include "mma/wgmma_e4m3.cuh"

// A warp's codes of a tile of weights as A fragments, 32 columns each, and the scales of its blocks.
template <bool kBlocks>
struct WeightFragments {
  uint32_t a[4][4];
  float scales[2];

  // Wait for the next tile, take it, and give its stage back.
  __device__ __forceinline__ void load(const QuantizedArgs& quantized, const QuantizedRing& weights,
                                       PipelineState& weight, int warpgroup) {
    const uint32_t slot = slot_bytes<kBlocks>(quantized);
    const int warp = threadIdx.x / 32 % 4;
    mbarrier_wait(weights.full + weight.stage * 8, weight.parity);
    const uint32_t rows = weights.data + weight.stage * weights.stage_bytes + warpgroup * slot;
    uint32_t q[16];
    codec::load_codes(q, rows + warp * 2048);
    if constexpr (kBlocks) {
      const uint2 two = codec::load_words2(rows + slot - 128 + warp * 8);
      scales[0] = __uint_as_float(two.x), scales[1] = __uint_as_float(two.y);
    }
    uint32_t loaded = q[3] ^ q[7] ^ q[11] ^ q[15];
    if constexpr (kBlocks) loaded ^= __float_as_uint(scales[0]);
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive_after(weights.empty + weight.stage * 8, loaded);
    weight.advance(weights.stages);
#pragma unroll
    for (int i = 0; i < 8; i++) {
      a[i / 2][i % 2 * 2] = __byte_perm(q[2 * i], q[2 * i + 1], 0x5410);
      a[i / 2][i % 2 * 2 + 1] = __byte_perm(q[2 * i], q[2 * i + 1], 0x7632);
    }
  }

  // Keep the compiler from moving what makes the fragments past this line.
  __device__ __forceinline__ void complete() {
#pragma unroll
    for (int i = 0; i < 16; i++) asm volatile("" : "+r"(a[i / 4][i % 4])::"memory");
  }
};
