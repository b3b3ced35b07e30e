// prefill_output.cuh: store the sums of prefill attention in the output, or combine the splits of a row (split-KV).
//
// Sums are in registers as prefill_softmax.cuh describes: o[4 g + 2 h + e] is row l / 4 + 8 h of the warp's 16, column
// 8 g + 2 (l % 4) + e of the head.
#pragma once

#include "attention/prefill_softmax.cuh"
#include "attention/prefill_work_tile.cuh"

// A partial result of a tile: kRows x kDh sums, then maximum and sum of weights of each row.
template <int kDh, int kRows>
constexpr int kPrefillPartialFloats = kRows * (kDh + 2);

// Four words of a lane are its column pairs of four 8-column groups; the quad transposes them, so that lane q has all
// of group q.
__device__ __forceinline__ uint4 transpose_quad(const uint32_t (&w)[4]) {
  const int q = threadIdx.x % 4;
  const bool odd = q & 1, high = q & 2;
  const uint32_t t0 = __shfl_xor_sync(0xffffffffu, odd ? w[0] : w[1], 1);
  const uint32_t t1 = __shfl_xor_sync(0xffffffffu, odd ? w[2] : w[3], 1);
  const uint32_t a0 = odd ? t0 : w[0], a1 = odd ? w[1] : t0, b0 = odd ? t1 : w[2], b1 = odd ? w[3] : t1;
  const uint32_t s0 = __shfl_xor_sync(0xffffffffu, high ? a0 : b0, 2);
  const uint32_t s1 = __shfl_xor_sync(0xffffffffu, high ? a1 : b1, 2);
  return high ? make_uint4(s0, s1, b0, b1) : make_uint4(a0, a1, s0, s1);
}

// Divide by the sums of weights, a head's sink among them, and store the warp's 16 rows from `row` on, except rows past
// the chunk.
template <int kDh>
__device__ void store_rows(const PrefillRows& rows, int row, const float (&o)[kDh / 2], const PrefillSoftmax& softmax) {
  const int lane = threadIdx.x % 32, mine = row + lane / 4, column = lane % 4 * 8;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const float zero = softmax_zero(softmax.maximum[h], rows.a.log2_scale);
    const float scale = 1.f / (softmax.sum[h] + rows.sink_weight(mine + 8 * h, zero));
    bf16* to = rows.output(mine + 8 * h) + column;
    const bool has = rows.has(mine + 8 * h);
#pragma unroll
    for (int g = 0; g < kDh / 8; g += 4) {  // 32 columns; the last time 16, if kDh % 32 is 16
      uint32_t words[4];
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const int i = 4 * min(g + j, kDh / 8 - 1) + 2 * h;
        words[j] = pack_bf16(o[i] * scale, o[i + 1] * scale);
      }
      const uint4 eight = transpose_quad(words);
      if (has && 8 * g + column < rows.a.head_size) store16(to + 8 * g, eight);
    }
  }
}

// Store the warp's 16 rows, not divided, in `partial`.
template <int kDh, int kRows>
__device__ void store_partial(float* partial, int row, const float (&o)[kDh / 2], const PrefillSoftmax& softmax) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const int mine = row + lane / 4 + 8 * h;
    float2* to = reinterpret_cast<float2*>(partial + mine * kDh + lane % 4 * 2);
#pragma unroll
    for (int g = 0; g < kDh / 8; g++) __stcg(to + 4 * g, make_float2(o[4 * g + 2 * h], o[4 * g + 2 * h + 1]));
    if (lane % 4 == 0) {
      __stcg(reinterpret_cast<float2*>(partial + kRows * kDh) + mine, make_float2(softmax.maximum[h], softmax.sum[h]));
    }
  }
}

__device__ __forceinline__ unsigned load_acquire(const unsigned* address) {
  unsigned value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}

__device__ __forceinline__ void add_release(unsigned* address, unsigned value) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}

// Wait until all `splits` thread blocks have arrived, and reset the count to zero. Called by one thread of each, after
// a barrier of the threads whose stores the others read. The plan splits only when all thread blocks run at once.
__device__ __forceinline__ void wait_for_all(unsigned* arrivals, int splits) {
  add_release(arrivals, 1u);
  while (load_acquire(arrivals) < splits) __nanosleep(64);
  if (atomicAdd(arrivals, 1u) == 2 * splits - 1) atomicExch(arrivals, 0u);
}

// Combine the partial results of some rows, always in the same order, and store them: each thread block of a split tile
// takes every splits-th row. `thread` numbers the kThreads that stored partial results; `sync` is their barrier.
template <int kDh, int kRows, int kThreads, class Sync>
__device__ void combine_partials(const PrefillRows& rows, int work, int thread, Sync sync) {
  const int splits = rows.splits(), first = work - rows.split() * rows.a.kv_heads;
  sync();
  if (thread == 0) wait_for_all(rows.a.arrivals + first, splits);
  sync();
  const int columns = rows.a.head_size / 4;
  const int mine = (min(kRows, rows.count() - rows.work_tile.first_row) - rows.split() + splits - 1) / splits;
  for (int i = thread; i < mine * columns; i += kThreads) {
    const int row = i / columns * splits + rows.split(), column = i % columns * 4;
    float maximum = kMasked, sum = 0.f, o[4] = {};
#pragma unroll 8
    for (int s = 0; s < splits; s++) {
      const float* partial =
          rows.a.partials + static_cast<long long>(first + s * rows.a.kv_heads) * kPrefillPartialFloats<kDh, kRows>;
      const float2 weight = __ldcg(reinterpret_cast<const float2*>(partial + kRows * kDh) + row);
      const float4 add = __ldcg(reinterpret_cast<const float4*>(partial + row * kDh + column));
      const float peak = fmaxf(maximum, weight.x), zero = softmax_zero(peak, rows.a.log2_scale);
      const float old = softmax_factor(maximum, rows.a.log2_scale, zero);
      const float now = softmax_factor(weight.x, rows.a.log2_scale, zero);
      maximum = peak;
      sum = sum * old + weight.y * now;
      o[0] = o[0] * old + add.x * now, o[1] = o[1] * old + add.y * now;
      o[2] = o[2] * old + add.z * now, o[3] = o[3] * old + add.w * now;
    }
    const float scale = 1.f / (sum + rows.sink_weight(row, softmax_zero(maximum, rows.a.log2_scale)));
    *reinterpret_cast<uint2*>(rows.output(row) + column) =
        make_uint2(pack_bf16(o[0] * scale, o[1] * scale), pack_bf16(o[2] * scale, o[3] * scale));
  }
}
