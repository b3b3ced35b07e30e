// linear.cu: GEMM y = x W^T + bias on mma.sync; an entry linear_mma_n<tokens> for each tile.
//
//   x    : [N, in] bf16, rows apart by any multiple of 16 bytes     y : [N, out] bf16, row-major
//   W    : [out, in] bf16, tiled and swizzled (kernels/README.md)     bias : [out] bf16 or null
//   math : bf16 operands, float32 sums in a fixed order, bias added in float32, rounded once on store
//   grid : (token tiles, row tiles of 128, split-K)     block: (256, 1, 1)
//   shared: stages x (16 KB + tokens x 128 B), four stages, three at 128 tokens
//   needs: in % 8 == 0, 16-byte aligned rows of x, padding of W zero (ops/cuda/gemm/linear.py checks); W written before
//          the kernel ahead of this one began, since weights are loaded before that one has ended
//   check: tests/gpu/gemm/test_portable_linear.py against float32 sums of the same bf16, max |err| 1 bf16 ulp and
//          float32 rounding
#include "linear_mma.cuh"

LINEAR_MMA_ENTRIES(linear, kPlain)
