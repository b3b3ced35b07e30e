// delta_chunk.cuh: what delta_chunks.cu computes of a chunk in a value head, and delta_scan.cu reads.
#pragma once

#include "math/bf16.cuh"
#include "sequences.cuh"

constexpr int kMaxSize = WISP_DELTA_MAX_SIZE;  // Dk and Dv, at most

// Rows are 64 bf16.
struct ChunkMatrices {
  bf16 solved[2][kChunk][kChunk];  // T diag(beta), T = (I + strictly lower part of the chunk)^-1: split in two bf16
  bf16 scores[2][kChunk][kChunk];  // scaled q k e^(G_i - G_j), lower triangle, split
};
struct ChunkFactors {   // of tokens; G is the sum of the logarithms of decay, up to and including the token
  float read[kChunk];   // e^G / |k|: what K S is multiplied by
  float query[kChunk];  // e^G Dk^-1/2 / |q|: what Q S is multiplied by
  float write[kChunk];  // e^(G_last - G) / |k|: what a column of K^T is multiplied by
  float decay[4];       // e^G_last, four times
};
