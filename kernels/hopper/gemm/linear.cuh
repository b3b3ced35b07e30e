// linear.cuh: Y = X W^T for any number of tokens, W packed; the kernel that linear*.cu instantiate.
//
//   1. A few threads fill a ring in shared memory: a stage is 64 columns of kTokens tokens and of kRowTiles packed
//      row tiles, two or three. Weights are asked for before the kernel ahead has ended, X after. Two blocks that take
//      the same tokens may share the copies: each brings half to both.
//   2. As many warpgroups as row tiles multiply (wgmma), each its 64 rows by all tokens: weights are A, tokens are N,
//   so a
//      tile has as many columns as there are tokens, in steps of 8.
//   3. The sums leave through an epilogue, with a small buffer of its own: the ring fills on meanwhile. Of wide tiles
//      they are rounded and kept, and stored while the next tile is multiplied.
#pragma once

#include <cuda.h>

#include "linear_epilogue.cuh"
#include "linear_pair.cuh"
#include "sync/mbarrier.cuh"
#include "sync/pdl.cuh"
#include "copy/tma.cuh"
#include "mma/wgmma.cuh"

constexpr int kMaxStages = WISP_GEMM_MAX_STAGES;
constexpr int kMulticastTokens = WISP_GEMM_MULTICAST_TOKENS; // of a tile whose copies two blocks may share
constexpr int kLeastBesideTokens = 192;  // of a tile that is stored beside the products of the next

// Up to 64 tokens, of two row tiles, a block leaves room for a second one on its multiprocessor, if its ring does:
// registers count, so one warp brings all weights. Beyond, one for each row tile, and a whole warpgroup, as setmaxnreg
// wants it.
template <int kTokens, int kRowTiles>
constexpr bool kIsNarrow = kTokens <= WISP_GEMM_NARROW_TOKENS && kRowTiles == 2;
template <int kTokens, int kRowTiles>
constexpr int kLinearThreads = kRowTiles * 128 + (kIsNarrow<kTokens, kRowTiles> ? 64 : 128);

struct Ring {
  uint32_t data, full, empty;  // shared addresses: stages, and a barrier for each
  int stages;
};

struct RingPlace {
  int stage = 0;
  uint32_t parity;

  __device__ explicit RingPlace(uint32_t first_parity) : parity(first_parity) {}
  __device__ void advance(int stages) {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

template <int kTokens, int kRowTiles>
constexpr int kStageBytes = kRowTiles * kBlockBytes + kTokens * 128;

template <int kTokens, int kRowTiles>
__device__ __forceinline__ void load_tokens(const CUtensorMap* map, const LinearArgs& args, const Ring& ring) {
  tma_prefetch_map(map);
  LinearSchedule schedule(args);
  RingPlace place(1);
  pdl_wait();
#pragma unroll 1
  for (LinearTile tile; schedule.next(tile);) {
#pragma unroll 1
    for (int k = tile.k_begin; k < tile.k_end; k++) {
      const uint32_t full = ring.full + place.stage * 8;
      mbarrier_wait(ring.empty + place.stage * 8, place.parity);
      mbarrier_arrive_expect(full, kTokens * 128);
      const uint32_t to = ring.data + place.stage * kStageBytes<kTokens, kRowTiles> + kRowTiles * kBlockBytes;
      if (kTokens == kMulticastTokens && args.shares_tokens) {
        const int half = cluster_rank() * (kTokens / 2);
        tma_load_2d_both(to + half * 128, map, k * 64, tile.token_tile * kTokens + half, full, kEvictNormal);
      } else {
        tma_load_2d(to, map, k * 64, tile.token_tile * kTokens, full, kEvictNormal);
      }
      place.advance(ring.stages);
    }
  }
}

// Row tiles [kFirst, kEnd) of a tile.
template <int kTokens, int kRowTiles, int kFirst, int kEnd>
__device__ __forceinline__ void load_weights(const LinearArgs& args, const Ring& ring) {
  LinearSchedule schedule(args);
  RingPlace place(1);
  const uint64_t eviction = args.is_read_once ? kEvictFirst : kEvictNormal;
  const size_t row_tile_elements = static_cast<size_t>(args.k_tiles) * kBlockElements;
#pragma unroll 1
  for (LinearTile tile; schedule.next(tile);) {
    const bf16* from = args.weight + tile.unit * kRowTiles * row_tile_elements + tile.k_begin * kBlockElements;
    const int there = (args.rows + 63) / 64 - tile.unit * kRowTiles;
#pragma unroll 1
    for (int k = tile.k_begin; k < tile.k_end; k++) {
      const uint32_t full = ring.full + place.stage * 8, to = ring.data + place.stage * kStageBytes<kTokens, kRowTiles>;
      mbarrier_wait(ring.empty + place.stage * 8, place.parity);
#pragma unroll
      for (int i = kFirst; i < kEnd; i++) {
        if (i == 0 || i < there) {
          mbarrier_arrive_expect(full, kBlockBytes);
          bulk_load(to + i * kBlockBytes, from + i * row_tile_elements, kBlockBytes, full, eviction);
        } else {  // past the last row tile: the warpgroup multiplies what lies there, and stores nothing
          mbarrier_arrive(full);
        }
      }
      from += kBlockElements;
      place.advance(ring.stages);
    }
  }
}

// Sums over the tile's part of K. Of narrow tiles the memory is the limit, and a stage goes back at once; beyond, one
// stage's products stay in flight while the next one's begin. `beside(i)` is called for i in [0, kBeside), while the
// products of a step run: it has time for a chunk of the tile before.
template <int kTokens, int kRowTiles, int kBeside, class Beside>
__device__ __forceinline__ void multiply(float (&sums)[kTokens / 2], const LinearTile& tile, const LinearArgs& args,
                                         const Ring& ring, RingPlace& place, int warpgroup, bool is_taken,
                                         Beside beside) {
  constexpr int kInFlight = kIsNarrow<kTokens, kRowTiles> ? 0 : 1;
  const bool is_shared = kTokens == kMulticastTokens && args.shares_tokens;
  const bool releases = threadIdx.x % 32 < (is_shared ? 2 : 1);
  // An address of the own shared memory is one of the cluster's too, so one kind of arrival serves both.
  const uint32_t empties = threadIdx.x % 32 == 1 && is_shared ? shared_of(ring.empty, cluster_rank() ^ 1) : ring.empty;
  uint32_t before = 0;
  int k = tile.k_begin;
#pragma unroll
  for (int i = 0; i < kTokens / 2; i++) sums[i] = 0.f;
  auto step = [&] {
    mbarrier_wait(ring.full + place.stage * 8, place.parity);
    const uint32_t stage = ring.data + place.stage * kStageBytes<kTokens, kRowTiles>;
    const uint32_t weights = stage + warpgroup * kBlockBytes, tokens = stage + kRowTiles * kBlockBytes;
    wgmma_registers(sums);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < 4; i++) {
      wgmma_ss<kTokens>(sums, wgmma_descriptor(weights + i * 32), wgmma_descriptor(tokens + i * 32));
    }
    wgmma_commit();
    wgmma_wait<kInFlight>();
    const uint32_t now = empties + place.stage * 8;
    if (releases && (kInFlight == 0 || k > tile.k_begin)) mbarrier_arrive_there(kInFlight == 0 ? now : before);
    before = now;
    place.advance(ring.stages);
    k++;
  };
  int chunk = is_taken ? 0 : kBeside;
#pragma unroll 1
  while (k < tile.k_end) {
    step();
    if (chunk < kBeside) beside(chunk++);
  }
  while (chunk < kBeside) beside(chunk++);
  wgmma_wait<0>();
  wgmma_registers(sums);
  if (releases && kInFlight > 0) mbarrier_arrive_there(before);
}

template <int kTokens, int kRowTiles, class Epilogue>
__device__ __forceinline__ void consume(const LinearArgs& args, const typename Epilogue::More& more, const Ring& ring,
                                        const Pair& pair, int warpgroup, int* is_last) {
  constexpr int kBeside =
      kTokens >= kLeastBesideTokens && kRowTiles == 2 && Epilogue::kChunks > 1 ? Epilogue::kChunks : 0;
  LinearSchedule schedule(args);
  RingPlace place(0);
  float sums[kTokens / 2];
  Epilogue epilogue(ring.data + ring.stages * kStageBytes<kTokens, kRowTiles>, warpgroup);
  bool is_taken = false;  // the epilogue has a tile whose chunks are not stored yet
  auto put = [&](int chunk) { epilogue.put(chunk, args, more, warpgroup); };
  if (args.pairs > 0) cluster_wait();
  pdl_wait();
#pragma unroll 1
  for (LinearTile tile; schedule.next(tile);) {
    const int row_tile = tile.unit * kRowTiles + warpgroup;
    float bias[2] = {0.f, 0.f};
    if (Epilogue::kHasBias && args.bias != nullptr) {
      const int row = row_tile * 64 + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
      if (row < args.rows) bias[0] = __bfloat162float(args.bias[row]);
      if (row + 8 < args.rows) bias[1] = __bfloat162float(args.bias[row + 8]);
    }
    multiply<kTokens, kRowTiles, kBeside>(sums, tile, args, ring, place, warpgroup, is_taken, put);
    is_taken = false;
    const bool is_cut = tile.k_end - tile.k_begin < args.k_tiles;
    int token = tile.token_tile * kTokens, tokens = kTokens;
    if (kTokens >= kLeastPairTokens && is_cut && args.pairs > 0) {
      swap_halves<kTokens>(sums, ring.data, pair, warpgroup);
      tokens = kTokens / 2;
      token += cluster_rank() * tokens;
    } else if constexpr (kRowTiles == 2) {
      if (is_cut && !join_parts<kTokens>(sums, tile, args, warpgroup, is_last)) continue;
    }
    epilogue.take(sums, bias, row_tile, token, min(args.tokens, token + tokens), warpgroup);
    if constexpr (kBeside > 0) {
      is_taken = true;
    } else {
#pragma unroll
      for (int chunk = 0; chunk < Epilogue::kChunks; chunk++) put(chunk);
    }
  }
  if (kBeside > 0 && is_taken) {
#pragma unroll
    for (int chunk = 0; chunk < Epilogue::kChunks; chunk++) put(chunk);
  }
}

// As many registers in all as at the launch: of two consumers 240 each and 24, of three 160 and 32.
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
__device__ __forceinline__ void linear(const CUtensorMap* tokens, const LinearArgs& args,
                                       const typename Epilogue::More& more) {
  extern __shared__ __align__(1024) unsigned char shared[];
  __shared__ uint64_t full[kMaxStages], empty[kMaxStages], is_free, received[kRowTiles];
  __shared__ int is_last[kRowTiles];
  const Ring ring{shared_address(shared), shared_address(full), shared_address(empty), args.stages};
  const Pair pair{shared_address(&is_free), shared_address(received)};
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  constexpr int kConsumers = kRowTiles * 128;
  constexpr bool kMovesRegisters = kTokens >= 128 || kRowTiles > 2;
  pdl_launch_dependents();
  if (threadIdx.x == 0) {
    for (int i = 0; i < args.stages; i++) {
      mbarrier_init(ring.full + i * 8, 1 + kRowTiles);  // who fills: tokens, row tiles
      mbarrier_init(ring.empty + i * 8, kConsumers / 32 * (args.shares_tokens ? 2 : 1));  // who reads: every warp
    }
    mbarrier_init(pair.is_free, kRowTiles);
    for (int i = 0; i < kRowTiles; i++) mbarrier_init(pair.received + i * 8, 1);
    mbarrier_init_fence();
  }
  __syncthreads();
  if (args.pairs > 0 || args.shares_tokens) cluster_arrive();
  if (args.shares_tokens) cluster_wait();  // the first copy goes to both; pairs use each other at the end alone
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
    consume<kTokens, kRowTiles, Epilogue>(args, more, ring, pair, warp / 4, is_last + warp / 4);
  }
  if (args.shares_tokens) {
    cluster_arrive_last();
    cluster_wait();
  }
}

#define LINEAR_ENTRY(name, tokens, row_tiles, Epilogue)                                        \
  extern "C" __global__ void __launch_bounds__(kLinearThreads<tokens, row_tiles>,              \
                                               kIsNarrow<tokens, row_tiles> ? 2 : 1)           \
      name(const __grid_constant__ CUtensorMap map, const __grid_constant__ LinearArgs args) { \
    linear<tokens, row_tiles, Epilogue<tokens>>(&map, args, {});                               \
  }

// One entry for each width of a tile, and for tall tiles of three row tiles: TILE_TOKENS and TALL_TOKENS of
// ops/cuda/gemm/linear_plan.py.
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
