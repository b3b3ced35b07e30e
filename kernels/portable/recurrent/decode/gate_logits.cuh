// gate_logits.cuh: b and a of one token in a value head: two rows of a tiled matrix times the layer's input.
#pragma once

#include "copy/prefetch.cuh"
#include "copy/tiled_matrix.cuh"
#include "math/reduce.cuh"

// Of kThreads threads, the first of whom is `first`; each warp has its own sums.
template <int kThreads>
struct GateLogits {
  const bf16* weight;  // [2 Hv, D], tiled: b, then a
  int rows[2], columns;

  __device__ __forceinline__ GateLogits(const bf16* matrix, int head, int heads, int inputs)
      : weight(matrix), rows{head, heads + head}, columns(inputs) {}

  __device__ __forceinline__ void prefetch(int thread) const {
    const int tiles = (columns + kBlockColumns - 1) / kBlockColumns;
    for (int tile = thread; tile < tiles; tile += kThreads) {
      prefetch_line(weight + tiled_chunk(rows[0], tile * (kBlockColumns / kBf16Vec), tiles));
      prefetch_line(weight + tiled_chunk(rows[1], tile * (kBlockColumns / kBf16Vec), tiles));
    }
  }

  // Every lane gets its warp's sums.
  __device__ __forceinline__ float2 multiply(const bf16* x, int thread) const {
    const int tiles = (columns + kBlockColumns - 1) / kBlockColumns;
    float sums[2] = {};
#pragma unroll 2
    for (int chunk = thread; chunk < columns / kBf16Vec; chunk += kThreads) {
      float inputs[8];
      load8(x + chunk * kBf16Vec, inputs);
#pragma unroll
      for (int which = 0; which < 2; which++) {
        float weights[8];
        load8(weight + tiled_chunk(rows[which], chunk, tiles), weights);
#pragma unroll
        for (int i = 0; i < 8; i++) sums[which] = fmaf(weights[i], inputs[i], sums[which]);
      }
    }
    return make_float2(warp_sum(sums[0]), warp_sum(sums[1]));
  }
};
