// linear_quantized.cuh: GEMM Y = X W^T with quantized W, for any number of tokens; what linear_<format>.cu instantiate.
//
//   1. Two producer threads fill two pipelines in shared memory: one brings tokens, 64 columns a stage, the other
//      weights, a tile of two row tiles a stage (128 columns of 8 bits, 256 of 4), as they lie in memory. Weights are
//      loaded before the kernel ahead has ended, tokens after.
//   2. A consumer warpgroup takes a row tile: each warp reads its slice, makes A fragments of bf16 in registers, and
//      multiplies them by all tokens (wgmma, A in registers; up to 16 tokens mma.sync). While one warpgroup makes
//      fragments the other multiplies.
//   3. Sums are multiplied by the row scale and leave through the epilogues of ../gemm.
//
// Tiles, split K and epilogues are those of ../gemm/linear.cuh; `k_tiles` counts tiles of weights.
#pragma once

#include <cuda.h>

#include "../gemm/epilogue.cuh"
#include "../gemm/pipeline_state.cuh"
#include "../gemm/rotary_epilogue.cuh"
#include "copy/tma.cuh"
#include "mma/warp_mma.cuh"
#include "mma/wgmma.cuh"
#include "quantized/bf16_codecs.cuh"
#include "sync/mbarrier.cuh"
#include "sync/pdl.cuh"

constexpr int kMaxWeightStages = 16, kMaxTokenStages = 32;
constexpr int kMaxWarpTokens = 16;      // of a tile that warps multiply alone
constexpr int kQuantizedThreads = 384;  // two consumer warpgroups, a warpgroup of producers

struct QuantizedRing {
  uint32_t data, full, empty;  // shared addresses: stages, and two mbarriers a stage
  int stages;
  uint32_t stage_bytes;
};

// The pipelines of a block, and the rest of its shared memory.
struct Pipelines {
  QuantizedRing tokens, weights;
  uint32_t token_scales, staging;
};

// Bytes of a row tile in a stage: the tile, then its block scales; tiling of ops/cuda/gemm/quantized_tiling.py.
template <bool kHasBlockScales>
__device__ __forceinline__ uint32_t slot_bytes(const QuantizedArgs& quantized) {
  return (quantized.tile_bytes + 127) / 128 * 128 + (kHasBlockScales ? 128 : 0);
}

// Load kBoxes boxes of kTokens rows by 128 bytes for each tile of weights.
template <int kTokens, int kBoxes>
__device__ __forceinline__ void load_tokens(const CUtensorMap* map, const GemmArgs& args, const QuantizedRing& ring) {
  tma_prefetch_map(map);
  TileScheduler schedule(args);
  PipelineState state(1);
  pdl_wait();
#pragma unroll 1
  for (GemmTile tile; schedule.next(tile);) {
#pragma unroll 1
    for (int box = tile.k_begin * kBoxes; box < tile.k_end * kBoxes; box++) {
      const uint32_t full = ring.full + state.stage * 8;
      mbarrier_wait(ring.empty + state.stage * 8, state.parity);
      mbarrier_arrive_expect(full, kTokens * 128);
      tma_load_2d(ring.data + state.stage * ring.stage_bytes, map, box * 64, tile.n_tile * kTokens, full, kEvictNormal);
      state.advance(ring.stages);
    }
  }
}

template <bool kHasBlockScales>
__device__ __forceinline__ void load_weights(const GemmArgs& args, const QuantizedArgs& quantized,
                                             const QuantizedRing& ring) {
  TileScheduler schedule(args);
  PipelineState state(1);
  const uint64_t eviction = args.is_read_once ? kEvictFirst : kEvictNormal;
  const unsigned char* weights = reinterpret_cast<const unsigned char*>(args.weight);
  const uint32_t slot = slot_bytes<kHasBlockScales>(quantized);
#pragma unroll 1
  for (GemmTile tile; schedule.next(tile);) {
    const int row_tile = tile.m_tile * 2, there = min(2, (args.rows + 63) / 64 - row_tile);
#pragma unroll 1
    for (int k = tile.k_begin; k < tile.k_end; k++) {
      const uint32_t full = ring.full + state.stage * 8, to = ring.data + state.stage * ring.stage_bytes;
      mbarrier_wait(ring.empty + state.stage * 8, state.parity);
      mbarrier_arrive_expect(full, there * (quantized.tile_bytes + (kHasBlockScales ? 32 : 0)));
      for (int i = 0; i < there;
           i++) {  // past the last row tile a warpgroup multiplies stale memory and stores nothing
        const size_t index = static_cast<size_t>(row_tile + i) * args.k_tiles + k;
        bulk_load(to + i * slot, weights + index * quantized.tile_bytes, quantized.tile_bytes, full, eviction);
        if (kHasBlockScales) {
          bulk_load(to + (i + 1) * slot - 128, quantized.block_scales + index * 8, 32, full, eviction);
        }
      }
      state.advance(ring.stages);
    }
  }
}

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
        __syncwarp();
        if (releases) mbarrier_arrive(weights.empty + weight.stage * 8);
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
#pragma unroll
    for (int box = 0; box < Codec::kSteps / 4; box++) {
      mbarrier_wait(tokens.full + token.stage * 8, token.parity);
      const uint32_t from = tokens.data + token.stage * tokens.stage_bytes;
      uint32_t b[kGroups][2][4];
#pragma unroll
      for (int i = 0; i < kGroups * 2; i++) load_matrices(b[i / 2][i % 2], from + i / 2 * 1024 + chunks[i % 2]);
      __syncwarp();
      if (lane == 0) mbarrier_arrive(tokens.empty + token.stage * 8);
      token.advance(tokens.stages);
#pragma unroll
      for (int i = 0; i < 4; i++) {
        uint32_t a[4];
        codec.step(a, box * 4 + i);
#pragma unroll
        for (int group = 0; group < kGroups; group++) {
          mma_16x8x16((i % 2 ? odd : sums) + group * 4, a, b[group][i / 2] + i % 2 * 2);
        }
      }
    }
    __syncwarp();
    if (lane == 0) mbarrier_arrive(weights.empty + weight.stage * 8);
    weight.advance(weights.stages);
  }
#pragma unroll
  for (int i = 0; i < kTokens / 2; i++) sums[i] += odd[i];
}

// A method of multiplying: bf16 activations by weights that a codec makes bf16.
template <class Codec>
struct Dequantized {
  static constexpr bool kHasBlockScales = Codec::kHasBlockScales;
  static constexpr float kFactor = Codec::kFactor;

  template <int kTokens>
  __device__ static __forceinline__ void load(const CUtensorMap* map, const GemmArgs& args, const QuantizedArgs&,
                                              const Pipelines& pipelines) {
    load_tokens<kTokens, Codec::kSteps / 4>(map, args, pipelines.tokens);
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

template <int kTokens, class Method, class Epilogue>
__device__ __forceinline__ void consume(const GemmArgs& args, const QuantizedArgs& quantized,
                                        const typename Epilogue::Extra& extra, const Pipelines& pipelines,
                                        int warpgroup, int* is_last) {
  TileScheduler schedule(args);
  PipelineState weight(0), token(0);
  float sums[kTokens / 2];
  Epilogue epilogue(pipelines.staging, warpgroup);
  pdl_wait();
#pragma unroll 1
  for (GemmTile tile; schedule.next(tile);) {
    const int row_tile = tile.m_tile * 2 + warpgroup;
    const int row = row_tile * 64 + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
    float bias[2] = {0.f, 0.f}, scale[2] = {0.f, 0.f};
    if (row < args.rows) scale[0] = quantized.row_scales[row] * Method::kFactor;
    if (row + 8 < args.rows) scale[1] = quantized.row_scales[row + 8] * Method::kFactor;
    if (Epilogue::kHasBias && args.bias != nullptr) {
      if (row < args.rows) bias[0] = __bfloat162float(args.bias[row]);
      if (row + 8 < args.rows) bias[1] = __bfloat162float(args.bias[row + 8]);
    }
    Method::template multiply<kTokens>(sums, tile, quantized, pipelines, weight, token, warpgroup);
    const bool is_split = tile.k_end - tile.k_begin < args.k_tiles;
    if (is_split && !combine_partials<kTokens>(sums, tile, args, warpgroup, is_last)) continue;
#pragma unroll
    for (int i = 0; i < kTokens / 2; i++) sums[i] *= scale[i / 2 % 2];
    const int first = tile.n_tile * kTokens;
    Method::template finish<kTokens>(sums, quantized, first);
    epilogue.accept(sums, bias, row_tile, first, min(args.tokens, first + kTokens), warpgroup);
#pragma unroll
    for (int chunk = 0; chunk < Epilogue::kChunks; chunk++) epilogue.store_chunk(chunk, args, extra, warpgroup);
  }
}

template <int kTokens, class Method, class Epilogue>
__device__ __forceinline__ void linear_quantized(const CUtensorMap* map, const GemmArgs& args,
                                                 const QuantizedArgs& quantized,
                                                 const typename Epilogue::Extra& extra) {
  extern __shared__ __align__(1024) unsigned char shared[];
  __shared__ uint64_t full[kMaxWeightStages + kMaxTokenStages], empty[kMaxWeightStages + kMaxTokenStages];
  __shared__ int is_last[2];
  Pipelines pipelines;
  pipelines.tokens = {shared_address(shared), shared_address(full), shared_address(empty), quantized.token_stages,
                      kTokens * 128};
  const QuantizedRing& tokens = pipelines.tokens;
  pipelines.weights = {tokens.data + tokens.stages * tokens.stage_bytes, tokens.full + kMaxTokenStages * 8,
                       tokens.empty + kMaxTokenStages * 8, quantized.weight_stages,
                       2 * slot_bytes<Method::kHasBlockScales>(quantized)};
  const QuantizedRing& weights = pipelines.weights;
  pipelines.token_scales = weights.data + weights.stages * weights.stage_bytes;
  pipelines.staging = pipelines.token_scales + (quantized.token_scales == nullptr ? 0 : tokens.stages * kTokens * 4);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  pdl_launch_dependents();
  if (threadIdx.x == 0) {
    for (int i = 0; i < tokens.stages + weights.stages; i++) {
      const int at = (i < tokens.stages ? i : kMaxTokenStages + i - tokens.stages) * 8;
      mbarrier_init(tokens.full + at, 1);
      mbarrier_init(tokens.empty + at, 8);  // consumers: every warp
    }
    mbarrier_init_fence();
  }
  __syncthreads();
  if (warp >= 8) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (warp == 8 && lane == 0) Method::template load<kTokens>(map, args, quantized, pipelines);
    if (warp == 9 && lane == 0) load_weights<Method::kHasBlockScales>(args, quantized, weights);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    consume<kTokens, Method, Epilogue>(args, quantized, extra, pipelines, warp / 4, is_last + warp / 4);
  }
}

template <int kTokens>
using PlainOut = Bf16Epilogue<kTokens, RowsOut<false>>;
template <int kTokens>
using GatedOut = Bf16Epilogue<kTokens, RowsOut<true>>;
template <int kTokens>
using RotaryHeadsOut = Bf16Epilogue<kTokens, RotaryOut>;

#define QUANTIZED_ENTRY(name, tokens, Method, Epilogue)                                    \
  extern "C" __global__ void __launch_bounds__(kQuantizedThreads, 1)                       \
      name(const __grid_constant__ CUtensorMap map, const __grid_constant__ GemmArgs args, \
           const __grid_constant__ QuantizedArgs quantized) {                              \
    linear_quantized<tokens, Method, Epilogue<tokens>>(&map, args, quantized, {});         \
  }
#define QUANTIZED_ROTARY_ENTRY(name, tokens, Method)                                                    \
  extern "C" __global__ void __launch_bounds__(kQuantizedThreads, 1)                                    \
      name(const __grid_constant__ CUtensorMap map, const __grid_constant__ GemmArgs args,              \
           const __grid_constant__ QuantizedArgs quantized, const __grid_constant__ RotaryArgs heads) { \
    linear_quantized<tokens, Method, RotaryHeadsOut<tokens>>(&map, args, quantized, heads);             \
  }

// The entries of a tile, n<tokens> or w8a8_n<tokens>.
#define QUANTIZED_ENTRIES_OF(suffix, tokens, Method)                       \
  QUANTIZED_ENTRY(linear_##suffix, tokens, Method, PlainOut)               \
  QUANTIZED_ENTRY(linear_swiglu_##suffix, tokens, Method, GatedOut)        \
  QUANTIZED_ENTRY(linear_logits_##suffix, tokens, Method, Float32Epilogue) \
  QUANTIZED_ROTARY_ENTRY(linear_rotary_##suffix, tokens, Method)

// Tiles of BLOCK_N of ops/cuda/gemm/quantized_tiling.py.
#define QUANTIZED_ENTRIES(Method)         \
  QUANTIZED_ENTRIES_OF(n8, 8, Method)     \
  QUANTIZED_ENTRIES_OF(n16, 16, Method)   \
  QUANTIZED_ENTRIES_OF(n32, 32, Method)   \
  QUANTIZED_ENTRIES_OF(n64, 64, Method)   \
  QUANTIZED_ENTRIES_OF(n128, 128, Method) \
  QUANTIZED_ENTRIES_OF(n256, 256, Method)
