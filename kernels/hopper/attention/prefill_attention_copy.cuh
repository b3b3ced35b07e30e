// prefill_attention_copy.cuh: the warps of prefill attention that bring Q, K and V into shared memory.
//
// K and V come page by page: the cache is [P * Hkv * Tb] rows of Dh, and `unit` tokens (a divisor of Tb and of a tile)
// are unit consecutive ones, a box of the tensor map. Each lane brings some boxes. Pages beyond the context are left
// out: scores of such columns are hidden, and V's rows are cleared before they are used.
#pragma once

#include "copy/async_copy.cuh"
#include "prefill_attention_tile.cuh"
#include "copy/tma.cuh"

namespace hopper {

// What one lane brings of each KV tile: one unit of it, some of the panels.
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

  // Row of the cache where the lane's unit of a tile begins, or -1: no row sees it.
  __device__ int locate(int tile) const {
    const int token = tile * Tile::kTokens + index * unit;
    return token < rows.context() && token + unit > rows.lowest() ? rows.cache_row(token) : -1;
  }

  // By the whole warp.
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

// The warp that brings K, or the one that brings V; `first_full` and `first_empty` are the barriers of the ring's stage
// 0.
template <class Tile>
__device__ void copy_kv(const PrefillArguments& a, const void* map, int unit, uint32_t ring, uint32_t first_full,
                        uint32_t first_empty) {
  Place<Tile::kStages> place;
#pragma unroll 1
  for (int round = 0; nth_work(round) < a.work; round++) {
    const PrefillRows rows(a, nth_work(round));
    const KvBoxes<Tile> boxes(rows, unit);
    int next = boxes.locate(rows.item.kv_begin);
#pragma unroll 1
    for (int tile = rows.item.kv_begin; tile < rows.item.kv_end; tile++) {
      const int cache_row = next;
      next = boxes.locate(tile + 1);  // the table's entry is on its way while this tile waits for its place
      mbarrier_wait(first_empty + 8 * place.stage, place.parity ^ 1);
      boxes.copy(map, cache_row, ring + place.stage * Tile::kKvBytes, first_full + 8 * place.stage);
      place.advance();
    }
  }
}

// `count` rows of Q from row `first` on; `thread` of `threads` does its share, and waits until it is there.
template <class Tile>
__device__ void copy_query_rows(const PrefillRows& rows, uint32_t to, int first, int count, int thread, int threads) {
  constexpr int kChunks = Tile::kDh / 8;  // of 16 bytes in a row
#pragma unroll 4
  for (int i = thread; i < count * kChunks; i += threads) {
    const int row = first + i / kChunks, chunk = i % kChunks;
    const bool has = rows.has(row) && chunk * 8 < rows.a.head_size;
    const uint32_t place = chunk / 8 * Tile::kQueryPanelBytes + row * 128 + (chunk % 8 ^ row % 8) * 16;
    copy16_async(to + place, has ? rows.query(row) + chunk * 8 : rows.a.q, has);
  }
  copies_commit();
  copies_wait<0>();
  fence_async_shared();
}

// The warps that bring Q of the next item while this one is computed; `thread` counts them. Q of the first item is
// brought by those who wait for it.
template <class Tile>
__device__ void copy_queries(const PrefillArguments& a, const Memory<Tile>& memory, int thread) {
  Place<Tile::kBuffers> place;
#pragma unroll 1
  for (int round = 0; nth_work(round) < a.work; round++) {
    mbarrier_wait(memory.queries_empty(place.stage), place.parity ^ 1);
    if (round > 0) {
      const PrefillRows rows(a, nth_work(round));
      copy_query_rows<Tile>(rows, memory.queries(place.stage), 0, Tile::kRows, thread, kQueryThreads);
    }
    mbarrier_arrive(memory.queries_full(place.stage));
    place.advance();
  }
}

}  // namespace hopper
