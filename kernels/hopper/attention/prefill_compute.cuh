// prefill_compute.cuh: consumer warpgroups of prefill attention.
//
// The scores of a tile are computed while the tensor cores also add the weighted values of the tile before; the softmax
// of the new scores overlaps that second GEMM (Shah et al. 2024, arXiv:2407.08608, section 3.2).
#pragma once

#include "attention/prefill_output.cuh"
#include "mma/wgmma.cuh"
#include "prefill_copy.cuh"

namespace hopper {

// clang-format off
// d = A B, both in shared memory: wgmma_ss that overwrites d.
#define FIRST_D4(i) "=f"(d[i]), "=f"(d[i + 1]), "=f"(d[i + 2]), "=f"(d[i + 3])
#define FIRST_D16(i) FIRST_D4(i), FIRST_D4(i + 4), FIRST_D4(i + 8), FIRST_D4(i + 12)
__device__ __forceinline__ void wgmma_first(float (&d)[32], uint64_t a, uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" WGMMA_R0 WGMMA_R1 "}, %32, %33, 0, 1, 1, 0, 0;"
               : FIRST_D16(0), FIRST_D16(16) : "l"(a), "l"(b));
}
__device__ __forceinline__ void wgmma_first(float (&d)[64], uint64_t a, uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" WGMMA_R0 WGMMA_R1 WGMMA_R2 WGMMA_R3
               "}, %64, %65, 0, 1, 1, 0, 0;"
               : FIRST_D16(0), FIRST_D16(16), FIRST_D16(32), FIRST_D16(48) : "l"(a), "l"(b));
}
#undef FIRST_D4
#undef FIRST_D16
// clang-format on

// As wgmma_registers, for the operand in registers.
template <int kCount>
__device__ __forceinline__ void operand_registers(uint32_t (&words)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; i++) asm volatile("" : "+r"(words[i])::"memory");
}

__device__ __forceinline__ void store_zeros16(uint32_t address) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(address), "r"(0) : "memory");
}

// Broadcast a descriptor, equal in all lanes, so that the compiler keeps it in uniform registers.
__device__ __forceinline__ uint64_t uniform(uint64_t descriptor) {
  const uint32_t low = __shfl_sync(0xffffffffu, static_cast<uint32_t>(descriptor), 0);
  return descriptor >> 32 << 32 | low;
}

// Advance a descriptor by `bytes`: the address is its low bits, in units of 16.
__device__ __forceinline__ uint64_t advance(uint64_t descriptor, int bytes) {
  return descriptor >> 32 << 32 | (static_cast<uint32_t>(descriptor) + bytes / 16);
}

// One warpgroup on one work tile.
template <class Tile>
struct ConsumerWarpgroup {
  static constexpr int kTokens = Tile::kTokens, kDh = Tile::kDh;
  const PrefillRows& rows;
  const SmemLayout<Tile>& memory;
  int group;
  PrefillSoftmax softmax;
  float o[kDh / 2];
  uint32_t weights[kTokens / 4];  // of the tile before, packed

  __device__ ConsumerWarpgroup(const PrefillRows& r, const SmemLayout<Tile>& m, int g)
      : rows(r), memory(m), group(g), softmax(r, row()) {
#pragma unroll
    for (int i = 0; i < kDh / 2; i++) o[i] = 0.f;
  }

  // The warp's first row of the tile.
  __device__ int row() const { return 64 * group + threadIdx.x / 32 % 4 * 16; }

  // Release a stage of a pipeline, for one warp.
  __device__ static void release(uint32_t empty) {
    if (threadIdx.x % 32 == 0) mbarrier_arrive(empty);
  }

  // Start scores = Q K^T.
  __device__ void multiply_keys(float (&scores)[kTokens / 2], uint32_t queries, uint32_t keys) const {
    const uint64_t a = uniform(wgmma_descriptor(queries + group * 64 * 128)), b = uniform(wgmma_descriptor(keys));
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < kDh / 16; k++) {
      const uint64_t ak = advance(a, k / 4 * Tile::kQueryPanelBytes + k % 4 * 32);
      const uint64_t bk = advance(b, k / 4 * Tile::kKvPanelBytes + k % 4 * 32);
      if (k == 0) {
        wgmma_first(scores, ak, bk);
      } else {
        wgmma_ss<kTokens>(scores, ak, bk);
      }
    }
    wgmma_commit();
  }

  // Start o += weights V.
  __device__ void multiply_values(uint32_t values) {
    const uint64_t b = uniform(wgmma_descriptor_transposed(values, Tile::kKvPanelBytes));
    wgmma_registers(o);
    operand_registers(weights);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < kTokens / 16; k++) {
      const uint32_t a[4] = {weights[4 * k], weights[4 * k + 1], weights[4 * k + 2], weights[4 * k + 3]};
      wgmma_rs<kDh, 1>(o, a, advance(b, k * 16 * 128));
    }
    wgmma_commit();
  }

  __device__ void apply_softmax(float (&scores)[kTokens / 2], int tile, float (&factor)[2]) {
    if (softmax.needs_mask(tile * kTokens, kTokens)) softmax.mask(scores, tile * kTokens);
    softmax.update(scores, factor);
  }

  // Masked tokens may hold NaN, and their weight 0 times NaN is NaN: zero V's rows from `begin` to `end` of the tile.
  // Every warpgroup clears for itself, so that none waits for another.
  __device__ void clear_values(uint32_t values, int begin, int end) const {
    constexpr int kChunks = Tile::kPanels * 8;
    for (int i = begin * kChunks + threadIdx.x % kGroupThreads; i < end * kChunks; i += kGroupThreads) {
      const int chunk = i % kChunks;
      store_zeros16(values + chunk / 8 * Tile::kKvPanelBytes + i / kChunks * 128 + chunk % 8 * 16);
    }
    fence_async_shared();
    named_sync(kGroupBarrier + group, kGroupThreads);
  }

  // Alternate with the other warpgroup at the tensor cores.
  __device__ void acquire_tensor_cores() const {
    if (Tile::kAlternates) named_sync(kAlternateBarrier + group, Tile::kComputeThreads);
  }
  __device__ void release_tensor_cores() const {
    if (Tile::kAlternates) named_arrive(kAlternateBarrier + (group ^ 1), Tile::kComputeThreads);
  }

  __device__ void run(uint32_t queries, uint32_t queries_empty, PipelineState<Tile::kStages>& key,
                      PipelineState<Tile::kStages>& value) {
    const int begin = rows.work_tile.kv_begin, end = rows.work_tile.kv_end;
    float scores[kTokens / 2], factor[2];

    // 1. First tile: scores and weights.
    mbarrier_wait(memory.keys_full(key.stage), key.parity);
    multiply_keys(scores, queries, memory.keys(key.stage));
    wgmma_wait<0>();
    wgmma_registers(scores);
    release(memory.keys_empty(key.stage));
    key.advance();
    apply_softmax(scores, begin, factor);
    pack_weights(weights, scores);
    if (begin * kTokens < rows.lowest()) {
      mbarrier_wait(memory.values_full(value.stage), value.parity);
      clear_values(memory.values(value.stage), 0, rows.lowest() - begin * kTokens);
    }

    // 2. Each further tile: its scores, then its softmax while the values of the tile before are added.
#pragma unroll 1
    for (int tile = begin + 1; tile < end; tile++) {
      mbarrier_wait(memory.keys_full(key.stage), key.parity);
      acquire_tensor_cores();
      multiply_keys(scores, queries, memory.keys(key.stage));
      mbarrier_wait(memory.values_full(value.stage), value.parity);
      multiply_values(memory.values(value.stage));
      release_tensor_cores();
      wgmma_wait<1>();
      wgmma_registers(scores);
      release(memory.keys_empty(key.stage));
      key.advance();
      apply_softmax(scores, tile, factor);
      wgmma_wait<0>();
      wgmma_registers(o);
      release(memory.values_empty(value.stage));
      value.advance();
      scale_rows(o, factor);
      pack_weights(weights, scores);
    }
    release(queries_empty);

    // 3. Values of the last tile.
    mbarrier_wait(memory.values_full(value.stage), value.parity);
    if (end * kTokens > rows.context()) {
      clear_values(memory.values(value.stage), rows.context() - (end - 1) * kTokens, kTokens);
    }
    multiply_values(memory.values(value.stage));
    wgmma_wait<0>();
    wgmma_registers(o);
    release(memory.values_empty(value.stage));
    value.advance();
    softmax.finish();
  }
};

// Loop of consumer warpgroup `group`.
template <class Tile>
__device__ void compute(const PrefillArguments& a, const SmemLayout<Tile>& memory, int group) {
  PipelineState<Tile::kStages> key, value;
  PipelineState<Tile::kBuffers> query;
  if (Tile::kAlternates && group == 1) named_arrive(kAlternateBarrier, Tile::kComputeThreads);  // group 0 begins
#pragma unroll 1
  for (int round = 0; nth_work_tile(round) < a.work_count; round++) {
    const int work = nth_work_tile(round);
    const PrefillRows rows(a, work);
    ConsumerWarpgroup<Tile> mine(rows, memory, group);
    mbarrier_wait(memory.queries_full(query.stage), query.parity);
    if (round == 0) {
      copy_query_rows<Tile>(rows, memory.queries(0), 64 * group, 64, threadIdx.x % kGroupThreads, kGroupThreads);
      named_sync(kGroupBarrier + group, kGroupThreads);
    }
    mine.run(memory.queries(query.stage), memory.queries_empty(query.stage), key, value);
    query.advance();
    if (rows.splits() == 1) {
      store_rows<Tile::kDh>(rows, mine.row(), mine.o, mine.softmax);
    } else {
      float* partial = a.partials + static_cast<long long>(work) * kPrefillPartialFloats<Tile::kDh, Tile::kRows>;
      store_partial<Tile::kDh, Tile::kRows>(partial, mine.row(), mine.o, mine.softmax);
      combine_partials<Tile::kDh, Tile::kRows, Tile::kComputeThreads>(
          rows, work, threadIdx.x - kGroupThreads, [] { named_sync(kComputeBarrier, Tile::kComputeThreads); });
    }
  }
}

}  // namespace hopper
