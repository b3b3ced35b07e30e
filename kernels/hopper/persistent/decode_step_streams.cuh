// decode_step_streams.cuh: the warps that bring data. None computes, and none waits for more than it must.
//
//   MemoryStream       two warps, one for each warpgroup: all that is in memory before the step begins, in the order of
//                      its use: weights, and the cache's keys and values. Waits for nothing but a free slot, so memory
//                      stays busy while the block waits for others.
//   ColumnStream       one warp, two for 64 sequences: waits at the grid's barrier before each phase, then brings what
//                      other blocks computed.
//   gather_all_scales  one warp, for up to 16 sequences: 1 / rms of each row of the stream, which is needed only when
//                      its product is done.
#pragma once

#include <cuda.h>

#include "copy/async_copy.cuh"
#include "decode_step_work.cuh"
#include "copy/tma.cuh"

template <int N>
struct MemoryStream {
  const Args& args;
  Watch watch;
  uint32_t data, full, empty;  // of the ring
  int rank, warpgroup, layer = 0;
  Place<Room<N>::kSlots> place{1};

  // Wait for a slot, announce what will come; return where it goes.
  __device__ __forceinline__ uint32_t next(int bytes) {
    watch.wait(empty + place.index * 8, place.parity, kRingEmpty, layer * 4 + 1);
    if (threadIdx.x % 32 == 0) mbarrier_arrive_expect(full + place.index * 8, bytes);
    return data + place.index * kSlotBytes;
  }

  template <class P>
  __device__ __forceinline__ void weights(const bf16* from) {
    constexpr int kStep = P::kSplitsK ? 2 : 1;
    const Share share = share_of<P>(args, warpgroup);
    const Half<P> half(rank);
    const bool asks = threadIdx.x % 32 == 0;
#pragma unroll 1
    for (int done = 0; done < share.count; done += P::kUnits * kUnitSlices) {
      const int slices = min(share.count - done, P::kUnits * kUnitSlices);
#pragma unroll 1
      for (int k = half.begin + (P::kSplitsK ? warpgroup : 0); k < half.end; k += kStep) {
#pragma unroll 1
        for (int unit = 0; unit * kUnitSlices < slices; unit++) {
          // Slices lie four to a block; those of a unit may begin in one and end in the next.
          const int first = share.first + done + unit * kUnitSlices,
                    size = min(kUnitSlices, slices - unit * kUnitSlices);
          const int here = min(size, kUnitSlices - first % kUnitSlices);
          const uint32_t to = next(size * kSliceBytes), barrier = full + place.index * 8;
          const char* block = reinterpret_cast<const char*>(from) +
                              (static_cast<size_t>(first / kUnitSlices) * P::kBlocks + min(k, half.last)) * kSlotBytes;
          if (asks) {
            bulk_load(to, block + first % kUnitSlices * kSliceBytes, here * kSliceBytes, barrier, kEvictFirst);
            if (here < size) {
              bulk_load(to + here * kSliceBytes, block + static_cast<size_t>(P::kBlocks) * kSlotBytes,
                        (size - here) * kSliceBytes, barrier, kEvictFirst);
            }
          }
          __syncwarp();
          place.advance();
        }
      }
    }
  }

  // This warpgroup's tiles of every item, each tile in a slot: K, then V, in boxes of 64 channels.
  __device__ __forceinline__ void cache(const Work<N>& work, const CUtensorMap* keys, const CUtensorMap* values) {
    constexpr int kBoxBytes = kTileTokens * 128, kBoxes = kHeadSize / 64;
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int index = work.begin; index < work.end; index++) {
      const Item item = work.item(index);
      const int tiles = (item.tiles - warpgroup + 1) / 2;
#pragma unroll 1
      for (int base = 0; base < tiles; base += 32) {
        const int token = (item.first_tile + warpgroup + 2 * (base + lane)) * kTileTokens;
        int row = 0;
        if (base + lane < tiles) {
          const int block = args.tables[item.sequence * args.table_width + token / args.block_tokens];
          row =
              ((layer * args.kv_blocks + block) * kKvHeads + item.head) * args.block_tokens + token % args.block_tokens;
        }
#pragma unroll 1
        for (int i = 0; i < min(32, tiles - base); i++) {
          const int from = __shfl_sync(kWholeWarp, row, i);
          const uint32_t to = next(2 * kBoxes * kBoxBytes), barrier = full + place.index * 8;
          if (lane == 0) {
#pragma unroll
            for (int box = 0; box < kBoxes; box++) {
              tma_load_2d(to + box * kBoxBytes, keys, box * 64, from, barrier, kEvictFirst);
              tma_load_2d(to + (kBoxes + box) * kBoxBytes, values, box * 64, from, barrier, kEvictFirst);
            }
          }
          __syncwarp();
          place.advance();
        }
      }
    }
  }
};

__device__ __forceinline__ unsigned phases_passed(uint32_t passed) {
  unsigned phase;
  asm volatile("ld.acquire.cta.shared::cta.u32 %0, [%1];" : "=r"(phase) : "r"(passed) : "memory");
  return phase;
}

// Activations take another way than weights: the copy engine serves in order, so behind a full ring they would wait for
// all of it. A warp copies them itself, in the order that the tensor cores read.
template <int N>
struct ColumnStream {
  const Args& args;
  const Watch watch;
  uint32_t data, full, empty, passed;
  int rank, part, phase = 0;  // part: which of the warps that copy; each copies its rows
  Place<Room<N>::kStages> place{1};
  static constexpr int kGroupsOfFour = N / 4 / Room<N>::kCopyWarps;

  // Wait until every block has done all phases before this one; let the others of this block know.
  __device__ __forceinline__ void pass() {
    phase++;
    if (part > 0) {
      watch.until([&] { return phases_passed(passed) >= phase; }, kPassed, phase);
      return;
    }
    const unsigned wanted = phase * gridDim.x * kWarpgroups;
    watch.until(
        [&] {
          unsigned arrived;
          asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(arrived) : "l"(args.counters) : "memory");
          return arrived >= wanted;
        },
        kGrid, phase);
    asm volatile("st.release.cta.shared::cta.u32 [%0], %1;" ::"r"(passed), "r"(phase) : "memory");
  }

  // This block's half of K of `x`, [64, P::kInputs], as often as its workers go over it.
  template <class P>
  __device__ __forceinline__ void columns(const bf16* x) {
    const Half<P> half(rank);
    const int lane = threadIdx.x % 32, chunk = lane % 8, first_row = part * 4 * kGroupsOfFour + lane / 8;
    const int rows = args.sequences - first_row;  // that exist from the lane's first on
    // Four rows at a time: of eight, the second four have the other half of the swizzle.
    const uint32_t low = first_row * 128 + (chunk ^ (lane / 8)) * 16,
                   high = first_row * 128 + 512 + (chunk ^ (lane / 8 + 4)) * 16;
#pragma unroll 1
    for (int pass = passes_of<P>(args); pass > 0; pass--) {
      const bf16* from = x + static_cast<int64_t>(first_row) * P::kInputs + chunk * 8 + half.begin * 64;
#pragma unroll 1
      for (int k = half.begin; k < half.end; k++, from += 64) {
        watch.wait(empty + place.index * 8, place.parity, kColumnsEmpty, phase);
        const uint32_t to = data + place.index * Room<N>::kColumns;
        const bool is_inside = k <= half.last && (P::kInputs % 64 == 0 || k * 64 + chunk * 8 < P::kInputs);
        const int there = is_inside ? rows : 0;
#pragma unroll
        for (int i = 0; i < kGroupsOfFour; i++) {
          copy16_async(to + i / 2 * 1024 + (i % 2 ? high : low), from + 4 * i * P::kInputs, 4 * i < there);
        }
        mbarrier_arrive_after_copies(full + place.index * 8);
        place.advance();
      }
    }
  }
};

// By one warp: of every `step`th few sequences from `first` on.
template <int N>
__device__ __forceinline__ void gather_scales(Small<N>& small, const Args& args, int first, int step) {
  constexpr int kLoads = kMostBlocks / 32, kAtOnce = N == 64 ? 4 : 8;  // registers are few there
  const int lane = threadIdx.x % 32, workers = gridDim.x;
#pragma unroll 1
  for (int base = first * kAtOnce; base < args.sequences; base += step * kAtOnce) {
    float parts[kAtOnce][kLoads];
#pragma unroll
    for (int i = 0; i < kAtOnce; i++) {
#pragma unroll
      for (int j = 0; j < kLoads; j++) {
        const bool exists = base + i < args.sequences && lane + 32 * j < workers;
        parts[i][j] = exists ? __ldcg(args.squares + (base + i) * kMostBlocks + lane + 32 * j) : 0.f;
      }
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; i++) {
      float sum = 0.f;
#pragma unroll
      for (int j = 0; j < kLoads; j++) sum += parts[i][j];
      sum = warp_sum(sum);
      if (lane == 0 && base + i < N) small.scales[base + i] = rsqrtf(sum / kHidden + args.eps);
    }
  }
}

// By one warp, once for each product that reads the normed stream.
template <int N>
__device__ __forceinline__ void gather_all_scales(Small<N>& small, const Args& args, const Watch& watch,
                                                  unsigned phase) {
  watch.until([&] { return phases_passed(shared_address(&small.passed)) >= phase; }, kPassed, phase);
  gather_scales(small, args, 0, 1);
  __syncwarp();
  if (threadIdx.x % 32 == 0) mbarrier_arrive(shared_address(&small.scaled));
}
