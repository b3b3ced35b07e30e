// rmsnorm.cu: y = x / rms(x) * (offset + weight), one row a block.
//
//   x : [N, D] float32, row-major, or bf16 (rmsnorm_bf16)     weight : [D] bf16     y : [N, D] bf16
//   offset : 0, or 1 of zero-centred weights
//   math : float32, rounded once on store; rms(x) = sqrt(mean of squares + eps)
//   grid : (N, 1, 1)    block : (D / 8 / chunks, up to a multiple of 32, at most 512)    shared : 128 B, a float a warp
//   needs: D % 8 == 0; D <= 4096 (rmsnorm), 8192 (rmsnorm_2), 16384 (rmsnorm_4): chunks of 8 columns a thread;
//          16-byte aligned arrays, y must not overlap x; y is x of bf16 (ops/cuda/elementwise/norms.py checks)
//   check: tests/gpu/elementwise/test_norms.py against ops/reference/dense.py, max |err| 1 bf16 ulp
#include "rmsnorm.cuh"

#define RMSNORM(name, chunks)                                                             \
  extern "C" __global__ void __launch_bounds__(kNormThreads)                              \
      name(float* x, const bf16* weight, bf16* y, int columns, float eps, float offset) { \
    rmsnorm_row<chunks, false>(nullptr, x, weight, nullptr, y, columns, eps, offset);     \
  }

#define RMSNORM_BF16(name, chunks)                                                       \
  extern "C" __global__ void __launch_bounds__(kNormThreads)                             \
      name(bf16* x, const bf16* weight, bf16* y, int columns, float eps, float offset) { \
    rmsnorm_row<chunks, false>(nullptr, x, weight, nullptr, y, columns, eps, offset);    \
  }

RMSNORM(rmsnorm, 1)
RMSNORM(rmsnorm_2, 2)
RMSNORM(rmsnorm_4, 4)
RMSNORM_BF16(rmsnorm_bf16, 1)
RMSNORM_BF16(rmsnorm_bf16_2, 2)
RMSNORM_BF16(rmsnorm_bf16_4, 4)
