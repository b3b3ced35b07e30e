// expert_sum.cuh: the last step of a mixture, a token's weighted sum of its experts' results and the shared expert's;
// combine_experts.cu and combine_rmsnorm.cu share it.
#pragma once

#include "math/bf16.cuh"

struct SumArgs {
  const bf16* y;         // [N K, D], a row a position
  const int* positions;  // [N, K]
  const float* weights;  // [N, K]
  const bf16* added;     // [N, D], or null
  const float* gates;    // [N] logits whose sigmoid `added` is multiplied by, or null
  int columns, chosen;
};

// The sum of eight columns in the order of k, `added` last, in float32, rounded once. Loads of kAtOnce experts are in
// flight at once.
template <int kAtOnce = 8>
__device__ __forceinline__ uint4 expert_sum(const SumArgs& a, int64_t token, int column) {
  float sums[8] = {}, gate = 1.f;
  uint4 added = {};
  if (a.added) added = load16(a.added + token * a.columns + column);
  if (a.gates) gate = a.gates[token];
  for (int k = 0; k < a.chosen; k += kAtOnce) {
    uint4 rows[kAtOnce];
    float weights[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; i++) {
      if (k + i >= a.chosen) continue;
      const int64_t pair = token * a.chosen + k + i;
      weights[i] = a.weights[pair];
      rows[i] = load16(a.y + static_cast<int64_t>(a.positions[pair]) * a.columns + column);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; i++) {
      if (k + i >= a.chosen) continue;
      float values[8];
      unpack8(rows[i], values);
#pragma unroll
      for (int j = 0; j < 8; j++) sums[j] = fmaf(weights[i], values[j], sums[j]);
    }
  }
  if (a.added) {
    const float factor = a.gates ? __fdividef(1.f, 1.f + __expf(-gate)) : 1.f;
    float values[8];
    unpack8(added, values);
#pragma unroll
    for (int j = 0; j < 8; j++) sums[j] = fmaf(factor, values[j], sums[j]);
  }
  return pack8(sums);
}
