// w8a8_rows.cuh: GEMM Y = X W^T with E4M3 weights and activations, a scale a row of each, for many tokens.
//
// While the tensor cores multiply a step the fragments of the next are made, in other registers. The tensor cores add
// in 14 bits, which loses most where all terms have one sign: sums leave them every kPromoted steps, in float32 or,
// where registers are too few, f16. That costs 5 to 12 % of the rate beside never; one a step cost 20 %.
#pragma once

#include <cuda_fp16.h>

#include <type_traits>

#include "w8a8_fragments.cuh"

template <int kCount>
__device__ __forceinline__ void clear(float (&sums)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; i++) sums[i] = 0.f;
}

// Sums that have left the tensor cores, in float32.
template <int kCount>
struct WideSums {
  static constexpr int kPromoted = 8;  // steps of 128 columns
  float held[kCount];

  __device__ __forceinline__ void clear() { ::clear(held); }
  __device__ __forceinline__ void add(const float (&sums)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount; i++) held[i] += sums[i];
  }
  __device__ __forceinline__ void add_to(float (&sums)[kCount]) const {
#pragma unroll
    for (int i = 0; i < kCount; i++) sums[i] += held[i];
  }
};

// The same in units of 2^17 in f16, which has the range of 32,768 terms of E4M3 by E4M3, and 11 bits of each sum.
template <int kCount>
struct PackedSums {
  static constexpr int kPromoted = 16;
  static constexpr float kUnit = 0x1p17f;
  __half2 held[kCount / 2];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < kCount / 2; i++) held[i] = __half2(0.f, 0.f);
  }
  __device__ __forceinline__ void add(const float (&sums)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount / 2; i++) {
      const float2 before = __half22float2(held[i]);
      held[i] = __floats2half2_rn(fmaf(sums[2 * i], 1 / kUnit, before.x), fmaf(sums[2 * i + 1], 1 / kUnit, before.y));
    }
  }
  __device__ __forceinline__ void add_to(float (&sums)[kCount]) const {
#pragma unroll
    for (int i = 0; i < kCount / 2; i++) {
      const float2 before = __half22float2(held[i]);
      sums[2 * i] = fmaf(before.x, kUnit, sums[2 * i]), sums[2 * i + 1] = fmaf(before.y, kUnit, sums[2 * i + 1]);
    }
  }
};

// Sum over the tile's K-range.
template <int kTokens>
__device__ __forceinline__ void multiply_rows(float (&sums)[kTokens / 2], const GemmTile& tile,
                                              const QuantizedArgs& quantized, const Pipelines& pipelines,
                                              PipelineState& weight, PipelineState& token, int warpgroup) {
  using Promoted = std::conditional_t<(kTokens > 128), PackedSums<kTokens / 2>, WideSums<kTokens / 2>>;
  const QuantizedRing& tokens = pipelines.tokens;
  WeightFragments<false> even, odd;
  int k = tile.k_begin, before = -1;  // the stage whose tokens are still multiplied, -1: none
  auto release = [&] {
    if (threadIdx.x % 32 == 0 && before >= 0) mbarrier_arrive(tokens.empty + before * 8);
  };
  auto step = [&](WeightFragments<false>& now, WeightFragments<false>& next) {
    mbarrier_wait(tokens.full + token.stage * 8, token.parity);
    const uint32_t box = tokens.data + token.stage * tokens.stage_bytes;
    now.complete();
    wgmma_registers(sums);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < 4; i++) wgmma_e4m3<kTokens>(sums, now.a[i], wgmma_descriptor(box + i * 32));
    wgmma_commit();
    const int stage = token.stage;
    token.advance(tokens.stages);
    wgmma_wait<1>();
    release();
    before = stage;
    if (++k < tile.k_end) next.load(quantized, pipelines.weights, weight, warpgroup);
  };
  Promoted promoted;
  promoted.clear();
  even.load(quantized, pipelines.weights, weight, warpgroup);
  while (true) {
    clear(sums);
#pragma unroll 1
    for (int pair = 0; pair < Promoted::kPromoted / 2 && k < tile.k_end; pair++) {
      step(even, odd);
      if (k < tile.k_end) step(odd, even);
    }
    wgmma_wait<0>();
    wgmma_registers(sums);
    release();
    before = -1;
    if (k >= tile.k_end) break;
    promoted.add(sums);
  }
  promoted.add_to(sums);
}

// The activations' scale of each token, for the sums of a tile.
template <int kTokens>
__device__ __forceinline__ void scale_tokens(float (&sums)[kTokens / 2], const float* scales, int first) {
#pragma unroll
  for (int group = 0; group < kTokens / 8; group++) {
    const float2 two = __ldcg(reinterpret_cast<const float2*>(scales + first + group * 8 + threadIdx.x % 4 * 2));
    sums[group * 4] *= two.x, sums[group * 4 + 1] *= two.y;
    sums[group * 4 + 2] *= two.x, sums[group * 4 + 3] *= two.y;
  }
}

// A method of multiplying, for linear_quantized.cuh.
struct W8a8Rows {
  static constexpr bool kHasBlockScales = false;
  static constexpr int kWeightLoaders = 2;  // one warp that loads both row tiles is too slow
  static constexpr float kFactor = 1.f;

  template <int kTokens>
  __device__ static __forceinline__ void load(const CUtensorMap* map, const GemmArgs& args,
                                              const QuantizedArgs& quantized, const Pipelines& pipelines) {
    load_tokens<kTokens, 1, false>(map, args, quantized, pipelines);
  }
  template <int kTokens>
  __device__ static __forceinline__ void multiply(float (&sums)[kTokens / 2], const GemmTile& tile,
                                                  const QuantizedArgs& quantized, const Pipelines& pipelines,
                                                  PipelineState& weight, PipelineState& token, int warpgroup) {
    multiply_rows<kTokens>(sums, tile, quantized, pipelines, weight, token, warpgroup);
  }
  template <int kTokens>
  __device__ static __forceinline__ void finish(float (&sums)[kTokens / 2], const QuantizedArgs& quantized, int first) {
    scale_tokens<kTokens>(sums, quantized.token_scales, first);
  }
};
