// linear_mma_fp8.cu: GEMM y = x W^T + bias of E4M3 weights with scales of rows or blocks on mma.sync; see
// quantized_mma.cuh.
//
//   x    : [N, in] bf16, rows apart by any multiple of 16 bytes     W : [out, in] E4M3, packed (kernels/README.md)
//   bias : [out] bf16 or null
//   y    : [N, out] bf16, or float32; [N, out / 2] of SwiGLU, whose rows of gate and up are interleaved by eights
//   math : bf16 operands, float32 sums, of 64 columns times their block's scale (_block); rows' scales, bias in float32
//   grid : (token tiles, row tiles of 128, split-K)     block: (256, 1, 1)
//   shared: four stages of x, of 64 or 128 columns
//   needs: in % 8 == 0, 16-byte aligned rows of x, no NaN in W; W written before the kernel ahead began
//   check: tests/gpu/gemm/test_portable_quantized.py against float32 GEMMs of dequantized weights
#include "quantized_mma.cuh"

LINEAR_MMA_ENTRIES(fp8, Fp8Words)
LINEAR_MMA_ENTRIES(fp8_block, Fp8BlockWords)
