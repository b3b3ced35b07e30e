// dequantized.cuh: bf16 activations by weights that a codec makes bf16 in registers, a row tile a warpgroup: each warp
// reads its slice, makes A fragments, and multiplies them by all tokens (wgmma, A in registers; up to 16 tokens
// mma.sync). While one warpgroup makes fragments the other multiplies.
#pragma once

#include "mma/warp_mma.cuh"
#include "mma/wgmma.cuh"
#include "quantized_pipelines.cuh"

constexpr int kMaxWarpTokens = 16;  // of a tile that warps multiply alone

// Sum over the tile's K-range: kBatch steps' fragments are made, then multiplied.
template <int kTokens, class Codec>
__device__ __forceinline__ void multiply_bf16(float (&sums)[kTokens / 2], const GemmTile& tile,
                                              const QuantizedArgs& quantized, const Pipelines& pipelines,
                                              PipelineState& weight, PipelineState& token, int warpgroup) {
  const QuantizedRing &weights = pipelines.weights, &tokens = pipelines.tokens;
  constexpr int kBatch = kTokens > 128 ? 4 : 8;
  const uint32_t slot = slot_bytes<Codec::kHasBlockScales>(quantized);
  const int warp = threadIdx.x / 32 % 4;
  const bool releases = threadIdx.x % 32 == 0;
#pragma unroll
  for (int i = 0; i < kTokens / 2; i++) sums[i] = 0.f;
#pragma unroll 1
  for (int k = tile.k_begin; k < tile.k_end; k++) {
    mbarrier_wait(weights.full + weight.stage * 8, weight.parity);
    const uint32_t rows = weights.data + weight.stage * weights.stage_bytes + warpgroup * slot;
    Codec codec(rows + warp * (quantized.tile_bytes / 4), rows + slot - 128 + warp * 8, quantized);
#pragma unroll
    for (int batch = 0; batch < Codec::kSteps / kBatch; batch++) {
      uint32_t a[kBatch][4];
#pragma unroll
      for (int i = 0; i < kBatch; i++) codec.step(a[i], batch * kBatch + i);
      if (batch == Codec::kSteps / kBatch - 1) {
        uint32_t loaded = 0;  // each load has codes of two steps or more
#pragma unroll
        for (int i = 0; i < kBatch; i += 2) loaded ^= a[i][0];
        __syncwarp();
        if (releases) mbarrier_arrive_after(weights.empty + weight.stage * 8, loaded);
        weight.advance(weights.stages);
      }
      PipelineState first = token;
#pragma unroll
      for (int box = 0; box < kBatch / 4; box++) {
        mbarrier_wait(tokens.full + token.stage * 8, token.parity);
        token.advance(tokens.stages);
      }
#pragma unroll
      for (int i = 0; i < kBatch * 4; i++) asm volatile("" : "+r"(a[i / 4][i % 4])::"memory");
      wgmma_registers(sums);
      wgmma_fence();
      PipelineState now = first;
#pragma unroll
      for (int i = 0; i < kBatch; i++) {
        const uint32_t box = tokens.data + now.stage * tokens.stage_bytes;
        wgmma_rs<kTokens>(sums, a[i], wgmma_descriptor(box + i % 4 * 32));
        if (i % 4 == 3) now.advance(tokens.stages);
      }
      wgmma_commit();
      wgmma_wait<0>();
      wgmma_registers(sums);
#pragma unroll
      for (int box = 0; box < kBatch / 4; box++) {
        if (releases) mbarrier_arrive(tokens.empty + first.stage * 8);
        first.advance(tokens.stages);
      }
    }
  }
}

// The same for few tokens: each warp multiplies its slice by all of them alone (mma.sync), in two chains of sums. The
// tensor cores take a fragment of wgmma too slowly where there are few tokens to share it.
template <int kTokens, class Codec>
__device__ __forceinline__ void multiply_by_warp(float (&sums)[kTokens / 2], const GemmTile& tile,
                                                 const QuantizedArgs& quantized, const Pipelines& pipelines,
                                                 PipelineState& weight, PipelineState& token, int warpgroup) {
  constexpr int kGroups = kTokens / 8;
  const QuantizedRing &weights = pipelines.weights, &tokens = pipelines.tokens;
  const uint32_t slot = slot_bytes<Codec::kHasBlockScales>(quantized);
  const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, row = lane % 8;
  const uint32_t chunks[2] = {row * 128 + (lane / 8 ^ row) * 16u, row * 128 + ((lane / 8 + 4) ^ row) * 16u};
  float odd[kTokens / 2];
#pragma unroll
  for (int i = 0; i < kTokens / 2; i++) sums[i] = odd[i] = 0.f;
#pragma unroll 1
  for (int k = tile.k_begin; k < tile.k_end; k++) {
    mbarrier_wait(weights.full + weight.stage * 8, weight.parity);
    const uint32_t rows = weights.data + weight.stage * weights.stage_bytes + warpgroup * slot;
    Codec codec(rows + warp * (quantized.tile_bytes / 4), rows + slot - 128 + warp * 8, quantized);
    uint32_t a[4];
#pragma unroll
    for (int box = 0; box < Codec::kSteps / 4; box++) {
      mbarrier_wait(tokens.full + token.stage * 8, token.parity);
      const uint32_t from = tokens.data + token.stage * tokens.stage_bytes;
      uint32_t b[kGroups][2][4];
#pragma unroll
      for (int i = 0; i < kGroups * 2; i++) load_matrices(b[i / 2][i % 2], from + i / 2 * 1024 + chunks[i % 2]);
      __syncwarp();
      if (lane == 0) mbarrier_arrive_after(tokens.empty + token.stage * 8, b[kGroups - 1][1][0]);
      token.advance(tokens.stages);
#pragma unroll
      for (int i = 0; i < 4; i++) {
        codec.step(a, box * 4 + i);
#pragma unroll
        for (int group = 0; group < kGroups; group++) {
          mma_16x8x16((i % 2 ? odd : sums) + group * 4, a, b[group][i / 2] + i % 2 * 2);
        }
      }
    }
    __syncwarp();
    if (lane == 0) mbarrier_arrive_after(weights.empty + weight.stage * 8, a[0]);
    weight.advance(weights.stages);
  }
#pragma unroll
  for (int i = 0; i < kTokens / 2; i++) sums[i] += odd[i];
}

// A method of multiplying, for linear_quantized.cuh.
template <class Codec>
struct Dequantized {
  static constexpr bool kHasBlockScales = Codec::kHasBlockScales;
  static constexpr int kWeightLoaders = 1;
  static constexpr float kFactor = Codec::kFactor;

  template <int kTokens>
  __device__ static __forceinline__ void load(const CUtensorMap* map, const GemmArgs& args,
                                              const QuantizedArgs& quantized, const Pipelines& pipelines) {
    load_tokens<kTokens, Codec::kSteps / 4, false>(map, args, quantized, pipelines);
  }
  template <int kTokens>
  __device__ static __forceinline__ void multiply(float (&sums)[kTokens / 2], const GemmTile& tile,
                                                  const QuantizedArgs& quantized, const Pipelines& pipelines,
                                                  PipelineState& weight, PipelineState& token, int warpgroup) {
    if constexpr (kTokens <= kMaxWarpTokens) {
      multiply_by_warp<kTokens, Codec>(sums, tile, quantized, pipelines, weight, token, warpgroup);
    } else {
      multiply_bf16<kTokens, Codec>(sums, tile, quantized, pipelines, weight, token, warpgroup);
    }
  }
  template <int kTokens>
  __device__ static __forceinline__ void finish(float (&)[kTokens / 2], const QuantizedArgs&, int) {}
};
