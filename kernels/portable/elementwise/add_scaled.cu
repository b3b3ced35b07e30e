// add_scaled.cu: residual += factor * x in place, for every row, or row i of x into row rows[i] of residual.
//
//   x : [R, D] bf16, row-major     residual : [N, D] float32, or bf16 (add_scaled_bf16)
//   rows : [R] int64 or null (R = N)
//   math : float32; a residual of bf16 is rounded once on store
//   grid : (R, ceil(D / 1024), 1)    block : (128, 1, 1)    shared : none
//   needs: D % 8 == 0; 16-byte aligned arrays, x apart from residual (ops/cuda/elementwise/scaling.py checks); rows
//          inside of residual, none twice
//   check: tests/gpu/elementwise/test_scaling.py against ops/reference/dense.py, 1 ulp
#include "math/bf16.cuh"
#include "sync/pdl.cuh"

constexpr int kThreads = WISP_ROW_THREADS;

template <class Element>
__device__ __forceinline__ void add(const bf16* x, Element* residual, const int64_t* rows, int columns, float factor) {
  pdl_launch_dependents();
  const int64_t index = blockIdx.x;
  const int column = (blockIdx.y * kThreads + threadIdx.x) * kBf16Vec;
  pdl_wait();
  if (column >= columns) return;
  const int64_t row = rows == nullptr ? index : rows[index];
  float values[8], sums[8];
  load8(x + index * columns + column, values);
  load8(residual + row * columns + column, sums);
#pragma unroll
  for (int i = 0; i < 8; i++) sums[i] = fmaf(factor, values[i], sums[i]);
  store8(residual + row * columns + column, sums);
}

extern "C" __global__ void __launch_bounds__(kThreads)
    add_scaled(const bf16* x, float* residual, const int64_t* rows, int columns, float factor) {
  add(x, residual, rows, columns, factor);
}

extern "C" __global__ void __launch_bounds__(kThreads)
    add_scaled_bf16(const bf16* x, bf16* residual, const int64_t* rows, int columns, float factor) {
  add(x, residual, rows, columns, factor);
}
