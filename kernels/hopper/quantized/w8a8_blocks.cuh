// w8a8_blocks.cuh: GEMM Y = X W^T with E4M3 weights and activations where blocks have scales, for many tokens.
//
// Every 128 columns sums leave the tensor cores, times the scale of 128 activations of a token and that of eight rows
// of weights. A tile's tokens are multiplied kPart at a time; while one warpgroup scales the other multiplies.
#pragma once

#include "w8a8_fragments.cuh"

// Add kPart tokens' sums of 128 columns, times their scales. Return a word of the last that were loaded, behind which
// all others have been multiplied.
template <int kPart>
__device__ __forceinline__ uint32_t add_scaled(float* sums, const float (&part)[kPart / 2], uint32_t token_scales,
                                               const float (&row_scales)[2]) {
  uint2 two;
#pragma unroll
  for (int group = 0; group < kPart / 8; group++) {
    two = codec::load_words2(token_scales + group * 32 + threadIdx.x % 4 * 8);
    const float of_token[2] = {__uint_as_float(two.x), __uint_as_float(two.y)};
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int at = group * 4 + i;
      sums[at] += part[at] * (of_token[i % 2] * row_scales[i / 2]);
    }
  }
  return two.x;
}

// Sum over the tile's K-range.
template <int kTokens, int kPart>
__device__ __forceinline__ void multiply_blocks(float (&sums)[kTokens / 2], const GemmTile& tile,
                                                const QuantizedArgs& quantized, const Pipelines& pipelines,
                                                PipelineState& weight, PipelineState& token, int warpgroup) {
  const QuantizedRing& tokens = pipelines.tokens;
  const bool releases = threadIdx.x % 32 == 0;
#pragma unroll
  for (int i = 0; i < kTokens / 2; i++) sums[i] = 0.f;
#pragma unroll 1
  for (int k = tile.k_begin; k < tile.k_end; k++) {
    WeightFragments<true> weights;
    weights.load(quantized, pipelines.weights, weight, warpgroup);
    mbarrier_wait(tokens.full + token.stage * 8, token.parity);
    const uint32_t box = tokens.data + token.stage * tokens.stage_bytes;
    const uint32_t token_scales = pipelines.token_scales + token.stage * kTokens * 4;
    uint32_t loaded = 0;
#pragma unroll
    for (int part = 0; part < kTokens / kPart; part++) {
      float sums_of_part[kPart / 2];
      weights.complete();
      wgmma_fence();
      wgmma_e4m3_first<kPart>(sums_of_part, weights.a[0], wgmma_descriptor(box + part * kPart * 128));
#pragma unroll
      for (int i = 1; i < 4; i++) {
        wgmma_e4m3<kPart>(sums_of_part, weights.a[i], wgmma_descriptor(box + part * kPart * 128 + i * 32));
      }
      wgmma_commit();
      wgmma_wait<0>();
      wgmma_registers(sums_of_part);
      loaded =
          add_scaled<kPart>(sums + part * kPart / 2, sums_of_part, token_scales + part * kPart * 4, weights.scales);
    }
    __syncwarp();
    if (releases) mbarrier_arrive_after(tokens.empty + token.stage * 8, loaded);
    token.advance(tokens.stages);
  }
}

// A method of multiplying, for linear_quantized.cuh.
template <int kPart>
struct W8a8Blocks {
  static constexpr bool kHasBlockScales = true;
  static constexpr int kWeightLoaders = 1;
  static constexpr float kFactor = 1.f;

  template <int kTokens>
  __device__ static __forceinline__ void load(const CUtensorMap* map, const GemmArgs& args,
                                              const QuantizedArgs& quantized, const Pipelines& pipelines) {
    load_tokens<kTokens, 1, true>(map, args, quantized, pipelines);
  }
  template <int kTokens>
  __device__ static __forceinline__ void multiply(float (&sums)[kTokens / 2], const GemmTile& tile,
                                                  const QuantizedArgs& quantized, const Pipelines& pipelines,
                                                  PipelineState& weight, PipelineState& token, int warpgroup) {
    multiply_blocks<kTokens, kPart>(sums, tile, quantized, pipelines, weight, token, warpgroup);
  }
  template <int kTokens>
  __device__ static __forceinline__ void finish(float (&)[kTokens / 2], const QuantizedArgs&, int) {}
};
