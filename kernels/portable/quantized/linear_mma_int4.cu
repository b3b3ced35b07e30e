// linear_mma_int4.cu: GEMM y = x W^T + bias of int4 weights with scales of groups on mma.sync; see quantized_mma.cuh.
//
//   x    : [N, in] bf16, rows apart by any multiple of 16 bytes     bias : [out] bf16 or null
//   W    : [out, in] int4 in groups of 128 or 64 columns, of 32 (_g32); with or without zero points
//          (kernels/README.md)
//   y    : [N, out] bf16, or float32; [N, out / 2] of SwiGLU, whose rows of gate and up are interleaved by eights
//   math : bf16 operands n - zero, float32 sums of a group times its scale, rows' scales and bias in float32
//   grid : (token tiles, row tiles of 128, split-K)     block: (256, 1, 1)
//   shared: four stages of x, of 64 to 256 columns
//   needs: in % 8 == 0, 16-byte aligned rows of x, zero points up to 127; W written before the kernel ahead began
//   check: tests/gpu/gemm/test_portable_quantized.py against float32 GEMMs of dequantized weights
#include "quantized_mma.cuh"

LINEAR_MMA_ENTRIES(int4, Int4Words)
LINEAR_MMA_ENTRIES(int4_g32, Int4Group32Words)
