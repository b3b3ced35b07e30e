// experts_mma_fp4.cu: GEMM of a mixture of experts, of MXFP4 (in fields) or NVFP4 weights, on mma.sync; see
// quantized_mma.cuh.
//
//   x, bias, y, tiles : as in ../gemm/experts.cu
//   W    : [E, out, in], each matrix packed (kernels/README.md), all equally far apart
//   math : as in linear_mma_fp4.cu, in the order of K at any tile; bias and activation in float32, rounded once
//   grid : (row tiles of 128, tiles at most, 1)     block: (256, 1, 1)
//   shared: four stages of x, of 64 to 256 columns
//   needs: in % 16 == 0, 16-byte aligned rows of x (ops/cuda/moe/experts.py checks)
//   check: tests/gpu/moe/test_mixture.py against ops/reference/moe.py of the dequantized weights
#include "field_words.cuh"
#include "quantized_mma.cuh"

EXPERTS_MMA_ENTRIES(mxfp4_fields, Mxfp4FieldWords)
EXPERTS_MMA_ENTRIES(nvfp4, Nvfp4Words)
