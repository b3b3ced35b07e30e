// take_rows.cu: out[i] = x[rows[i]], the rows of an activation that are still wanted, side by side.
//
//   x    : [N, in] bf16, row-major     rows : [R] int64     out : [R, in] bf16, row-major
//   math : exact
//   grid : (R, ceil(in / 1024), 1)    block : (128, 1, 1)    shared : none
//   needs: in % 8 == 0, 16-byte aligned x and out, out apart from x (ops/cuda/elementwise/rows.py checks); rows inside of x
//   check: tests/gpu/elementwise/test_take_rows.py against ops/reference/dense.py, equal to the bit
#include "math/bf16.cuh"
#include "sync/pdl.cuh"

constexpr int kThreads = WISP_ROW_THREADS;

extern "C" __global__ void __launch_bounds__(kThreads)
    take_rows(const bf16* x, const int64_t* rows, bf16* out, int columns) {
  pdl_launch_dependents();
  const int64_t place = blockIdx.x;
  const int column = (blockIdx.y * kThreads + threadIdx.x) * kBf16Vec;
  pdl_wait();
  if (column < columns) store16(out + place * columns + column, load16(x + rows[place] * columns + column));
}
