// prefill_layout.cuh: warp roles and shared-memory layout of a thread block of Hopper's prefill attention.
//
// Warpgroup 0 copies: its first warp K, the second V, the others Q. The other kGroups warpgroups compute, 64 rows each.
// mbarriers connect them, in pipelines of K, V and Q tiles; `full` when copied, `empty` when used.
#pragma once

#include "attention/prefill_work_tile.cuh"
#include "sync/mbarrier.cuh"

namespace hopper {

constexpr int kGroupThreads = 128;  // of a warpgroup
constexpr int kQueryThreads = 64;   // threads that copy Q
constexpr int kPanel = 64;          // columns (128 bytes) of a swizzled panel

// Barriers for some of the block's threads; 0 is __syncthreads.
enum NamedBarrier { kGroupBarrier = 1, kAlternateBarrier = 4, kComputeBarrier = 7 };

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
  static constexpr int kStages = kGroups == 1 || kDh == 64 ? 3 : 2;  // of the pipelines of K and V
  static constexpr int kBuffers = kDh <= 128 ? 2 : 1;                // of the pipeline of Q
  static constexpr int kThreads = kGroupThreads * (1 + kGroups), kComputeThreads = kGroupThreads * kGroups;
  // Two warpgroups alternate at the tensor cores, so that one multiplies during the other's softmax.
  static constexpr bool kAlternates = kGroups == 2 && kDh <= 128;

  // In shared memory every tile is a row of panels; a panel is rows of 128 bytes, swizzled.
  static constexpr int kQueryPanelBytes = kRows * 128, kQueryBytes = kPanels * kQueryPanelBytes;
  static constexpr int kKvPanelBytes = kTokens * 128, kKvBytes = kPanels * kKvPanelBytes;
  static constexpr int kKeys = kBuffers * kQueryBytes, kValues = kKeys + kStages * kKvBytes;
  static constexpr int kBarriers = kValues + kStages * kKvBytes;
  static constexpr int kSharedBytes = 1024 + kBarriers + 8 * (4 * kStages + 2 * kBuffers);
};

// Position in a pipeline: the stage, and the parity of its `full` barrier's phase.
template <int kStages>
struct PipelineState {
  int stage = 0;
  uint32_t parity = 0;
  __device__ void advance() {
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
};

template <class Tile>
struct SmemLayout {
  uint32_t base;

  // Shared memory starts at a multiple of 1,024, as the swizzle requires.
  __device__ explicit SmemLayout(const unsigned char* shared) : base((shared_address(shared) + 1023) / 1024 * 1024) {}

  __device__ uint32_t queries(int buffer) const { return base + buffer * Tile::kQueryBytes; }
  __device__ uint32_t keys(int stage) const { return base + Tile::kKeys + stage * Tile::kKvBytes; }
  __device__ uint32_t values(int stage) const { return base + Tile::kValues + stage * Tile::kKvBytes; }

  __device__ uint32_t keys_full(int stage) const { return barrier(stage); }
  __device__ uint32_t keys_empty(int stage) const { return barrier(Tile::kStages + stage); }
  __device__ uint32_t values_full(int stage) const { return barrier(2 * Tile::kStages + stage); }
  __device__ uint32_t values_empty(int stage) const { return barrier(3 * Tile::kStages + stage); }
  __device__ uint32_t queries_full(int buffer) const { return barrier(4 * Tile::kStages + buffer); }
  __device__ uint32_t queries_empty(int buffer) const { return barrier(4 * Tile::kStages + Tile::kBuffers + buffer); }

  // Called by one thread. Every consumer warp arrives for itself.
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

// Work tiles are dealt to thread blocks longest first, in alternating direction, so that all get about as much. Returns
// this block's for a round; there are no more if it is not below a.work_count.
__device__ __forceinline__ int nth_work_tile(int round) {
  const int index = round % 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
  return round * gridDim.x + index;
}

}  // namespace hopper
