// gather_rows.cu: out[i] = x[rows[i]], the rows of an activation whose logits are wanted.
//
//   x    : [N, in] bf16, row-major     rows : [R] int64     out : [R, in] bf16, row-major
//   math : exact
//   grid : (R, ceil(in / 1024), 1)    block : (128, 1, 1)    shared : none
//   needs: in % 8 == 0, 16-byte aligned x and out, out must not overlap x (ops/cuda/elementwise/rows.py checks);
//          rows inside of x
//   check: tests/gpu/elementwise/test_gather_rows.py against ops/reference/dense.py, equal to the bit
#include "math/bf16.cuh"
#include "sync/pdl.cuh"

constexpr int kThreads = WISP_ROW_THREADS;

extern "C" __global__ void __launch_bounds__(kThreads)
    gather_rows(const bf16* x, const int64_t* rows, bf16* out, int columns) {
  pdl_launch_dependents();
  const int64_t index = blockIdx.x;
  const int column = (blockIdx.y * kThreads + threadIdx.x) * kBf16Vec;
  pdl_wait();
  if (column < columns) store16(out + index * columns + column, load16(x + rows[index] * columns + column));
}
