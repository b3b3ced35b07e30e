// linear.cuh: GEMM Y = X W^T for any number of tokens, W tiled and swizzled; the kernel that linear*.cu instantiate.
//
//   1. A few producer threads fill a pipeline in shared memory: a stage is 64 columns of kTokens tokens and of
//   kRowTiles
//      (two or three) 64-row tiles of weights. Weights are loaded before the kernel ahead has ended, X after. Two
//      blocks with the same tokens may share the copies: each loads half for both (multicast).
//   2. One consumer warpgroup a row tile multiplies (wgmma) its 64 rows by all tokens: weights are A, tokens are N, so
//   a
//      tile has as many columns as there are tokens, in steps of 8.
//   3. The sums leave through an epilogue with a small buffer of its own, while the pipeline fills on. Wide tiles are
//      rounded, kept, and stored while the next tile is multiplied.
#pragma once

#include <cuda.h>

#include "copy/tma.cuh"
#include "cta_pair.cuh"
#include "epilogue.cuh"
#include "mma/wgmma.cuh"
#include "pipeline_state.cuh"
#include "sync/mbarrier.cuh"
#include "sync/pdl.cuh"

constexpr int kMaxStages = WISP_GEMM_MAX_STAGES;
constexpr int kMulticastTokens = WISP_GEMM_MULTICAST_TOKENS;  // of a tile whose copies two blocks may share
constexpr int kMinOverlapTokens = 192;                        // of a tile that is stored while the next is multiplied

// Small-N tiles (up to 64 tokens by two row tiles) leave registers for a second block on the multiprocessor, so one
// producer warp loads all weights. Beyond, there is one a row tile, in a whole warpgroup, as setmaxnreg requires.
template <int kTokens, int kRowTiles>
constexpr bool kIsNarrow = kTokens <= WISP_GEMM_NARROW_TOKENS && kRowTiles == 2;
template <int kTokens, int kRowTiles>
constexpr int kLinearThreads = kRowTiles * 128 + (kIsNarrow<kTokens, kRowTiles> ? 64 : 128);

struct Ring {
  uint32_t data, full, empty;  // shared addresses: stages, and two mbarriers a stage
  int stages;
};

template <int kTokens, int kRowTiles>
constexpr int kStageBytes = kRowTiles * kBlockBytes + kTokens * 128;

template <int kTokens, int kRowTiles>
__device__ __forceinline__ void load_tokens(const CUtensorMap* map, const GemmArgs& args, const Ring& ring) {
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
      mbarrier_arrive_expect(full, kTokens * 128);
      const uint32_t to = ring.data + state.stage * kStageBytes<kTokens, kRowTiles> + kRowTiles * kBlockBytes;
      if (kTokens == kMulticastTokens && args.shares_tokens) {
        const int half = cluster_rank() * (kTokens / 2);
        tma_load_2d_both(to + half * 128, map, k * 64, tile.n_tile * kTokens + half, full, kEvictNormal);
      } else {
        tma_load_2d(to, map, k * 64, tile.n_tile * kTokens, full, kEvictNormal);
      }
      state.advance(ring.stages);
    }
  }
}

// Load row tiles [kFirst, kEnd) of each tile.
template <int kTokens, int kRowTiles, int kFirst, int kEnd>
__device__ __forceinline__ void load_weights(const GemmArgs& args, const Ring& ring) {
  TileScheduler schedule(args);
  PipelineState state(1);
  const uint64_t eviction = args.is_read_once ? kEvictFirst : kEvictNormal;
  const size_t row_tile_elements = static_cast<size_t>(args.k_tiles) * kBlockElements;
#pragma unroll 1
  for (GemmTile tile; schedule.next(tile);) {
    const bf16* from = args.weight + tile.m_tile * kRowTiles * row_tile_elements + tile.k_begin * kBlockElements;
    const int there = (args.rows + 63) / 64 - tile.m_tile * kRowTiles;
#pragma unroll 1
    for (int k = tile.k_begin; k < tile.k_end; k++) {
      const uint32_t full = ring.full + state.stage * 8, to = ring.data + state.stage * kStageBytes<kTokens, kRowTiles>;
      mbarrier_wait(ring.empty + state.stage * 8, state.parity);
#pragma unroll
      for (int i = kFirst; i < kEnd; i++) {
        if (i == 0 || i < there) {
          mbarrier_arrive_expect(full, kBlockBytes);
          bulk_load(to + i * kBlockBytes, from + i * row_tile_elements, kBlockBytes, full, eviction);
        } else {  // past the last row tile: the warpgroup multiplies stale memory and stores nothing
          mbarrier_arrive(full);
        }
      }
      from += kBlockElements;
      state.advance(ring.stages);
    }
  }
}

// Sum over the tile's K-range. Small-N tiles are limited by memory and release a stage at once; beyond, one stage's
// wgmmas stay in flight while the next one's begin. `overlapped(i)` is called for i in [0, kOverlapped) while a step's
// wgmmas run: they leave time to store a chunk of the tile before.
template <int kTokens, int kRowTiles, int kOverlapped, class Overlapped>
__device__ __forceinline__ void multiply(float (&sums)[kTokens / 2], const GemmTile& tile, const GemmArgs& args,
                                         const Ring& ring, PipelineState& state, int warpgroup, bool has_pending,
                                         Overlapped overlapped) {
  constexpr int kInFlight = kIsNarrow<kTokens, kRowTiles> ? 0 : 1;
  const bool is_shared = kTokens == kMulticastTokens && args.shares_tokens;
  const bool releases = threadIdx.x % 32 < (is_shared ? 2 : 1);
  // An address of the own shared memory is also one of the cluster's, so one kind of arrival serves both.
  const uint32_t empties = threadIdx.x % 32 == 1 && is_shared ? shared_of(ring.empty, cluster_rank() ^ 1) : ring.empty;
  uint32_t before = 0;
  int k = tile.k_begin;
#pragma unroll
  for (int i = 0; i < kTokens / 2; i++) sums[i] = 0.f;
  auto step = [&] {
    mbarrier_wait(ring.full + state.stage * 8, state.parity);
    const uint32_t stage = ring.data + state.stage * kStageBytes<kTokens, kRowTiles>;
    const uint32_t weights = stage + warpgroup * kBlockBytes, tokens = stage + kRowTiles * kBlockBytes;
    wgmma_registers(sums);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < 4; i++) {
      wgmma_ss<kTokens>(sums, wgmma_descriptor(weights + i * 32), wgmma_descriptor(tokens + i * 32));
    }
    wgmma_commit();
    wgmma_wait<kInFlight>();
    const uint32_t now = empties + state.stage * 8;
    if (releases && (kInFlight == 0 || k > tile.k_begin)) mbarrier_arrive_remote(kInFlight == 0 ? now : before);
    before = now;
    state.advance(ring.stages);
    k++;
  };
  int chunk = has_pending ? 0 : kOverlapped;
#pragma unroll 1
  while (k < tile.k_end) {
    step();
    if (chunk < kOverlapped) overlapped(chunk++);
  }
  while (chunk < kOverlapped) overlapped(chunk++);
  wgmma_wait<0>();
  wgmma_registers(sums);
  if (releases && kInFlight > 0) mbarrier_arrive_remote(before);
}

template <int kTokens, int kRowTiles, class Epilogue>
__device__ __forceinline__ void consume(const GemmArgs& args, const typename Epilogue::Extra& extra, const Ring& ring,
                                        const CtaPair& pair, int warpgroup, int* is_last) {
  constexpr int kOverlapped =
      kTokens >= kMinOverlapTokens && kRowTiles == 2 && Epilogue::kChunks > 1 ? Epilogue::kChunks : 0;
  TileScheduler schedule(args);
  PipelineState state(0);
  float sums[kTokens / 2];
  Epilogue epilogue(ring.data + ring.stages * kStageBytes<kTokens, kRowTiles>, warpgroup);
  bool has_pending = false;  // the epilogue has a tile whose chunks are not stored yet
  auto store_chunk = [&](int chunk) { epilogue.store_chunk(chunk, args, extra, warpgroup); };
  if (args.pairs > 0) cluster_wait();
  pdl_wait();
#pragma unroll 1
  for (GemmTile tile; schedule.next(tile);) {
    const int row_tile = tile.m_tile * kRowTiles + warpgroup;
    float bias[2] = {0.f, 0.f};
    if (Epilogue::kHasBias && args.bias != nullptr) {
      const int row = row_tile * 64 + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
      if (row < args.rows) bias[0] = __bfloat162float(args.bias[row]);
      if (row + 8 < args.rows) bias[1] = __bfloat162float(args.bias[row + 8]);
    }
    multiply<kTokens, kRowTiles, kOverlapped>(sums, tile, args, ring, state, warpgroup, has_pending, store_chunk);
    has_pending = false;
    const bool is_split = tile.k_end - tile.k_begin < args.k_tiles;
    int token = tile.n_tile * kTokens, tokens = kTokens;
    if (kTokens >= kMinPairTokens && is_split && args.pairs > 0) {
      exchange_halves<kTokens>(sums, ring.data, pair, warpgroup);
      tokens = kTokens / 2;
      token += cluster_rank() * tokens;
    } else if constexpr (kRowTiles == 2) {
      if (is_split && !combine_partials<kTokens>(sums, tile, args, warpgroup, is_last)) continue;
    }
    epilogue.accept(sums, bias, row_tile, token, min(args.tokens, token + tokens), warpgroup);
    if constexpr (kOverlapped > 0) {
      has_pending = true;
    } else {
#pragma unroll
      for (int chunk = 0; chunk < Epilogue::kChunks; chunk++) store_chunk(chunk);
    }
  }
  if (kOverlapped > 0 && has_pending) {
#pragma unroll
    for (int chunk = 0; chunk < Epilogue::kChunks; chunk++) store_chunk(chunk);
  }
}

// The block keeps its registers in all: two consumers have 240 a thread and producers 24; three have 160 and 32.
template <int kRowTiles>
__device__ __forceinline__ void set_producer_registers() {
  if constexpr (kRowTiles == 2) asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
  if constexpr (kRowTiles == 3) asm volatile("setmaxnreg.dec.sync.aligned.u32 32;");
}
template <int kRowTiles>
__device__ __forceinline__ void set_consumer_registers() {
  if constexpr (kRowTiles == 2) asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
  if constexpr (kRowTiles == 3) asm volatile("setmaxnreg.inc.sync.aligned.u32 160;");
}

template <int kTokens, int kRowTiles, class Epilogue>
__device__ __forceinline__ void linear(const CUtensorMap* tokens, const GemmArgs& args,
                                       const typename Epilogue::Extra& extra) {
  extern __shared__ __align__(1024) unsigned char shared[];
  __shared__ uint64_t full[kMaxStages], empty[kMaxStages], is_free, received[kRowTiles];
  __shared__ int is_last[kRowTiles];
  const Ring ring{shared_address(shared), shared_address(full), shared_address(empty), args.stages};
  const CtaPair pair{shared_address(&is_free), shared_address(received)};
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  constexpr int kConsumers = kRowTiles * 128;
  constexpr bool kMovesRegisters = kTokens >= 128 || kRowTiles > 2;
  pdl_launch_dependents();
  if (threadIdx.x == 0) {
    for (int i = 0; i < args.stages; i++) {
      mbarrier_init(ring.full + i * 8, 1 + kRowTiles);  // producers: tokens, row tiles
      mbarrier_init(ring.empty + i * 8, kConsumers / 32 * (args.shares_tokens ? 2 : 1));  // consumers: every warp
    }
    mbarrier_init(pair.is_free, kRowTiles);
    for (int i = 0; i < kRowTiles; i++) mbarrier_init(pair.received + i * 8, 1);
    mbarrier_init_fence();
  }
  __syncthreads();
  if (args.pairs > 0 || args.shares_tokens) cluster_arrive();
  if (args.shares_tokens) cluster_wait();  // the first copy goes to both; pairs communicate at the end alone
  if (warp >= kConsumers / 32) {
    if constexpr (kMovesRegisters) set_producer_registers<kRowTiles>();
    const int producer = lane == 0 ? warp - kConsumers / 32 : -1;
    if (producer == 0) load_tokens<kTokens, kRowTiles>(tokens, args, ring);
    if constexpr (kIsNarrow<kTokens, kRowTiles>) {
      if (producer == 1) load_weights<kTokens, kRowTiles, 0, 2>(args, ring);
    } else {
      if (producer == 1) load_weights<kTokens, kRowTiles, 0, 1>(args, ring);
      if (producer == 2) load_weights<kTokens, kRowTiles, 1, 2>(args, ring);
      if (kRowTiles == 3 && producer == 3) load_weights<kTokens, kRowTiles, 2, 3>(args, ring);
    }
    if (args.pairs > 0) cluster_wait();
  } else {
    if constexpr (kMovesRegisters) set_consumer_registers<kRowTiles>();
    consume<kTokens, kRowTiles, Epilogue>(args, extra, ring, pair, warp / 4, is_last + warp / 4);
  }
  if (args.shares_tokens) {
    cluster_arrive_last();
    cluster_wait();
  }
}

#define LINEAR_ENTRY(name, tokens, row_tiles, Epilogue)                                      \
  extern "C" __global__ void __launch_bounds__(kLinearThreads<tokens, row_tiles>,            \
                                               kIsNarrow<tokens, row_tiles> ? 2 : 1)         \
      name(const __grid_constant__ CUtensorMap map, const __grid_constant__ GemmArgs args) { \
    linear<tokens, row_tiles, Epilogue<tokens>>(&map, args, {});                             \
  }

// One entry for each tile: BLOCK_N, and for 192-row tiles ("tall") BLOCK_N_OF_192_ROWS of
// ops/cuda/gemm/planner.py.
#define LINEAR_ENTRIES(name, Epilogue)             \
  LINEAR_ENTRY(name##_n8, 8, 2, Epilogue)          \
  LINEAR_ENTRY(name##_n16, 16, 2, Epilogue)        \
  LINEAR_ENTRY(name##_n32, 32, 2, Epilogue)        \
  LINEAR_ENTRY(name##_n64, 64, 2, Epilogue)        \
  LINEAR_ENTRY(name##_n96, 96, 2, Epilogue)        \
  LINEAR_ENTRY(name##_n128, 128, 2, Epilogue)      \
  LINEAR_ENTRY(name##_n160, 160, 2, Epilogue)      \
  LINEAR_ENTRY(name##_n192, 192, 2, Epilogue)      \
  LINEAR_ENTRY(name##_n224, 224, 2, Epilogue)      \
  LINEAR_ENTRY(name##_n256, 256, 2, Epilogue)      \
  LINEAR_ENTRY(name##_tall_n64, 64, 3, Epilogue)   \
  LINEAR_ENTRY(name##_tall_n128, 128, 3, Epilogue) \
  LINEAR_ENTRY(name##_tall_n160, 160, 3, Epilogue) \
  LINEAR_ENTRY(name##_tall_n192, 192, 3, Epilogue)
