// stages.cuh: a ring of chunks in shared memory, which a block's last warp fills and the others compute on.
#pragma once

#include "copy/async_copy.cuh"
#include "math/bf16.cuh"
#include "sequences.cuh"

// A stride that the compiler knows; others are an int.
template <int kValue>
struct Fixed {
  __device__ __forceinline__ operator int() const { return kValue; }
};

// One or two stages, each with the values of its tokens behind it: V, or x of Mamba-2, [64][stride] bf16.
template <class Stage, class Stride = int>
struct Stages {
  unsigned char* memory;
  int count;
  Stride stride;

  __device__ __forceinline__ Stage& of(int chunk) const {
    const int bytes = sizeof(Stage) + kChunk * stride * static_cast<int>(sizeof(bf16));
    return *reinterpret_cast<Stage*>(memory + chunk % count * bytes);
  }
  __device__ __forceinline__ bf16* value(Stage& stage, int row, int column) const {
    return reinterpret_cast<bf16*>(&stage + 1) + row * stride + column;
  }

  // The copying warp's loop: `copy(chunk)`, as many chunks ahead as there are stages.
  template <class Copy>
  __device__ __forceinline__ void fill(int chunks, const Copy& copy) const {
    const auto copy_existing = [&](int chunk) {
      if (chunk >= chunks) return;
      copy(chunk);
    };
    copy_existing(0);
    for (int chunk = 0; chunk < chunks; chunk++) {
      copies_wait<0>();
      __syncthreads();  // this chunk is there, and all have left the one before
      if (count > 1) copy_existing(chunk + 1);
      if (count == 1) {
        __syncthreads();
        copy_existing(chunk + 1);
      }
    }
  }
};
