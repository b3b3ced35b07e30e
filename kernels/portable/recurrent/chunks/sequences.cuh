// sequences.cuh: chunks of 64 tokens of the sequences of a step.
//
// A chunk never spans sequences; a sequence's last may have fewer tokens. Each warp finds them from `starts` alone.
#pragma once

#include "math/reduce.cuh"

constexpr int kChunk = WISP_RECURRENT_CHUNK;

// Sequences first ... last - 1 of those with at least min_tokens tokens.
struct Sequences {
  const int* starts;
  int first, last, min_tokens;

  // Chunks of a sequence; zero past the last.
  __device__ __forceinline__ int chunks(int sequence) const {
    if (sequence >= last) return 0;
    const int tokens = starts[sequence + 1] - starts[sequence];
    return tokens < min_tokens ? 0 : (tokens + kChunk - 1) / kChunk;
  }

  // Chunks of the sequences before one.
  __device__ __forceinline__ int chunks_before(int sequence) const {
    int count = 0;
    for (int i = first + static_cast<int>(threadIdx.x % 32); i < sequence; i += 32) count += chunks(i);
    return static_cast<int>(warp_sum(static_cast<float>(count)));
  }
};

// One chunk: its sequence, first token, and tokens; none past the last chunk.
struct Chunk {
  int sequence, token, tokens = 0;

  __device__ __forceinline__ Chunk(const Sequences& sequences, int index) {
    const int lane = threadIdx.x % 32;
    for (int begin = sequences.first; begin < sequences.last; begin += 32) {
      const int count = sequences.chunks(begin + lane);
      int before = count;  // of the lanes up to this one
#pragma unroll
      for (int distance = 1; distance < 32; distance *= 2) {
        const int other = __shfl_up_sync(kWholeWarp, before, distance);
        if (lane >= distance) before += other;
      }
      const int total = __shfl_sync(kWholeWarp, before, 31);
      if (index >= total) {
        index -= total;
        continue;
      }
      const int owner = static_cast<int>(warp_sum(before <= index ? 1.f : 0.f));
      const int in_sequence = index - __shfl_sync(kWholeWarp, before - count, owner);
      sequence = begin + owner;
      token = sequences.starts[sequence] + in_sequence * kChunk;
      tokens = min(kChunk, sequences.starts[sequence + 1] - token);
      return;
    }
  }
};
