// experts.cuh: the GEMM of a mixture of experts on wgmma; the kernel that experts.cu instantiates.
//
// As linear.cuh, whose pipeline, multiplication and epilogue it has; a tile's weights are those of one expert, and its
// tokens are positions that follow each other, of pairs sorted by expert. Which tiles there are, the kernel
// moe/sort_pairs.cu has written: blocks take them round-robin, row tiles of the same positions side by side, so that an
// expert's weights are read from memory once. A tile's last tokens may be another expert's: their sums are not stored.
#pragma once

#include "linear.cuh"

struct ExpertTiles {      // by value, as ops/cuda/moe/arguments.py fills it
  const int4* tiles;      // [tile_count]: expert, first position, last + 1
  const int* tile_count;  // [1]
  long long distance;     // elements from an expert's matrix to the next one's
};

struct ExpertTile : GemmTile {
  int expert, first, end;  // positions
};

class ExpertScheduler {
 public:
  __device__ ExpertScheduler(const GemmArgs& args, const ExpertTiles& experts)
      : args_(args), experts_(experts), next_(blockIdx.x), end_(*experts.tile_count * args.m_tiles) {}

  __device__ bool next(ExpertTile& tile) {
    if (next_ >= end_) return false;
    const int index = quotient(next_, args_.m_tiles);
    const int4 found = experts_.tiles[index];
    tile.m_tile = next_ - index * args_.m_tiles, tile.n_tile = index;
    tile.k_begin = 0, tile.k_end = args_.k_tiles;
    tile.expert = found.x, tile.first = found.y, tile.end = found.z;
    next_ += gridDim.x;
    return true;
  }

 private:
  const GemmArgs& args_;
  const ExpertTiles& experts_;
  int next_, end_;
};

template <int kTokens, int kRowTiles>
__device__ __forceinline__ void load_positions(const CUtensorMap* map, const GemmArgs& args, const ExpertTiles& experts,
                                               const Ring& ring) {
  ExpertScheduler schedule(args, experts);
  PipelineState state(1);
#pragma unroll 1
  for (ExpertTile tile; schedule.next(tile);) {
#pragma unroll 1
    for (int k = 0; k < args.k_tiles; k++) {
      const uint32_t full = ring.full + state.stage * 8, to = ring.data + state.stage * kStageBytes<kTokens, kRowTiles>;
      mbarrier_wait(ring.empty + state.stage * 8, state.parity);
      mbarrier_arrive_expect(full, kTokens * 128);
      tma_load_2d(to + kRowTiles * kBlockBytes, map, k * 64, tile.first, full, kEvictNormal);
      state.advance(ring.stages);
    }
  }
}

// Load row tile `own` of each tile.
template <int kTokens, int kRowTiles>
__device__ __forceinline__ void load_expert_rows(const GemmArgs& args, const ExpertTiles& experts, const Ring& ring,
                                                 int own) {
  ExpertScheduler schedule(args, experts);
  PipelineState state(1);
#pragma unroll 1
  for (ExpertTile tile; schedule.next(tile);) {
    const int row_tile = tile.m_tile * kRowTiles + own;
    const bool is_there = row_tile * 64 < args.rows;  // else the warpgroup multiplies stale memory and stores nothing
    const bf16* from = args.weight + tile.expert * experts.distance;
    from += static_cast<size_t>(row_tile) * args.k_tiles * kBlockElements;
#pragma unroll 1
    for (int k = 0; k < args.k_tiles; k++) {
      const uint32_t full = ring.full + state.stage * 8, to = ring.data + state.stage * kStageBytes<kTokens, kRowTiles>;
      mbarrier_wait(ring.empty + state.stage * 8, state.parity);
      if (is_there) {
        mbarrier_arrive_expect(full, kBlockBytes);
        bulk_load(to + own * kBlockBytes, from, kBlockBytes, full, kEvictNormal);
      } else {
        mbarrier_arrive(full);
      }
      from += kBlockElements;
      state.advance(ring.stages);
    }
  }
}

template <int kTokens, int kRowTiles, class Epilogue>
__device__ __forceinline__ void consume_experts(const GemmArgs& args, const ExpertTiles& experts, const Ring& ring,
                                                int warpgroup) {
  constexpr int kOverlapped = kTokens >= kMinOverlapTokens && kRowTiles == 2 ? Epilogue::kChunks : 0;
  ExpertScheduler schedule(args, experts);
  PipelineState state(0);
  float sums[kTokens / 2];
  Epilogue epilogue(ring.data + ring.stages * kStageBytes<kTokens, kRowTiles>, warpgroup);
  bool has_pending = false;  // the epilogue has a tile whose chunks are not stored yet
  auto store_chunk = [&](int chunk) { epilogue.store_chunk(chunk, args, {}, warpgroup); };
#pragma unroll 1
  for (ExpertTile tile; schedule.next(tile);) {
    const int row_tile = tile.m_tile * kRowTiles + warpgroup;
    float bias[2] = {0.f, 0.f};
    if (args.bias != nullptr) {
      const bf16* of = args.bias + static_cast<size_t>(tile.expert) * args.rows;
      const int row = row_tile * 64 + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
      if (row < args.rows) bias[0] = __bfloat162float(of[row]);
      if (row + 8 < args.rows) bias[1] = __bfloat162float(of[row + 8]);
    }
    multiply<kTokens, kRowTiles, kOverlapped>(sums, tile, args, ring, state, warpgroup, has_pending, store_chunk);
    epilogue.accept(sums, bias, row_tile, tile.first, tile.end, warpgroup);
    has_pending = kOverlapped > 0;
    if constexpr (kOverlapped == 0) {
#pragma unroll
      for (int chunk = 0; chunk < Epilogue::kChunks; chunk++) store_chunk(chunk);
    }
  }
  if (kOverlapped > 0 && has_pending) {
#pragma unroll
    for (int chunk = 0; chunk < Epilogue::kChunks; chunk++) store_chunk(chunk);
  }
}

template <int kTokens, int kRowTiles, class Epilogue>
__device__ __forceinline__ void expert_linear(const CUtensorMap* positions, const GemmArgs& args,
                                              const ExpertTiles& experts) {
  extern __shared__ __align__(1024) unsigned char shared[];
  constexpr int kConsumers = kRowTiles * 128;
  constexpr int kStagingBytes = kRowTiles * Epilogue::kBuffers * Epilogue::kBufferBytes;
  const uint32_t data = shared_address(shared);
  const uint32_t barriers = data + args.stages * kStageBytes<kTokens, kRowTiles> + kStagingBytes;
  const Ring ring{data, barriers, barriers + kMaxStages * 8, args.stages};
  const int warp = threadIdx.x / 32, producer = threadIdx.x % 32 == 0 ? warp - kConsumers / 32 : -1;
  pdl_launch_dependents();
  if (threadIdx.x == 0) {
    tma_prefetch_map(positions);
    for (int i = 0; i < args.stages; i++) {
      mbarrier_init(ring.full + i * 8, 1 + kRowTiles);     // producers: positions, row tiles
      mbarrier_init(ring.empty + i * 8, kConsumers / 32);  // consumers: every warp
    }
    mbarrier_init_fence();
  }
  __syncthreads();
  pdl_wait();  // all read the list of tiles
  if (warp >= kConsumers / 32) {
    set_producer_registers<kRowTiles>();
    if (producer == 0) load_positions<kTokens, kRowTiles>(positions, args, experts, ring);
    if (producer > 0 && producer <= kRowTiles) {
      load_expert_rows<kTokens, kRowTiles>(args, experts, ring, producer - 1);
    }
  } else {
    set_consumer_registers<kRowTiles>();
    consume_experts<kTokens, kRowTiles, Epilogue>(args, experts, ring, warp / 4);
  }
}

#define EXPERTS(name, tokens, row_tiles, is_gated)                                                  \
  extern "C" __global__ void __launch_bounds__(kLinearThreads<tokens, row_tiles>, 1)                \
      name(const __grid_constant__ CUtensorMap map, const __grid_constant__ GemmArgs args,          \
           const __grid_constant__ ExpertTiles experts) {                                           \
    expert_linear<tokens, row_tiles, Bf16Epilogue<tokens, RowsOut<is_gated>>>(&map, args, experts); \
  }
