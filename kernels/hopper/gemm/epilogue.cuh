// epilogue.cuh: move the sums of a warpgroup, [64 weight rows, kTokens] in registers, to rows of the output.
//
// A thread has two neighbouring tokens of a weight row; the output has neighbouring rows of a token. bf16 is transposed
// in shared memory, 32 tokens at a time (stmatrix.trans), so that eight lanes store 128 contiguous bytes. float32 needs
// no transposing: eight lanes have eight neighbouring rows already, a sector of 32 bytes.
#pragma once

#include "math/activation.cuh"
#include "split_k.cuh"

// Store kCount 8 x 8 matrices of bf16, transposed: lane 8 m + i gives the address of matrix m's column i.
template <int kCount>
__device__ __forceinline__ void stmatrix_transposed(uint32_t address, const uint32_t (&words)[kCount]) {
  if constexpr (kCount == 4) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared::cta.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
                 "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
                 : "memory");
  } else if constexpr (kCount == 2) {
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared::cta.b16 [%0], {%1, %2};" ::"r"(address), "r"(words[0]),
                 "r"(words[1])
                 : "memory");
  } else {
    asm volatile("stmatrix.sync.aligned.m8n8.x1.trans.shared::cta.b16 [%0], {%1};" ::"r"(address), "r"(words[0])
                 : "memory");
  }
}

// Return the offset of 16-byte vector `vector` of a token in a buffer: stmatrix and the 16-byte reads are free of bank
// conflicts.
template <int kVectors>
__device__ __forceinline__ uint32_t transposed_offset(int token, int vector) {
  return (token * kVectors + (vector ^ (kVectors == 4 ? token / 2 % 4 : token % 8))) * 16;
}

__device__ __forceinline__ uint4 load_shared16(uint32_t address) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(address)
               : "memory");
  return v;
}

// bf16 output, through shared memory. `Out` defines a row and the destination of its tokens (RowsOut below, RotaryOut
// of rotary_epilogue.cuh). A tile is accepted when its sums are complete and stored chunk by chunk, which may overlap
// the multiplications of the next.
template <int kTokens, class Out>
struct Bf16Epilogue {
  using Extra = typename Out::Extra;
  static constexpr bool kHasBias = true, kGated = Out::kGated;
  static constexpr int kChunk = kTokens < 32 ? kTokens : 32;  // tokens that are transposed at a time
  static constexpr int kChunks = kTokens / kChunk;
  static constexpr int kVectors = kGated ? 4 : 8;  // of 16 bytes, for a token of a warpgroup's output
  static constexpr int kBufferBytes = kChunk * kVectors * 16;
  static constexpr int kWords = kGated ? kTokens / 8 : kTokens / 4;  // of a thread: two neighbouring tokens each
  static constexpr int kChunkWords = kWords / kChunks;
  // Chunks that are kept in shared memory where registers are few, and the buffers of a warpgroup, used alternately.
  static constexpr int kParked = kTokens == 256 && !kGated ? 4 : 0, kBuffers = kParked > 0 ? kParked : 2;

  uint32_t words[kWords - kParked * kChunkWords];  // of the chunks that are not parked
  uint32_t buffers;                                // shared address
  int column, token, end;                          // of the output; `column` counts 64 a row tile, 32 if gated

  __device__ Bf16Epilogue(uint32_t staging, int warpgroup) : buffers(staging + warpgroup * kBuffers * kBufferBytes) {}

  // Accept the sums of a row tile. Called by the whole warpgroup, like all below.
  __device__ __forceinline__ void accept(const float (&sums)[kTokens / 2], const float (&bias)[2], int row_tile,
                                         int first_token, int last_token, int warpgroup) {
    column = row_tile * kVectors * 8;
    token = first_token;
    end = last_token;
    warpgroup_sync(warpgroup);  // all threads have stored the last chunks of the tile before
#pragma unroll
    for (int chunk = 0; chunk < kParked; chunk++) {
      uint32_t parked[kChunkWords];
#pragma unroll
      for (int i = 0; i < kChunkWords; i++) parked[i] = word(sums, bias, chunk * kChunkWords + i);
      stage(parked, buffers + chunk * kBufferBytes);
    }
#pragma unroll
    for (int i = kParked * kChunkWords; i < kWords; i++) words[i - kParked * kChunkWords] = word(sums, bias, i);
  }

  // Store chunk `chunk` of the accepted tile; chunks are stored in order. A buffer is written again only after the
  // barrier of a chunk between.
  __device__ __forceinline__ void store_chunk(int chunk, const GemmArgs& args, const Extra& more, int warpgroup) {
    if (token + chunk * kChunk >= end) return;
    const uint32_t buffer = buffers + chunk % kBuffers * kBufferBytes;
#pragma unroll
    for (int i = kParked; i < kChunks; i++) {  // words are registers: their numbers are known when compiling
      if (chunk != i) continue;
      uint32_t taken[kChunkWords];
#pragma unroll
      for (int j = 0; j < kChunkWords; j++) taken[j] = words[(i - kParked) * kChunkWords + j];
      stage(taken, buffer);
    }
    warpgroup_sync(warpgroup);
    Out::template store<kChunk>(args, more, buffer, column, token + chunk * kChunk, end);
  }

 private:
  // Word i of this thread: if gated, for group i of eight tokens; else for group i / 2, weight row r or r + 8.
  __device__ static uint32_t word(const float (&sums)[kTokens / 2], const float (&bias)[2], int i) {
    if constexpr (kGated) {
      const float* s = sums + i * 4;
      return pack_bf16(silu(s[0] + bias[0]) * (s[2] + bias[1]), silu(s[1] + bias[0]) * (s[3] + bias[1]));
    } else {
      return pack_bf16(sums[2 * i] + bias[i % 2], sums[2 * i + 1] + bias[i % 2]);
    }
  }

  // Write the words of a chunk to a buffer, transposed.
  __device__ static void stage(const uint32_t (&chunk)[kChunkWords], uint32_t buffer) {
    constexpr int kBatch = kChunkWords < 4 ? kChunkWords : 4;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
#pragma unroll
    for (int batch = 0; batch < kChunkWords; batch += kBatch) {
      uint32_t matrices[kBatch];
#pragma unroll
      for (int j = 0; j < kBatch; j++) matrices[j] = chunk[batch + j];
      const int matrix = batch + lane / 8 % kBatch;
      const int row = (kGated ? matrix : matrix / 2) * 8 + lane % 8;
      stmatrix_transposed<kBatch>(buffer + transposed_offset<kVectors>(row, kGated ? warp : warp * 2 + matrix % 2),
                                  matrices);
    }
  }
};

// Output rows in the order of the weight's rows. Gated: row r of each 16 is a gate, row r + 8 its up value, and 64 rows
// give 32 columns.
template <bool kIsGated>
struct RowsOut {
  struct Extra {};
  static constexpr bool kGated = kIsGated;
  static constexpr int kVectors = kGated ? 4 : 8;

  template <int kChunk>
  __device__ static void store(const GemmArgs& args, const Extra&, uint32_t buffer, int column, int token, int end) {
    bf16* out = static_cast<bf16*>(args.out);
#pragma unroll
    for (int at = threadIdx.x % 128; at < kChunk * kVectors; at += 128) {
      const int row = at / kVectors, vector = at % kVectors, left = args.out_columns - (column + vector * 8);
      if (token + row >= end || left <= 0) continue;
      const uint32_t from = buffer + transposed_offset<kVectors>(row, vector);
      bf16* to = out + static_cast<size_t>(token + row) * args.out_columns + column + vector * 8;
      if (kGated || args.out_columns % 8 == 0) {
        store16(to, load_shared16(from));
      } else {  // rows of the output are not aligned
#pragma unroll 1
        for (int e = 0; e < min(left, 8); e++) {
          uint16_t v;
          asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(from + e * 2) : "memory");
          reinterpret_cast<uint16_t*>(to)[e] = v;
        }
      }
    }
  }
};

// float32 output, straight from the registers.
template <int kTokens>
struct Float32Epilogue {
  struct Extra {};
  static constexpr bool kHasBias = false;
  static constexpr int kChunks = 1;

  float sums[kTokens / 2];
  int row_tile, token, end;

  __device__ Float32Epilogue(uint32_t, int) {}

  __device__ __forceinline__ void accept(const float (&tile)[kTokens / 2], const float (&)[2], int tile_of_rows,
                                         int first_token, int last_token, int) {
    row_tile = tile_of_rows;
    token = first_token;
    end = last_token;
#pragma unroll
    for (int i = 0; i < kTokens / 2; i++) sums[i] = tile[i];
  }

  __device__ __forceinline__ void store_chunk(int, const GemmArgs& args, const Extra&, int) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    const int column = row_tile * 64 + warp * 16 + lane / 4, first = token + lane % 4 * 2;
    float* out = static_cast<float*>(args.out) + static_cast<size_t>(first) * args.out_columns + column;
#pragma unroll
    for (int i = 0; i < kTokens / 2; i++) {
      const int right = i / 2 % 2 * 8, down = i / 4 * 8 + i % 2;
      if (first + down < end && column + right < args.out_columns) {
        out[static_cast<size_t>(down) * args.out_columns + right] = sums[i];
      }
    }
  }
};
