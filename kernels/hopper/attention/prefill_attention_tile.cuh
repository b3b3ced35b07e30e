// prefill_attention_tile.cuh: how a thread block of Hopper's prefill attention is laid out, in threads and in memory.
//
// Warpgroup 0 copies: its first warp K, the second V, the others Q. The other kGroups warpgroups compute, 64 rows each.
// They meet at mbarriers: a ring of K tiles, one of V tiles, one of Q tiles; `full` when copied, `empty` when used.
#pragma once

#include "sync/mbarrier.cuh"
#include "attention/prefill_work.cuh"

namespace hopper {

constexpr int kGroupThreads = 128;  // of a warpgroup
constexpr int kQueryThreads = 64;   // that copy Q
constexpr int kPanel = 64;          // columns of 128 bytes, what the 128-byte swizzle spans

// Barriers for some of the block's threads; 0 is __syncthreads.
enum NamedBarrier { kGroupBarrier = 1, kTurnBarrier = 4, kComputeBarrier = 7 };

__device__ __forceinline__ void named_sync(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ __forceinline__ void named_arrive(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

template <int kDhPadded, int kWarpgroups>
struct Tile {
  static constexpr int kDh = kDhPadded, kGroups = kWarpgroups;
  static constexpr int kRows = 64 * kGroups;
  static constexpr int kTokens = kDh <= 128 ? 128 : 64;  // of a KV tile
  static constexpr int kPanels = kDh / kPanel;
  static constexpr int kStages = kGroups == 1 || kDh == 64 ? 3 : 2;  // of the rings of K and V
  static constexpr int kBuffers = kDh <= 128 ? 2 : 1;                // of the ring of Q
  static constexpr int kThreads = kGroupThreads * (1 + kGroups), kComputeThreads = kGroupThreads * kGroups;
  // Two warpgroups take turns at the tensor cores, so that one multiplies while the other has its softmax.
  static constexpr bool kTurns = kGroups == 2 && kDh <= 128;

  // In shared memory every tile is a row of panels; a panel is rows of 128 bytes, swizzled.
  static constexpr int kQueryPanelBytes = kRows * 128, kQueryBytes = kPanels * kQueryPanelBytes;
  static constexpr int kKvPanelBytes = kTokens * 128, kKvBytes = kPanels * kKvPanelBytes;
  static constexpr int kKeys = kBuffers * kQueryBytes, kValues = kKeys + kStages * kKvBytes;
  static constexpr int kBarriers = kValues + kStages * kKvBytes;
  static constexpr int kSharedBytes = 1024 + kBarriers + 8 * (4 * kStages + 2 * kBuffers);
};

// The place in a ring: the stage, and the parity of the phase that its `full` barrier is in.
template <int kStages>
struct Place {
  int stage = 0;
  uint32_t parity = 0;
  __device__ void advance() {
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
};

template <class Tile>
struct Memory {
  uint32_t base;

  // Shared memory starts at a multiple of 1,024, as the swizzle wants it.
  __device__ explicit Memory(const unsigned char* shared) : base((shared_address(shared) + 1023) / 1024 * 1024) {}

  __device__ uint32_t queries(int buffer) const { return base + buffer * Tile::kQueryBytes; }
  __device__ uint32_t keys(int stage) const { return base + Tile::kKeys + stage * Tile::kKvBytes; }
  __device__ uint32_t values(int stage) const { return base + Tile::kValues + stage * Tile::kKvBytes; }

  __device__ uint32_t keys_full(int stage) const { return barrier(stage); }
  __device__ uint32_t keys_empty(int stage) const { return barrier(Tile::kStages + stage); }
  __device__ uint32_t values_full(int stage) const { return barrier(2 * Tile::kStages + stage); }
  __device__ uint32_t values_empty(int stage) const { return barrier(3 * Tile::kStages + stage); }
  __device__ uint32_t queries_full(int buffer) const { return barrier(4 * Tile::kStages + buffer); }
  __device__ uint32_t queries_empty(int buffer) const { return barrier(4 * Tile::kStages + Tile::kBuffers + buffer); }

  // By one thread. Every warp that computes says for itself that it is done.
  __device__ void init_barriers() const {
    for (int i = 0; i < Tile::kStages; i++) {
      mbarrier_init(keys_full(i), 1);
      mbarrier_init(values_full(i), 1);
      mbarrier_init(keys_empty(i), 4 * Tile::kGroups);
      mbarrier_init(values_empty(i), 4 * Tile::kGroups);
    }
    for (int i = 0; i < Tile::kBuffers; i++) {
      mbarrier_init(queries_full(i), kQueryThreads);
      mbarrier_init(queries_empty(i), 4 * Tile::kGroups);
    }
    mbarrier_init_fence();
  }

 private:
  __device__ uint32_t barrier(int index) const { return base + Tile::kBarriers + 8 * index; }
};

// The work of this thread block, in order: longest first, to and fro over the blocks so that all get about as much.
// Returns the round-th, or what is not below a.work: then there is no more.
__device__ __forceinline__ int nth_work(int round) {
  const int place = round % 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
  return round * gridDim.x + place;
}

}  // namespace hopper
