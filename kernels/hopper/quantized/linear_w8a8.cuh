// linear_w8a8.cuh: GEMM Y = X W^T with E4M3 weights and activations, for many tokens; twice bf16's rate.
//
// Pipelines and tiles are those of linear_quantized.cuh; a stage of tokens is 128 columns of E4M3. quantize_tokens.cu
// has stored the 16 columns of a group so that a lane's codes of weights, four of a row to a word, meet them: columns
// 2 p, 2 p + 1, 8 + 2 p, 9 + 2 p are neighbours. Every 128 columns sums leave the tensor cores' 14 bits for float32:
// with kBlocks times the scale of 128 activations of a token and that of eight rows of weights; else activations have a
// scale a token, applied at the end. kTokens are multiplied kPart at a time.
#pragma once

#include "linear_quantized.cuh"
#include "mma/wgmma_e4m3.cuh"

// Load codes of tokens, and of blocks their scales: floats [k tile][token_stride].
template <int kTokens, bool kBlocks>
__device__ __forceinline__ void load_token_codes(const CUtensorMap* map, const GemmArgs& args,
                                                 const QuantizedArgs& quantized, const Pipelines& pipelines) {
  const QuantizedRing& ring = pipelines.tokens;
  tma_prefetch_map(map);
  TileScheduler schedule(args);
  PipelineState state(1);
  pdl_wait();
#pragma unroll 1
  for (GemmTile tile; schedule.next(tile);) {
#pragma unroll 1
    for (int k = tile.k_begin; k < tile.k_end; k++) {
      const uint32_t full = ring.full + state.stage * 8;
      mbarrier_wait(ring.empty + state.stage * 8, state.parity);
      mbarrier_arrive_expect(full, kTokens * (kBlocks ? 132 : 128));
      tma_load_2d(ring.data + state.stage * ring.stage_bytes, map, k * 64, tile.n_tile * kTokens, full, kEvictNormal);
      if (kBlocks) {
        const float* from =
            quantized.token_scales + static_cast<size_t>(k) * quantized.token_stride + tile.n_tile * kTokens;
        bulk_load(pipelines.token_scales + state.stage * kTokens * 4, from, kTokens * 4, full, kEvictNormal);
      }
      state.advance(ring.stages);
    }
  }
}

// Add kPart tokens' sums of 128 columns, times their scales if there are any.
template <int kPart, bool kBlocks>
__device__ __forceinline__ void promote(float* sums, const float (&part)[kPart / 2], uint32_t token_scales,
                                        const float (&row_scales)[2]) {
#pragma unroll
  for (int group = 0; group < kPart / 8; group++) {
    float of_token[2] = {1.f, 1.f};
    if constexpr (kBlocks) {
      const uint2 two = codec::load_words2(token_scales + group * 32 + threadIdx.x % 4 * 8);
      of_token[0] = __uint_as_float(two.x), of_token[1] = __uint_as_float(two.y);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int at = group * 4 + i;
      if constexpr (kBlocks) {
        sums[at] += part[at] * (of_token[i % 2] * row_scales[i / 2]);
      } else {
        sums[at] += part[at];
      }
    }
  }
}

// A warp's codes of a tile of weights, and their scales.
template <bool kBlocks>
struct WeightCodes {
  uint32_t q[16];
  float scales[2] = {1.f, 1.f};

  // Wait for the next tile, take its codes, and give its stage back.
  __device__ __forceinline__ void load(const QuantizedArgs& quantized, const QuantizedRing& weights,
                                       PipelineState& weight, int warpgroup) {
    const uint32_t slot = slot_bytes<kBlocks>(quantized);
    const int warp = threadIdx.x / 32 % 4;
    mbarrier_wait(weights.full + weight.stage * 8, weight.parity);
    const uint32_t rows = weights.data + weight.stage * weights.stage_bytes + warpgroup * slot;
    codec::load_codes(q, rows + warp * 2048);
    if constexpr (kBlocks) {
      const uint2 two = codec::load_words2(rows + slot - 128 + warp * 8);
      scales[0] = __uint_as_float(two.x), scales[1] = __uint_as_float(two.y);
    }
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(weights.empty + weight.stage * 8);
    weight.advance(weights.stages);
  }
};

// Sum over the tile's K-range. The next tile's codes are loaded while the tensor cores work, where registers suffice.
template <int kTokens, int kPart, bool kBlocks>
__device__ __forceinline__ void multiply_w8a8(float (&sums)[kTokens / 2], const GemmTile& tile,
                                              const QuantizedArgs& quantized, const Pipelines& pipelines,
                                              PipelineState& weight, PipelineState& token, int warpgroup) {
  const QuantizedRing& tokens = pipelines.tokens;
  const bool releases = threadIdx.x % 32 == 0;
#pragma unroll
  for (int i = 0; i < kTokens / 2; i++) sums[i] = 0.f;
  WeightCodes<kBlocks> codes;
  if constexpr (!kBlocks) codes.load(quantized, pipelines.weights, weight, warpgroup);
#pragma unroll 1
  for (int k = tile.k_begin; k < tile.k_end; k++) {
    if constexpr (kBlocks) codes.load(quantized, pipelines.weights, weight, warpgroup);
    uint32_t a[4][4];
#pragma unroll
    for (int i = 0; i < 8; i++) {
      a[i / 2][i % 2 * 2] = __byte_perm(codes.q[2 * i], codes.q[2 * i + 1], 0x5410);
      a[i / 2][i % 2 * 2 + 1] = __byte_perm(codes.q[2 * i], codes.q[2 * i + 1], 0x7632);
    }
    const float scales[2] = {codes.scales[0], codes.scales[1]};
    mbarrier_wait(tokens.full + token.stage * 8, token.parity);
    const uint32_t box = tokens.data + token.stage * tokens.stage_bytes;
    const uint32_t token_scales = pipelines.token_scales + token.stage * kTokens * 4;
#pragma unroll
    for (int part = 0; part < kTokens / kPart; part++) {
      float sums_of_part[kPart / 2];
#pragma unroll
      for (int i = 0; i < 16; i++) asm volatile("" : "+r"(a[i / 4][i % 4])::"memory");
      wgmma_fence();
      wgmma_e4m3_first<kPart>(sums_of_part, a[0], wgmma_descriptor(box + part * kPart * 128));
#pragma unroll
      for (int i = 1; i < 4; i++) {
        wgmma_e4m3<kPart>(sums_of_part, a[i], wgmma_descriptor(box + part * kPart * 128 + i * 32));
      }
      wgmma_commit();
      if (!kBlocks && part == kTokens / kPart - 1 && k + 1 < tile.k_end) {
        codes.load(quantized, pipelines.weights, weight, warpgroup);
      }
      wgmma_wait<0>();
      wgmma_registers(sums_of_part);
      promote<kPart, kBlocks>(sums + part * kPart / 2, sums_of_part, token_scales + part * kPart * 4, scales);
    }
    __syncwarp();
    if (releases) mbarrier_arrive(tokens.empty + token.stage * 8);
    token.advance(tokens.stages);
  }
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

template <int kPart, bool kBlocks>
struct W8a8 {
  static constexpr bool kHasBlockScales = kBlocks;
  static constexpr float kFactor = 1.f;

  template <int kTokens>
  __device__ static __forceinline__ void load(const CUtensorMap* map, const GemmArgs& args,
                                              const QuantizedArgs& quantized, const Pipelines& pipelines) {
    load_token_codes<kTokens, kBlocks>(map, args, quantized, pipelines);
  }
  template <int kTokens>
  __device__ static __forceinline__ void multiply(float (&sums)[kTokens / 2], const GemmTile& tile,
                                                  const QuantizedArgs& quantized, const Pipelines& pipelines,
                                                  PipelineState& weight, PipelineState& token, int warpgroup) {
    multiply_w8a8<kTokens, kPart, kBlocks>(sums, tile, quantized, pipelines, weight, token, warpgroup);
  }
  template <int kTokens>
  __device__ static __forceinline__ void finish(float (&sums)[kTokens / 2], const QuantizedArgs& quantized, int first) {
    if constexpr (!kBlocks) scale_tokens<kTokens>(sums, quantized.token_scales, first);
  }
};
