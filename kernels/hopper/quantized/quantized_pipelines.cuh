// quantized_pipelines.cuh: the two pipelines of a GEMM with quantized weights, and their producers.
//
// One brings tokens, 64 columns a stage; the other weights, a tile of two row tiles a stage (128 columns of 8 bits, 256
// of 4), as they lie in memory. Weights are loaded before the kernel ahead has ended, tokens after.
#pragma once

#include <cuda.h>

#include "../gemm/pipeline_state.cuh"
#include "../gemm/tile_scheduler.cuh"
#include "copy/tma.cuh"
#include "quantized/bf16_codecs.cuh"
#include "sync/mbarrier.cuh"
#include "sync/pdl.cuh"
#include "sync/uniform.cuh"

constexpr int kMaxWeightStages = 16, kMaxTokenStages = 32;

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

// A warp: load kBoxes boxes of kTokens rows by 128 bytes for each tile of weights, and the rows' scales of the tile's
// columns if they have such: floats [k tile][token_stride].
template <int kTokens, int kBoxes, bool kHasScales>
__device__ __forceinline__ void load_tokens(const CUtensorMap* map, const GemmArgs& args,
                                            const QuantizedArgs& quantized, const Pipelines& pipelines) {
  const QuantizedRing& ring = pipelines.tokens;
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
      const float* scales =
          quantized.token_scales + static_cast<size_t>(box) * quantized.token_stride + tile.n_tile * kTokens;
      if (elect_lane()) {
        mbarrier_arrive_expect(full, kTokens * (kHasScales ? 132 : 128));
        tma_load_2d(ring.data + state.stage * ring.stage_bytes, map, box * 64, tile.n_tile * kTokens, full,
                    kEvictNormal);
        if (kHasScales) {
          bulk_load(pipelines.token_scales + state.stage * kTokens * 4, scales, kTokens * 4, full, kEvictNormal);
        }
      }
      state.advance(ring.stages);
    }
  }
}

// A warp: load the row tiles of each tile: both, or of two loaders the one's first and the other's second. Past the
// last row tile a warpgroup multiplies stale memory and stores nothing.
template <bool kHasBlockScales, int kLoaders>
__device__ __forceinline__ void load_weights(const GemmArgs& args, const QuantizedArgs& quantized,
                                             const QuantizedRing& ring, int loader) {
  TileScheduler schedule(args);
  PipelineState state(1);
  const uint64_t eviction = args.is_read_once ? kEvictFirst : kEvictNormal;
  const unsigned char* weights = reinterpret_cast<const unsigned char*>(args.weight);
  const uint32_t slot = slot_bytes<kHasBlockScales>(quantized);
#pragma unroll 1
  for (GemmTile tile; schedule.next(tile);) {
    const int row_tile = tile.m_tile * 2;
    const int tiles = max(0, min(min(2, (args.rows + 63) / 64 - row_tile) - loader, 2 / kLoaders));
    const uint32_t bytes = tiles * (quantized.tile_bytes + (kHasBlockScales ? 32 : 0));
#pragma unroll 1
    for (int k = tile.k_begin; k < tile.k_end; k++) {
      const uint32_t full = ring.full + state.stage * 8, to = ring.data + state.stage * ring.stage_bytes;
      mbarrier_wait(ring.empty + state.stage * 8, state.parity);
      if (elect_lane()) {
        mbarrier_arrive_expect(full, bytes);
#pragma unroll
        for (int i = 0; i < 2 / kLoaders; i++) {
          if (i >= tiles) break;
          const size_t index = static_cast<size_t>(row_tile + loader + i) * args.k_tiles + k;
          const uint32_t slot_to = to + (loader + i) * slot;
          bulk_load(slot_to, weights + index * quantized.tile_bytes, quantized.tile_bytes, full, eviction);
          if (kHasBlockScales) {
            bulk_load(slot_to + slot - 128, quantized.block_scales + index * 8, 32, full, eviction);
          }
        }
      }
      state.advance(ring.stages);
    }
  }
}
