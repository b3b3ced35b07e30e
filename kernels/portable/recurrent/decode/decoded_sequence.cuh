// decoded_sequence.cuh: a sequence of the step as kernels for one token at a time see it.
#pragma once

struct DecodedSequence {
  int token, tokens, slot;  // its first token; the slot of its states, or -1

  __device__ __forceinline__ DecodedSequence(const int* starts, const int* slots, int sequence)
      : token(starts[sequence]), tokens(starts[sequence + 1] - token), slot(slots[sequence]) {}

  // The chunked kernels compute sequences of `min_tokens` and more; without a slot none does.
  __device__ __forceinline__ bool is_left_out(int min_tokens) const {
    return slot < 0 || tokens < 1 || tokens >= min_tokens;
  }
};
