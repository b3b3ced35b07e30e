// linear_logits.cu: GEMM y = x W^T, stored in float32, on mma.sync; an entry for each tile.
//
//   x    : [N, in] bf16, as in linear.cu     W : [V, in] bf16, tiled     y : [N, V] float32, row-major
//   math : bf16 operands, float32 sums in a fixed order
//   grid : as linear.cu     block: as linear.cu     shared: as linear.cu
//   needs: as linear.cu (ops/cuda/gemm/linear.py checks)
//   check: tests/gpu/gemm/test_portable_linear.py against float32 sums of the same bf16, max |err| 1e-4
#include "linear_mma.cuh"

LINEAR_MMA_ENTRIES(linear_logits, kFloat32)
