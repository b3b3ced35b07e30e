// combine_experts.cu: out[n] = sigmoid(gates[n]) added[n] + sum over k of weights[n, k] y[positions[n, k]], a mixture's
// last step; without gates the factor is 1.
//
//   y    : [N K, D] bf16, a row a position (pair_order.cuh)     positions : [N, K] int32     weights : [N, K] float32
//   added: [N, D] bf16 or null     gates : [N] float32 or null     out : [N, D] bf16, may be `added`
//   math : float32, in the order of k, `added` last; rounded once on store
//   grid : (N, ceil(D / 1024), 1)     block: (128, 1, 1)     shared: none
//   needs: D % 8 == 0, 16-byte aligned arrays (ops/cuda/moe/experts.py checks)
//   check: tests/gpu/moe/test_mixture.py against ops/reference/moe.py
#include "expert_sum.cuh"
#include "sync/pdl.cuh"

constexpr int kThreads = WISP_ROW_THREADS;

extern "C" __global__ void __launch_bounds__(kThreads) combine_experts(const __grid_constant__ SumArgs a, bf16* out) {
  pdl_launch_dependents();
  const int64_t token = blockIdx.x;
  const int column = (blockIdx.y * kThreads + threadIdx.x) * kBf16Vec;
  pdl_wait();
  if (column < a.columns) store16(out + token * a.columns + column, expert_sum(a, token, column));
}
