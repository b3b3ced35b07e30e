// gather_positions.cu: out[p] = x[rows[p]], the tokens of a mixture's pairs in their sorted order.
//
//   x    : [N, D] bf16, rows apart by any multiple of 16 bytes     rows : [N K] int32 (sort_pairs.cu)
//   out  : [N K, D] bf16, row-major
//   math : copy only
//   grid : (ceil(N K / 4), ceil(D / 1024), 1)     block: (128, 1, 1)     shared: none
//   needs: D % 8 == 0, 16-byte aligned rows (ops/cuda/moe/experts.py checks)
//   check: tests/gpu/moe/test_wide_experts.py, equal
#include "math/bf16.cuh"
#include "sync/pdl.cuh"

constexpr int kThreads = WISP_ROW_THREADS, kRows = 4;

extern "C" __global__ void __launch_bounds__(kThreads)
    gather_positions(const bf16* x, const int* rows, bf16* out, long long stride, int columns, int positions) {
  pdl_launch_dependents();
  const int first = blockIdx.x * kRows, column = (blockIdx.y * kThreads + threadIdx.x) * kBf16Vec;
  pdl_wait();
  if (column >= columns) return;
  uint4 values[kRows];
#pragma unroll
  for (int i = 0; i < kRows; i++) {
    if (first + i < positions) values[i] = load16(x + rows[first + i] * stride + column);
  }
#pragma unroll
  for (int i = 0; i < kRows; i++) {
    if (first + i < positions) store16(out + static_cast<long long>(first + i) * columns + column, values[i]);
  }
}
