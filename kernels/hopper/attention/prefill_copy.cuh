// prefill_copy.cuh: producer warps of prefill attention, which copy Q, K and V to shared memory.
//
// K and V are copied by KV block: the cache is [P * Hkv * Tb] rows of Dh, and `unit` tokens (a divisor of Tb and of a
// tile) are unit consecutive ones, a box of the tensor map. Each lane copies some boxes. KV blocks past the context are
// skipped: scores of such columns are masked, and V's rows are zeroed before use.
#pragma once

#include "copy/async_copy.cuh"
#include "copy/tma.cuh"
#include "prefill_layout.cuh"

namespace hopper {

// Share of one lane in each KV tile: one unit, some of the panels.
template <class Tile>
struct KvBoxes {
  const PrefillRows& rows;
  int unit;   // tokens
  int index;  // of the lane's unit in the tile
  int first_panel, panel_step;

  __device__ KvBoxes(const PrefillRows& r, int unit_tokens) : rows(r), unit(unit_tokens) {
    const int lane = threadIdx.x % 32, units = Tile::kTokens / unit;
    index = lane % units;
    first_panel = lane / units;
    panel_step = 32 / units;
  }

  // Return the cache row where the lane's unit of a tile begins, or -1 if no row attends to it.
  __device__ int locate(int tile) const {
    const int token = tile * Tile::kTokens + index * unit;
    return token < rows.context() && token + unit > rows.lowest() ? rows.cache_row(token) : -1;
  }

  // Called by the whole warp.
  __device__ void copy(const void* map, int cache_row, uint32_t to, uint32_t full) const {
    const unsigned has = __ballot_sync(0xffffffffu, cache_row >= 0 && first_panel == 0);
    if (threadIdx.x % 32 == 0) mbarrier_arrive_expect(full, __popc(has) * unit * Tile::kPanels * 128);
    __syncwarp();
    if (cache_row < 0) return;
    for (int panel = first_panel; panel < Tile::kPanels; panel += panel_step) {
      tma_load_2d(to + panel * Tile::kKvPanelBytes + index * unit * 128, map, panel * kPanel, cache_row, full,
                  kEvictNormal);
    }
  }
};

// Loop of the warp that copies K, or of the one that copies V; `first_full` and `first_empty` are the barriers of stage
// 0.
template <class Tile>
__device__ void copy_kv(const PrefillArguments& a, const void* map, int unit, uint32_t stages, uint32_t first_full,
                        uint32_t first_empty) {
  PipelineState<Tile::kStages> state;
#pragma unroll 1
  for (int round = 0; nth_work_tile(round) < a.work_count; round++) {
    const PrefillRows rows(a, nth_work_tile(round));
    const KvBoxes<Tile> boxes(rows, unit);
    int next = boxes.locate(rows.work_tile.kv_begin);
#pragma unroll 1
    for (int tile = rows.work_tile.kv_begin; tile < rows.work_tile.kv_end; tile++) {
      const int cache_row = next;
      next = boxes.locate(tile + 1);  // prefetch the table's entry while this tile's stage is in use
      mbarrier_wait(first_empty + 8 * state.stage, state.parity ^ 1);
      boxes.copy(map, cache_row, stages + state.stage * Tile::kKvBytes, first_full + 8 * state.stage);
      state.advance();
    }
  }
}

// Copy `count` rows of Q from row `first` on; `thread` of `threads` copies its share and waits for it.
template <class Tile>
__device__ void copy_query_rows(const PrefillRows& rows, uint32_t to, int first, int count, int thread, int threads) {
  constexpr int kChunks = Tile::kDh / 8;  // of 16 bytes in a row
#pragma unroll 4
  for (int i = thread; i < count * kChunks; i += threads) {
    const int row = first + i / kChunks, chunk = i % kChunks;
    const bool has = rows.has(row) && chunk * 8 < rows.a.head_size;
    const uint32_t offset = chunk / 8 * Tile::kQueryPanelBytes + row * 128 + (chunk % 8 ^ row % 8) * 16;
    copy16_async(to + offset, has ? rows.query(row) + chunk * 8 : rows.a.q, has);
  }
  copies_commit();
  copies_wait<0>();
  fence_async_shared();
}

// Loop of the warps that copy Q of the next work tile while this one is computed; `thread` numbers their threads. Q of
// the first work tile is copied by its consumers.
template <class Tile>
__device__ void copy_queries(const PrefillArguments& a, const SmemLayout<Tile>& memory, int thread) {
  PipelineState<Tile::kBuffers> state;
#pragma unroll 1
  for (int round = 0; nth_work_tile(round) < a.work_count; round++) {
    mbarrier_wait(memory.queries_empty(state.stage), state.parity ^ 1);
    if (round > 0) {
      const PrefillRows rows(a, nth_work_tile(round));
      copy_query_rows<Tile>(rows, memory.queries(state.stage), 0, Tile::kRows, thread, kQueryThreads);
    }
    mbarrier_arrive(memory.queries_full(state.stage));
    state.advance();
  }
}

}  // namespace hopper
