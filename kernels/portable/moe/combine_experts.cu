// combine_experts.cu: out[n] = added[n] + sum over k of weights[n, k] y[positions[n, k]], a mixture's last step.
//
//   y    : [N K, D] bf16, a row a position (sort_pairs.cu)     positions : [N, K] int32     weights : [N, K] float32
//   added: [N, D] bf16 or null     out : [N, D] bf16, may be `added`
//   math : float32, in the order of k, `added` last; rounded once on store
//   grid : (N, ceil(D / 1024), 1)     block: (128, 1, 1)     shared: none
//   needs: D % 8 == 0, 16-byte aligned arrays (ops/cuda/moe/experts.py checks)
//   check: tests/gpu/moe/test_mixture.py against ops/reference/moe.py
#include "math/bf16.cuh"
#include "sync/pdl.cuh"

constexpr int kThreads = WISP_ROW_THREADS;

extern "C" __global__ void __launch_bounds__(kThreads)
    combine_experts(const bf16* y, const int* positions, const float* weights, const bf16* added, bf16* out,
                    int columns, int chosen) {
  pdl_launch_dependents();
  const int64_t token = blockIdx.x;
  const int column = (blockIdx.y * kThreads + threadIdx.x) * kBf16Vec;
  pdl_wait();
  if (column >= columns) return;
  float sums[8] = {};
#pragma unroll 4
  for (int k = 0; k < chosen; k++) {
    const int64_t position = positions[token * chosen + k];
    const float weight = weights[token * chosen + k];
    float values[8];
    load8(y + position * columns + column, values);
#pragma unroll
    for (int i = 0; i < 8; i++) sums[i] = fmaf(weight, values[i], sums[i]);
  }
  if (added) {
    float values[8];
    load8(added + token * columns + column, values);
#pragma unroll
    for (int i = 0; i < 8; i++) sums[i] += values[i];
  }
  store8(out + token * columns + column, sums);
}
