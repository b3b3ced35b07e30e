// cluster_reduction.cuh: warpgroups of a cluster that had the same rows, and other parts of K, add their sums.
//
// Peers (exchange): the CTA of rank r finishes the tokens of parity r. All four (reduce): warpgroup w, moreover, the
// rows l / 4 + 8 w of each 16-row tile:
//
//                  rows l / 4        rows l / 4 + 8
//   even tokens    CTA 0, wg 0       CTA 0, wg 1
//   odd tokens     CTA 1, wg 0       CTA 1, wg 1
//
// A thread sends what others finish to the threads of its number there and gets what it finishes itself, by st.async:
// the receiver's mbarrier counts the bytes, and no fence is needed (a release at cluster scope costs microseconds while
// weights stream). Two buffers in turn are enough: before a thread writes one again it has all of the receiver's next
// round, which every thread sent after it had read the last.
#pragma once

#include "copy/shared_address.cuh"
#include "phases/gemm.cuh"
#include "shared_storage.cuh"

// The address in a CTA of the cluster of what lies at `address` in this one.
__device__ __forceinline__ uint32_t at_rank(uint32_t address, int rank) {
  uint32_t there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}

__device__ __forceinline__ void send(uint32_t to, float a, float b, uint32_t barrier) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];" ::"r"(to),
               "r"(__float_as_uint(a)), "r"(__float_as_uint(b)), "r"(barrier)
               : "memory");
}
__device__ __forceinline__ void send(uint32_t to, float a, float b, float c, float d, uint32_t barrier) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to),
               "r"(__float_as_uint(a)), "r"(__float_as_uint(b)), "r"(__float_as_uint(c)), "r"(__float_as_uint(d)),
               "r"(barrier)
               : "memory");
}

// One thread's sums of a 16-row tile after the exchange: rows l / 4 and l / 4 + 8, for tokens 8 g + 2 (l % 4) + rank.
template <int N>
struct Sums {
  float top[N / 8], bottom[N / 8];
};

template <class S>
class ClusterReduction {
  using Layout = SmemLayout<S>;
  static constexpr int N = S::kN;

 public:
  // `buffers` are both warpgroups'.
  __device__ __forceinline__ ClusterReduction(uint32_t buffers, SharedStorage<S>& storage, int rank, int warpgroup)
      : all_buffers_(buffers),
        buffers_(buffers + warpgroup * 2 * Layout::kBufferBytes),
        barriers_(shared_address(storage.exchanged[warpgroup])),
        reduced_(shared_address(storage.reduced)),
        rank_(rank),
        warpgroup_(warpgroup) {
    there_ = at_rank(buffers_, rank ^ 1), barriers_there_ = at_rank(barriers_, rank ^ 1);
  }

  // Peers, of `tiles` 16-row tiles, four to a block, of which a warp has one each. `use(tile, sums)` gets what this
  // thread finishes, tile by tile. Sums are of 2 kSums tokens: the batch, or an expert's.
  template <int kMBlocks, int kSums, class Use>
  __device__ __forceinline__ void exchange(float (&sums)[kMBlocks][kSums], int tiles, Use use) {
    constexpr int kFloats = kSums / 2, kFitting = Layout::kBufferBytes / (128 * kFloats * 4);
    constexpr int kAtOnce = kMBlocks < kFitting ? kMBlocks : kFitting;
    const int thread = threadIdx.x % 128, warp = thread / 32;
#pragma unroll
    for (int first = 0; first < kMBlocks; first += kAtOnce) {
      const int left = tiles - first * kBlockTiles;
      if (left <= 0) break;
      const uint32_t offset = (round_ & 1) * Layout::kBufferBytes, barrier = (round_ & 1) * 8;
      if (thread == 0) {
        mbarrier_arrive_expect(barriers_ + barrier, min(left, kAtOnce * kBlockTiles) * 32 * kFloats * 4);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; i++) {
        if (first + i < kMBlocks && i * kBlockTiles + warp < left) {
          send_half(sums[first + i], there_ + offset + i * (128 * kFloats * 4), barriers_there_ + barrier, thread);
        }
      }
      mbarrier_wait(barriers_ + barrier, round_ / 2 & 1);
      round_++;
#pragma unroll
      for (int i = 0; i < kAtOnce; i++) {
        if (first + i < kMBlocks && i * kBlockTiles + warp < left) {
          Sums<2 * kSums> all;
          receive_half(all, sums[first + i], buffers_ + offset + i * (128 * kFloats * 4), thread);
          use((first + i) * kBlockTiles + warp, all);
        }
      }
    }
  }

  // All four: `use(tile, g, sum)` gets what this thread finishes: its row of the tile, of tokens 8 g + 2 (l % 4) +
  // rank. Partial sums are added in the order of rank and warpgroup.
  template <int kMBlocks, class Use>
  __device__ __forceinline__ void reduce(float (&sums)[kMBlocks][N / 2], int tiles, Use use) {
    constexpr int kAtOnce = Layout::kReduceGroups, kFitting = Layout::kReduceMBlocks;
    constexpr int kBlocks = kMBlocks < kFitting ? kMBlocks : kFitting;
    const int warp = threadIdx.x % 128 / 32;
#pragma unroll
    for (int m = 0; m < kMBlocks; m += kBlocks) {
      const int size = min(kBlocks * kBlockTiles, tiles - m * kBlockTiles);
      if (size <= 0) break;
      if (N / 8 > kAtOnce && m > 0 && size < kBlocks * kBlockTiles) {
        // A block uses both barriers, and not all warps hold this one back: none may still be waiting for the last.
        asm volatile("bar.sync %0, 128;" ::"r"(2 + warpgroup_) : "memory");
      }
#pragma unroll
      for (int first = 0; first < N / 8; first += kAtOnce) {
        const int buffer = reductions_ & 1;
        const uint32_t barrier = reduced_ + (warpgroup_ * 2 + buffer) * 8;
        if (threadIdx.x % 128 == 0) mbarrier_arrive_expect(barrier, 3 * size * 32 * kAtOnce * 4);
#pragma unroll
        for (int i = 0; i < kBlocks; i++) {
          if (m + i < kMBlocks && i * kBlockTiles + warp < size) send_partials(sums[m + i], first, buffer, i);
        }
        mbarrier_wait(barrier, reductions_ / 2 & 1);
        reductions_++;
#pragma unroll
        for (int i = 0; i < kBlocks; i++) {
          if (m + i >= kMBlocks || i * kBlockTiles + warp >= size) break;
          float all[kAtOnce];
          add_partials(all, sums[m + i], first, 2 * rank_ + warpgroup_,
                       buffers_ + buffer * Layout::kBufferBytes + partials_at(i));
#pragma unroll
          for (int g = 0; g < kAtOnce; g++) use((m + i) * kBlockTiles + warp, first + g, all[g]);
        }
      }
    }
  }

  // A buffer of this warpgroup into which nobody sends until it has sent its own partial sums of the next reduction.
  __device__ __forceinline__ uint32_t unused_buffer() const {
    return buffers_ + ((reductions_ + 1) & 1) * Layout::kBufferBytes;
  }

 private:
  // This thread's sum of group g for tokens of parity `rank`, row l / 4 + 8 `warpgroup` of the tile.
  static __device__ __forceinline__ float partial(const float (&sums)[N / 2], int g, int rank, int warpgroup) {
    const float top = rank ? sums[4 * g + 1] : sums[4 * g], bottom = rank ? sums[4 * g + 3] : sums[4 * g + 2];
    return warpgroup ? bottom : top;
  }

  // This thread's place in a buffer: the partial sums of block `i` from three others follow each other.
  static __device__ __forceinline__ int partials_at(int i) {
    return i * 3 * Layout::kPartialBytes + threadIdx.x % 128 * (Layout::kReduceGroups * 4);
  }

  // To each other warpgroup what it finishes of these sums, which are of the i-th block of this round.
  __device__ __forceinline__ void send_partials(const float (&sums)[N / 2], int first, int buffer, int i) const {
    const int self = 2 * rank_ + warpgroup_;
#pragma unroll
    for (int other = 0; other < 4; other++) {
      if (other == self) continue;
      const int rank = other / 2, warpgroup = other % 2, slot = self < other ? self : self - 1;
      const uint32_t to = all_buffers_ + (warpgroup * 2 + buffer) * Layout::kBufferBytes + slot * Layout::kPartialBytes;
      send_partial(sums, first, rank, warpgroup, at_rank(to, rank) + partials_at(i),
                   at_rank(reduced_ + (warpgroup * 2 + buffer) * 8, rank));
    }
  }

  static __device__ __forceinline__ void send_partial(const float (&sums)[N / 2], int g, int rank, int warpgroup,
                                                      uint32_t to, uint32_t barrier) {
    const float first = partial(sums, g, rank, warpgroup);
    if constexpr (Layout::kReduceGroups == 1) {
      asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(to),
                   "r"(__float_as_uint(first)), "r"(barrier)
                   : "memory");
    } else if constexpr (Layout::kReduceGroups == 2) {
      send(to, first, partial(sums, g + 1, rank, warpgroup), barrier);
    } else {
      send(to, first, partial(sums, g + 1, rank, warpgroup), partial(sums, g + 2, rank, warpgroup),
           partial(sums, g + 3, rank, warpgroup), barrier);
    }
  }

  __device__ __forceinline__ void add_partials(float (&all)[Layout::kReduceGroups], const float (&sums)[N / 2],
                                               int first, int self, uint32_t from) const {
    float others[3][Layout::kReduceGroups];
#pragma unroll
    for (int i = 0; i < 3; i++) {
#pragma unroll
      for (int g = 0; g < Layout::kReduceGroups; g++) {
        asm volatile("ld.shared.f32 %0, [%1];"
                     : "=f"(others[i][g])
                     : "r"(from + i * Layout::kPartialBytes + g * 4)
                     : "memory");
      }
    }
#pragma unroll
    for (int g = 0; g < Layout::kReduceGroups; g++) {
      const float own = partial(sums, first + g, rank_, warpgroup_);
      const float a = self == 0 ? own : others[0][g], b = self == 1 ? own : self < 1 ? others[0][g] : others[1][g];
      const float c = self == 2 ? own : self < 2 ? others[1][g] : others[2][g], d = self == 3 ? own : others[2][g];
      all[g] = (a + b) + (c + d);
    }
  }

  template <int kSums>
  __device__ __forceinline__ float own(const float (&sums)[kSums], int i) const {
    return rank_ ? sums[i + 1] : sums[i];
  }
  template <int kSums>
  __device__ __forceinline__ float peers(const float (&sums)[kSums], int i) const {
    return rank_ ? sums[i] : sums[i + 1];
  }

  template <int kSums>
  __device__ __forceinline__ void send_half(const float (&sums)[kSums], uint32_t to, uint32_t barrier,
                                            int thread) const {
    if constexpr (kSums == 4) {
      send(to + thread * 8, peers(sums, 0), peers(sums, 2), barrier);
    } else {
#pragma unroll
      for (int i = 0; i < kSums / 8; i++) {
        send(to + (i * 128 + thread) * 16, peers(sums, 8 * i), peers(sums, 8 * i + 2), peers(sums, 8 * i + 4),
             peers(sums, 8 * i + 6), barrier);
      }
    }
  }

  template <int kSums>
  __device__ __forceinline__ void receive_half(Sums<2 * kSums>& all, const float (&sums)[kSums], uint32_t from,
                                               int thread) const {
    if constexpr (kSums == 4) {
      float top, bottom;
      asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(top), "=f"(bottom) : "r"(from + thread * 8) : "memory");
      all.top[0] = own(sums, 0) + top, all.bottom[0] = own(sums, 2) + bottom;
    } else {
#pragma unroll
      for (int i = 0; i < kSums / 8; i++) {
        float4 theirs;
        asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(theirs.x), "=f"(theirs.y), "=f"(theirs.z), "=f"(theirs.w)
                     : "r"(from + (i * 128 + thread) * 16)
                     : "memory");
        all.top[2 * i] = own(sums, 8 * i) + theirs.x, all.bottom[2 * i] = own(sums, 8 * i + 2) + theirs.y;
        all.top[2 * i + 1] = own(sums, 8 * i + 4) + theirs.z, all.bottom[2 * i + 1] = own(sums, 8 * i + 6) + theirs.w;
      }
    }
  }

  const uint32_t all_buffers_, buffers_, barriers_, reduced_;
  const int rank_, warpgroup_;
  uint32_t there_, barriers_there_;
  unsigned round_ = 0, reductions_ = 0;
};
