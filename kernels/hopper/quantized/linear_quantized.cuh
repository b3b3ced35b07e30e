// linear_quantized.cuh: GEMM Y = X W^T with quantized W, for any number of tokens; what linear_<format>.cu instantiate.
//
//   1. Producer threads fill two pipelines in shared memory: tokens, and weights (quantized_pipelines.cuh).
//   2. A consumer warpgroup multiplies a row tile by a tile's tokens (dequantized.cuh, w8a8_rows.cuh,
//      w8a8_blocks.cuh).
//   3. Sums are multiplied by the row scale and leave through the epilogues of ../gemm.
//
// Tiles, split K and epilogues are those of ../gemm/linear.cuh; `k_tiles` counts tiles of weights.
#pragma once

#include "../gemm/epilogue.cuh"
#include "../gemm/rotary_epilogue.cuh"
#include "dequantized.cuh"

constexpr int kQuantizedThreads = 384;  // two consumer warpgroups, a warpgroup of producers

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
  const int warp = threadIdx.x / 32;
  pdl_launch_dependents();
  if (threadIdx.x == 0) {
    for (int i = 0; i < tokens.stages + weights.stages; i++) {
      const int at = (i < tokens.stages ? i : kMaxTokenStages + i - tokens.stages) * 8;
      mbarrier_init(tokens.full + at, i < tokens.stages ? 1 : Method::kWeightLoaders);
      mbarrier_init(tokens.empty + at, 8);  // consumers: every warp
    }
    mbarrier_init_fence();
  }
  __syncthreads();
  if (warp >= 8) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (warp == 8) Method::template load<kTokens>(map, args, quantized, pipelines);
    if (warp >= 9 && warp < 9 + Method::kWeightLoaders) {
      load_weights<Method::kHasBlockScales, Method::kWeightLoaders>(args, quantized, weights, warp - 9);
    }
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

// The entries of a tile, n<tokens> or w8a8_n<tokens>. Logits have none of E4M3 activations: their tokens are sequences,
// and how many there are must not round the logits of each.
#define QUANTIZED_ENTRIES_W8A8(suffix, tokens, Method)              \
  QUANTIZED_ENTRY(linear_##suffix, tokens, Method, PlainOut)        \
  QUANTIZED_ENTRY(linear_swiglu_##suffix, tokens, Method, GatedOut) \
  QUANTIZED_ROTARY_ENTRY(linear_rotary_##suffix, tokens, Method)
#define QUANTIZED_ENTRIES_OF(suffix, tokens, Method) \
  QUANTIZED_ENTRIES_W8A8(suffix, tokens, Method)     \
  QUANTIZED_ENTRY(linear_logits_##suffix, tokens, Method, Float32Epilogue)

// Tiles of BLOCK_N of ops/cuda/gemm/quantized_tiling.py.
#define QUANTIZED_ENTRIES(Method)         \
  QUANTIZED_ENTRIES_OF(n8, 8, Method)     \
  QUANTIZED_ENTRIES_OF(n16, 16, Method)   \
  QUANTIZED_ENTRIES_OF(n32, 32, Method)   \
  QUANTIZED_ENTRIES_OF(n64, 64, Method)   \
  QUANTIZED_ENTRIES_OF(n128, 128, Method) \
  QUANTIZED_ENTRIES_OF(n256, 256, Method)
