// decode_step_exchange.cuh: warpgroups of a cluster that had the same rows, and other parts of K, add their sums.
//
// Twins (swap): the block of rank r finishes the tokens of parity r. All four (join): warpgroup w, moreover, the rows
// l / 4 + 8 w of each slice. A thread sends what others finish to the threads of its number there and gets what it
// finishes itself, by st.async: the receiver's mbarrier counts the bytes, and no fence is needed (a release at cluster
// scope costs microseconds while weights stream). Two buffers in turn are enough: who writes one again has all of the
// receiver's next round, which every thread sent after it had read the last.
#pragma once

#include "decode_step_watch.cuh"
#include "copy/shared_address.cuh"

// The address in the cluster's other block of what lies at `address` in this one.
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

// What one thread has of a slice after the exchange: rows l / 4 and l / 4 + 8, for tokens 8 g + 2 (l % 4) + rank.
template <int N>
struct Sums {
  float top[N / 8], bottom[N / 8];
};

template <int N>
class Exchange {
 public:
  // `buffers` are both warpgroups'.
  __device__ __forceinline__ Exchange(uint32_t buffers, Small<N>& small, int rank, int warpgroup, const Watch& watch)
      : all_buffers_(buffers),
        buffers_(buffers + warpgroup * 2 * R::kBufferBytes),
        barriers_(shared_address(small.exchanged[warpgroup])),
        joined_(shared_address(small.joined)),
        rank_(rank),
        warpgroup_(warpgroup),
        watch_(watch) {
    there_ = at_rank(buffers_, rank ^ 1), barriers_there_ = at_rank(barriers_, rank ^ 1);
  }

  // Twins, of `slices` slices in units of four, of which a warp has one each. `use(slice, sums)` gets what this thread
  // finishes, slice by slice.
  template <int kUnits, class Use>
  __device__ __forceinline__ void swap(float (&sums)[kUnits][N / 2], int slices, int phase, Use use) {
    constexpr int kAtOnce = kUnits < R::kRoundUnits ? kUnits : R::kRoundUnits;
    const int thread = threadIdx.x % 128, warp = thread / 32;
#pragma unroll
    for (int first = 0; first < kUnits; first += kAtOnce) {
      const int left = slices - first * kUnitSlices;
      if (left <= 0) break;
      const uint32_t offset = (round_ & 1) * R::kBufferBytes, barrier = (round_ & 1) * 8;
      if (thread == 0) {
        mbarrier_arrive_expect(barriers_ + barrier, min(left, kAtOnce * kUnitSlices) * 32 * R::kCell * 4);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; i++) {
        if (i * kUnitSlices + warp < left) {
          give(sums[first + i], there_ + offset + i * (128 * R::kCell * 4), barriers_there_ + barrier, thread);
        }
      }
      watch_.wait(barriers_ + barrier, round_ / 2 & 1, kExchanged, phase);
      round_++;
#pragma unroll
      for (int i = 0; i < kAtOnce; i++) {
        if (i * kUnitSlices + warp < left) {
          Sums<N> all;
          take(all, sums[first + i], buffers_ + offset + i * (128 * R::kCell * 4), thread);
          use((first + i) * kUnitSlices + warp, all);
        }
      }
    }
  }

  // All four: `use(slice, g, sum)` gets what this thread finishes: its row of the slice, of tokens 8 g + 2 (l % 4) +
  // rank. Parts are added in the order of rank and warpgroup.
  template <int kUnits, class Use>
  __device__ __forceinline__ void join(float (&sums)[kUnits][N / 2], int slices, int phase, Use use) {
    constexpr int kAtOnce = R::kJointGroups;
    const int thread = threadIdx.x % 128, warp = thread / 32, self = 2 * rank_ + warpgroup_;
#pragma unroll
    for (int unit = 0; unit < kUnits; unit++) {
      const int size = min(kUnitSlices, slices - unit * kUnitSlices);
      if (size <= 0) break;
      if (N / 8 > kAtOnce && unit > 0 && size < kUnitSlices) {
        // A unit uses both barriers, and not all warps hold this one back: none may still be waiting for the last.
        asm volatile("bar.sync %0, 128;" ::"r"(2 + warpgroup_) : "memory");
      }
#pragma unroll
      for (int first = 0; first < N / 8; first += kAtOnce) {
        const int turn = joins_ & 1;
        if (thread == 0) mbarrier_arrive_expect(joined_ + (warpgroup_ * 2 + turn) * 8, 3 * size * 32 * kAtOnce * 4);
        if (warp < size) {
#pragma unroll
          for (int other = 0; other < 4; other++) {
            if (other == self) continue;
            // In the other's buffer, the places of its three others follow each other.
            const int rank = other / 2, warpgroup = other % 2, place = self < other ? self : self - 1;
            const uint32_t to = all_buffers_ + (warpgroup * 2 + turn) * R::kBufferBytes + place * R::kPartBytes;
            give_part(sums[unit], first, rank, warpgroup, at_rank(to, rank) + thread * (kAtOnce * 4),
                      at_rank(joined_ + (warpgroup * 2 + turn) * 8, rank));
          }
        }
        watch_.wait(joined_ + (warpgroup_ * 2 + turn) * 8, joins_ / 2 & 1, kExchanged, phase);
        joins_++;
        if (warp < size) {
          float all[kAtOnce];
          const uint32_t from = buffers_ + turn * R::kBufferBytes + thread * (kAtOnce * 4);
          add_parts(all, sums[unit], first, self, from);
#pragma unroll
          for (int i = 0; i < kAtOnce; i++) use(unit * kUnitSlices + warp, first + i, all[i]);
        }
      }
    }
  }

 private:
  using R = Room<N>;

  // This thread's sum of group g for tokens of parity `rank`, row l / 4 + 8 `warpgroup` of the slice.
  static __device__ __forceinline__ float part(const float (&sums)[N / 2], int g, int rank, int warpgroup) {
    const float top = rank ? sums[4 * g + 1] : sums[4 * g], bottom = rank ? sums[4 * g + 3] : sums[4 * g + 2];
    return warpgroup ? bottom : top;
  }

  static __device__ __forceinline__ void give_part(const float (&sums)[N / 2], int g, int rank, int warpgroup,
                                                   uint32_t to, uint32_t barrier) {
    const float first = part(sums, g, rank, warpgroup);
    if constexpr (R::kJointGroups == 1) {
      asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(to),
                   "r"(__float_as_uint(first)), "r"(barrier)
                   : "memory");
    } else if constexpr (R::kJointGroups == 2) {
      send(to, first, part(sums, g + 1, rank, warpgroup), barrier);
    } else {
      send(to, first, part(sums, g + 1, rank, warpgroup), part(sums, g + 2, rank, warpgroup),
           part(sums, g + 3, rank, warpgroup), barrier);
    }
  }

  __device__ __forceinline__ void add_parts(float (&all)[R::kJointGroups], const float (&sums)[N / 2], int first,
                                            int self, uint32_t from) const {
    float others[3][R::kJointGroups];
#pragma unroll
    for (int i = 0; i < 3; i++) {
#pragma unroll
      for (int g = 0; g < R::kJointGroups; g++) {
        asm volatile("ld.shared.f32 %0, [%1];" : "=f"(others[i][g]) : "r"(from + i * R::kPartBytes + g * 4) : "memory");
      }
    }
#pragma unroll
    for (int g = 0; g < R::kJointGroups; g++) {
      const float own = part(sums, first + g, rank_, warpgroup_);
      const float a = self == 0 ? own : others[0][g], b = self == 1 ? own : self < 1 ? others[0][g] : others[1][g];
      const float c = self == 2 ? own : self < 2 ? others[1][g] : others[2][g], d = self == 3 ? own : others[2][g];
      all[g] = (a + b) + (c + d);
    }
  }

  __device__ __forceinline__ float own(const float (&sums)[N / 2], int i) const {
    return rank_ ? sums[i + 1] : sums[i];
  }
  __device__ __forceinline__ float twins(const float (&sums)[N / 2], int i) const {
    return rank_ ? sums[i] : sums[i + 1];
  }

  __device__ __forceinline__ void give(const float (&sums)[N / 2], uint32_t to, uint32_t barrier, int thread) const {
    if constexpr (N == 8) {
      send(to + thread * 8, twins(sums, 0), twins(sums, 2), barrier);
    } else {
#pragma unroll
      for (int i = 0; i < N / 16; i++) {
        send(to + (i * 128 + thread) * 16, twins(sums, 8 * i), twins(sums, 8 * i + 2), twins(sums, 8 * i + 4),
             twins(sums, 8 * i + 6), barrier);
      }
    }
  }

  __device__ __forceinline__ void take(Sums<N>& all, const float (&sums)[N / 2], uint32_t from, int thread) const {
    if constexpr (N == 8) {
      float top, bottom;
      asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(top), "=f"(bottom) : "r"(from + thread * 8) : "memory");
      all.top[0] = own(sums, 0) + top, all.bottom[0] = own(sums, 2) + bottom;
    } else {
#pragma unroll
      for (int i = 0; i < N / 16; i++) {
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

  const uint32_t all_buffers_, buffers_, barriers_, joined_;
  const int rank_, warpgroup_;
  const Watch& watch_;
  uint32_t there_, barriers_there_;
  unsigned round_ = 0, joins_ = 0;
};
