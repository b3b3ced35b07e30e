// linear_epilogue.cuh: from the sums of a warpgroup, [64 weight rows, kTokens] in registers, to rows of the output.
//
// A thread has two neighbouring tokens of a weight row; the output wants neighbouring rows of a token. bf16 turns over
// through shared memory, 32 tokens at a time (stmatrix.trans), so that eight lanes store 128 contiguous bytes. float32
// needs no turning: eight lanes have eight neighbouring rows already, a sector of 32 bytes.
#pragma once

#include "linear_parts.cuh"

// Store kCount 8 x 8 matrices of bf16, turned over: lane 8 m + i gives the address of matrix m's column i.
template <int kCount>
__device__ __forceinline__ void stmatrix_turned(uint32_t address, const uint32_t (&words)[kCount]) {
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

__device__ __forceinline__ float silu(float x) {
  return __fdividef(x, 1.f + __expf(-x));
}

// bf16 output. Gated: row r of each 16 is a gate, row r + 8 the value it gates, and 64 rows give 32 columns.
template <int kTokens, bool kGated>
struct Bf16Epilogue {
  static constexpr int kChunk = kTokens < 32 ? kTokens : 32;  // tokens that turn over at a time
  static constexpr int kPieces = kGated ? 4 : 8;              // 16-byte pieces of a token in a warpgroup's output
  static constexpr int kBufferBytes = kChunk * kPieces * 16;  // two for each warpgroup, used in turn
  static constexpr bool kHasBias = true;

  // Where piece `piece` of token `token` lies, so that neither way round meets a bank twice.
  __device__ static uint32_t place(int token, int piece) {
    return (token * kPieces + (piece ^ (kGated ? token / 2 % 4 : token % 8))) * 16;
  }

  __device__ static uint32_t word(const float (&sums)[kTokens / 2], const float (&bias)[2], int group, int half) {
    const float* s = sums + group * 4;
    if constexpr (kGated) {
      return pack_bf16(silu(s[0] + bias[0]) * (s[2] + bias[1]), silu(s[1] + bias[0]) * (s[3] + bias[1]));
    } else {
      return pack_bf16(s[half * 2] + bias[half], s[half * 2 + 1] + bias[half]);
    }
  }

  // Put tokens [first, first + kChunk) of the tile into the buffer.
  __device__ static void stage(const float (&sums)[kTokens / 2], const float (&bias)[2], int first, uint32_t buffer) {
    constexpr int kMatrices = kChunk / 8 * (kGated ? 1 : 2), kBatch = kMatrices < 4 ? kMatrices : 4;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
#pragma unroll
    for (int batch = 0; batch < kMatrices; batch += kBatch) {
      uint32_t words[kBatch];
#pragma unroll
      for (int j = 0; j < kBatch; j++) {
        const int matrix = batch + j;
        words[j] = word(sums, bias, first / 8 + (kGated ? matrix : matrix / 2), matrix % 2);
      }
      const int matrix = batch + lane / 8 % kBatch;
      const int token = (kGated ? matrix : matrix / 2) * 8 + lane % 8;
      stmatrix_turned<kBatch>(buffer + place(token, kGated ? warp : warp * 2 + matrix % 2), words);
    }
  }

  // Store what was staged: tokens from `token` of the output on, kChunk but none from `end` on, columns from `column`.
  __device__ static void store(const LinearArgs& args, uint32_t buffer, int token, int end, int column) {
    const int thread = threadIdx.x % 128;
    bf16* out = static_cast<bf16*>(args.out);
#pragma unroll
    for (int at = thread; at < kChunk * kPieces; at += 128) {
      const int row = at / kPieces, piece = at % kPieces, left = args.out_columns - (column + piece * 8);
      if (token + row >= end || left <= 0) continue;
      const uint32_t from = buffer + place(row, piece);
      bf16* to = out + static_cast<size_t>(token + row) * args.out_columns + column + piece * 8;
      if (kGated || args.out_columns % 8 == 0) {
        uint4 v;
        asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                     : "r"(from)
                     : "memory");
        store16(to, v);
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

  // Tokens [token, end) of the output. `turn` counts chunks: a buffer is written again only after the barrier of the
  // chunk between.
  __device__ static void run(const float (&sums)[kTokens / 2], const float (&bias)[2], int row_tile, int token, int end,
                             const LinearArgs& args, int warpgroup, uint32_t staging, int& turn) {
    const int column = row_tile * kPieces * 8;
#pragma unroll
    for (int first = 0; first < kTokens; first += kChunk) {
      if (token + first >= end) break;
      const uint32_t buffer = staging + (warpgroup * 2 + turn++ % 2) * kBufferBytes;
      stage(sums, bias, first, buffer);
      warpgroup_sync(warpgroup);
      store(args, buffer, token + first, end, column);
    }
  }
};

// float32 output, straight from the registers.
template <int kTokens>
struct Float32Epilogue {
  static constexpr bool kHasBias = false;

  __device__ static void run(const float (&sums)[kTokens / 2], const float (&)[2], int row_tile, int first_token,
                             int end, const LinearArgs& args, int, uint32_t, int&) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    const int column = row_tile * 64 + warp * 16 + lane / 4;
    const int token = first_token + lane % 4 * 2;
    float* out = static_cast<float*>(args.out) + static_cast<size_t>(token) * args.out_columns + column;
#pragma unroll
    for (int i = 0; i < kTokens / 2; i++) {
      const int right = i / 2 % 2 * 8, down = i / 4 * 8 + i % 2;
      if (token + down < end && column + right < args.out_columns) {
        out[static_cast<size_t>(down) * args.out_columns + right] = sums[i];
      }
    }
  }
};
