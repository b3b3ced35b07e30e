// stream_weights.cuh: a stage of weights of stream_experts.cuh, 64 rows and a tile's columns: copied, then multiplied.
#pragma once

#include "../../portable/quantized/field_words.cuh"
#include "../../portable/quantized/quantized_mma.cuh"
#include "copy/tma.cuh"
#include "sync/mbarrier.cuh"

namespace stream {

constexpr int kItemRows = 64;
constexpr int kScaleBytes = 32;  // a tile's block scales

// Packed weights, by their Words.
template <class Words>
struct Packed {
  static constexpr int kColumns = Words::kColumns, kChunks = kColumns / portable::kChunk;
  static constexpr bool kHasBlockScales = Words::kHasBlockScales;

  static __device__ __forceinline__ int bytes(const portable::QuantizedArgs& q) { return 4 * q.slice_bytes; }

  // Copy a tile of `bytes` and its block scales. Of the last in K, `chunks` times 64 columns may be all there are.
  static __device__ __forceinline__ void load(uint32_t to, const unsigned char* from, const unsigned char* block_scales,
                                              int chunks, int bytes, uint32_t full) {
    const int more = kHasBlockScales ? kScaleBytes : 0;
    if (kHasBlockScales) bulk_load(to + bytes, block_scales, kScaleBytes, full, kEvictFirst);
    if (chunks >= kChunks) {
      mbarrier_arrive_expect(full, bytes + more);
      bulk_load(to, from, bytes, full, kEvictFirst);
      return;
    }
    const int slice_bytes = bytes / 4, scales = slice_bytes - portable::kCodeBytes;
    const int codes = chunks * (portable::kCodeBytes / kChunks);
    mbarrier_arrive_expect(full, 4 * (codes + scales) + more);
#pragma unroll 1
    for (int i = 0; i < 4; i++, to += slice_bytes, from += slice_bytes) {
      bulk_load(to, from, codes, full, kEvictFirst);
      if (scales > 0) bulk_load(to + portable::kCodeBytes, from + portable::kCodeBytes, scales, full, kEvictFirst);
    }
  }

  // sums += this warp's rows times the tokens of `chunks` times 64 columns. At `tokens` lies what this lane names for
  // ldmatrix: 16 bytes of a token. All words are loaded before the first are multiplied: a warp waits for them once.
  static __device__ __forceinline__ void multiply(float (&sums)[1][1][4], const unsigned char* stage, int chunks,
                                                  const portable::QuantizedArgs& q, uint32_t tokens) {
    const int warp = threadIdx.x / 32;
    const portable::SharedSlicePlace place = {
        {stage + warp * q.slice_bytes, stage + bytes(q) + warp * 8, q.group_shift, q.zero_points}};
    Words words[kChunks];
#pragma unroll
    for (int i = 0; i < kChunks; i++) words[i].load(place, i);
    if (chunks >= kChunks) {
#pragma unroll
      for (int i = 0; i < kChunks; i++) multiply_words(sums, words[i], tokens + i * 128);
      return;
    }
#pragma unroll
    for (int i = 0; i < kChunks; i++) {
      if (i >= chunks) break;
      multiply_words(sums, words[i], tokens + i * 128);
    }
  }

 private:
  static __device__ __forceinline__ void multiply_words(float (&sums)[1][1][4], const Words& words, uint32_t tokens) {
    portable::SliceFragments<Words> made[1];
#pragma unroll
    for (int step = 0; step < 4; step++) made[0].make(words, step);
    portable::multiply_chunk(sums, made, [&](int, int half) { return tokens + half * 64; });
  }
};

// Weights of bf16, tiled and swizzled.
struct Tiled {
  static constexpr int kColumns = portable::kChunk;
  static constexpr bool kHasBlockScales = false;

  static __device__ __forceinline__ int bytes(const portable::QuantizedArgs&) { return kItemRows * kColumns * 2; }

  static __device__ __forceinline__ void load(uint32_t to, const unsigned char* from, const unsigned char*, int,
                                              int bytes, uint32_t full) {
    mbarrier_arrive_expect(full, bytes);
    bulk_load(to, from, bytes, full, kEvictFirst);
  }

  static __device__ __forceinline__ void multiply(float (&sums)[1][1][4], const unsigned char* stage, int,
                                                  const portable::QuantizedArgs&, uint32_t tokens) {
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane % 16;
    const uint32_t weights = shared_address(stage) + row * 128;
#pragma unroll
    for (int half = 0; half < 2; half++) {
      uint32_t t[4];
      load_matrices(t, tokens + half * 64);
#pragma unroll
      for (int step = 0; step < 2; step++) {
        uint32_t w[4];
        load_matrices(w, weights + (((half * 2 + step) * 2 + lane / 16) ^ lane % 8) * 16);
        mma_16x8x16(sums[0][0], w, t + step * 2);
      }
    }
  }
};

}  // namespace stream
