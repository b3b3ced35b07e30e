// rmsnorm.cuh: RMSNorm of one row by one thread block, the row in registers; rmsnorm.cu and add_rmsnorm.cu share it.
#pragma once

#include "math/bf16.cuh"
#include "math/reduce.cuh"
#include "sync/pdl.cuh"

constexpr int kNormThreads = WISP_NORM_THREADS;  // at most; kNormThreads * kChunks * 8 columns

// y[blockIdx.x] = r / rms(r) * (offset + weight), where r is row `rows[blockIdx.x]` of `residual` (without `rows`: row
// blockIdx.x); `offset` is 1 where weights are zero-centred, else 0. kAdds: x[blockIdx.x] is first added to that row. A
// thread holds kChunks chunks of 8 columns; all its loads are in flight at once, because a few rows cost latency alone.
// Without kAdds rows may be bf16, and y may be `residual`.
template <int kChunks, bool kAdds, class Element = float>
__device__ __forceinline__ void rmsnorm_row(const bf16* x, Element* residual, const bf16* weight, const int64_t* rows,
                                            bf16* y, int columns, float eps, float offset) {
  __shared__ float scratch[32];
  pdl_launch_dependents();
  auto column = [](int i) { return static_cast<int>(i * blockDim.x + threadIdx.x) * kBf16Vec; };

  // 1. The weight, while the kernel before still runs.
  uint4 scale[kChunks];
#pragma unroll
  for (int i = 0; i < kChunks; i++) {
    if (column(i) < columns) scale[i] = load16(weight + column(i));
  }
  const float share = 1.f / static_cast<float>(columns);
  pdl_wait();

  // 2. The row.
  const int64_t index = blockIdx.x, row = rows == nullptr ? index : rows[index];
  float values[kChunks][8] = {};
  uint4 added[kChunks] = {};
#pragma unroll
  for (int i = 0; i < kChunks; i++) {
    if (column(i) >= columns) continue;
    load8(residual + row * columns + column(i), values[i]);
    if constexpr (kAdds) added[i] = load16(x + index * columns + column(i));
  }

  // 3. The sum, and the sum of its squares.
  float squares = 0.f;
#pragma unroll
  for (int i = 0; i < kChunks; i++) {
    if constexpr (kAdds) {
      float more[8];
      unpack8(added[i], more);
#pragma unroll
      for (int j = 0; j < 8; j++) values[i][j] += more[j];
      if (column(i) < columns) store8(residual + row * columns + column(i), values[i]);
    }
#pragma unroll
    for (int j = 0; j < 8; j++) squares = fmaf(values[i][j], values[i][j], squares);
  }
  const float inverse = rsqrtf(block_sum(squares, scratch) * share + eps);

  // 4. The norm.
#pragma unroll
  for (int i = 0; i < kChunks; i++) {
    if (column(i) >= columns) continue;
    float scales[8];
    unpack8(scale[i], scales);
#pragma unroll
    for (int j = 0; j < 8; j++) values[i][j] *= inverse * (offset + scales[j]);
    store8(y + index * columns + column(i), values[i]);
  }
}
