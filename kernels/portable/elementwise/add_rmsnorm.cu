// add_rmsnorm.cu: residual += x in place, then y = residual / rms(residual) * (offset + weight), for every row, or for
// row i of x and y with row rows[i] of residual.
//
//   x, y : [R, D] bf16, row-major     residual : [N, D] float32     weight : [D] bf16
//   rows : [R] int64 or null (R = N)     offset : 0, or 1 of zero-centred weights
//   math : float32, the residual is stored unrounded, y rounded once; rms(r) = sqrt(mean of squares + eps)
//   grid : (R, 1, 1)    block : (D / 8 / chunks, up to a multiple of 32, at most 512)    shared : 128 B
//   needs: D % 8 == 0; D <= 4096 (add_rmsnorm), 8192 (_2), 16384 (_4): chunks of 8 columns a thread; 16-byte aligned
//          arrays, none overlapping (ops/cuda/elementwise/norms.py checks); rows inside of residual, none twice
//   check: tests/gpu/elementwise/test_norms.py against ops/reference/dense.py, residual equal to the bit, y within 1
//          bf16 ulp
#include "rmsnorm.cuh"

#define ADD_RMSNORM(name, chunks)                                                                                    \
  extern "C" __global__ void __launch_bounds__(kNormThreads)                                                         \
      name(const bf16* x, float* residual, const bf16* weight, const int64_t* rows, bf16* y, int columns, float eps, \
           float offset) {                                                                                           \
    rmsnorm_row<chunks, true>(x, residual, weight, rows, y, columns, eps, offset);                                   \
  }

ADD_RMSNORM(add_rmsnorm, 1)
ADD_RMSNORM(add_rmsnorm_2, 2)
ADD_RMSNORM(add_rmsnorm_4, 4)
