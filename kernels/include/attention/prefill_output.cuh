// prefill_output.cuh: where prefill attention's sums go: to the output, or to memory until all parts of a row are
// there.
//
// Sums lie in registers as prefill_softmax.cuh says: o[4 g + 2 h + e] is row l / 4 + 8 h of the warp's 16, column
// 8 g + 2 (l % 4) + e of the head.
#pragma once

#include "attention/prefill_softmax.cuh"
#include "attention/prefill_work.cuh"

// A part of a tile: kRows x kDh sums, then maximum and sum of weights of each row.
template <int kDh, int kRows>
constexpr int kPrefillPartFloats = kRows * (kDh + 2);

// Four words of a lane are its column pairs of four 8-column groups; the quad transposes them, so that lane q of it has
// group q whole.
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

// Divide by the sums of weights and store the warp's 16 rows from `row` on, as far as the chunk has them.
template <int kDh>
__device__ void store_rows(const PrefillRows& rows, int row, const float (&o)[kDh / 2], const PrefillSoftmax& softmax) {
  const int lane = threadIdx.x % 32, mine = row + lane / 4, column = lane % 4 * 8;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const float scale = 1.f / softmax.sum[h];
    bf16* to = rows.output(mine + 8 * h) + column;
    const bool has = rows.has(mine + 8 * h);
#pragma unroll
    for (int g = 0; g < kDh / 8; g += 4) {  // 32 columns; the last time 16, if kDh is so
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

// Leave the warp's 16 rows, not divided, in `part`.
template <int kDh, int kRows>
__device__ void store_part(float* part, int row, const float (&o)[kDh / 2], const PrefillSoftmax& softmax) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const int mine = row + lane / 4 + 8 * h;
    float2* to = reinterpret_cast<float2*>(part + mine * kDh + lane % 4 * 2);
#pragma unroll
    for (int g = 0; g < kDh / 8; g++) __stcg(to + 4 * g, make_float2(o[4 * g + 2 * h], o[4 * g + 2 * h + 1]));
    if (lane % 4 == 0) {
      __stcg(reinterpret_cast<float2*>(part + kRows * kDh) + mine, make_float2(softmax.most[h], softmax.sum[h]));
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

// Wait until all `parts` thread blocks have come here, and leave the count at zero. One thread of each calls it, behind
// a barrier of the threads whose stores the others shall see. The plan splits only when all thread blocks run at once.
__device__ __forceinline__ void meet(unsigned* arrivals, int parts) {
  add_release(arrivals, 1u);
  while (load_acquire(arrivals) < parts) __nanosleep(64);
  if (atomicAdd(arrivals, 1u) == 2 * parts - 1) atomicExch(arrivals, 0u);
}

// Add the parts of some rows, always in the same order, and store them: each of the thread blocks that share a tile
// takes every parts-th row. `thread` counts the kThreads that stored parts; `sync` is a barrier of theirs.
template <int kDh, int kRows, int kThreads, class Sync>
__device__ void join_parts(const PrefillRows& rows, int work, int thread, Sync sync) {
  const int parts = rows.parts(), first = work - rows.part() * rows.a.kv_heads;
  sync();
  if (thread == 0) meet(rows.a.arrivals + first, parts);
  sync();
  const int columns = rows.a.head_size / 4;
  const int mine = (min(kRows, rows.count() - rows.item.first_row) - rows.part() + parts - 1) / parts;
  for (int i = thread; i < mine * columns; i += kThreads) {
    const int row = i / columns * parts + rows.part(), column = i % columns * 4;
    float most = kHidden, sum = 0.f, o[4] = {};
#pragma unroll 8
    for (int p = 0; p < parts; p++) {
      const float* part =
          rows.a.parts + static_cast<long long>(first + p * rows.a.kv_heads) * kPrefillPartFloats<kDh, kRows>;
      const float2 weight = __ldcg(reinterpret_cast<const float2*>(part + kRows * kDh) + row);
      const float4 add = __ldcg(reinterpret_cast<const float4*>(part + row * kDh + column));
      const float peak = fmaxf(most, weight.x), zero = softmax_zero(peak, rows.a.log2_scale);
      const float old = softmax_factor(most, rows.a.log2_scale, zero);
      const float now = softmax_factor(weight.x, rows.a.log2_scale, zero);
      most = peak;
      sum = sum * old + weight.y * now;
      o[0] = o[0] * old + add.x * now, o[1] = o[1] * old + add.y * now;
      o[2] = o[2] * old + add.z * now, o[3] = o[3] * old + add.w * now;
    }
    const float scale = 1.f / sum;
    *reinterpret_cast<uint2*>(rows.output(row) + column) =
        make_uint2(pack_bf16(o[0] * scale, o[1] * scale), pack_bf16(o[2] * scale, o[3] * scale));
  }
}
