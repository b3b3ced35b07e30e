// linear_int4.cu: GEMMs y = x W^T with int4 weights in groups of 128; entries of four ops for each tile.
//
//   x    : [N, in] bf16, as in ../gemm/linear.cu (a tensor map, boxes of 64 columns x the tokens of a tile)
//   W    : [out, in], int4 with f16 scales, zero points or not, in the order of wisp_plan/quantization/packed_format.py
//   y    : as in ../gemm: linear.cu, linear_swiglu.cu (gate and up interleaved), linear_rotary.cu, linear_logits.cu
//   math : weights become bf16, rounded once; float32 sums in a fixed order, times the row scale,
//          then as in ../gemm
//   grid : (as planned, at most one a multiprocessor, 1, 1)     block: (384, 1, 1)
//   shared: token stages x tokens x 128 B, weight stages x two tiles, and the epilogue's buffers
//           (ops/cuda/gemm/quantized_tiling.py)
//   needs: as in ../gemm, and in % 16 == 0 (ops/cuda/gemm/checks.py, ops/cuda/weights/quantized.py check); sections of
//          W begin at multiples of 128 bytes
//   check: tests/gpu/gemm/test_quantized_linear.py against float32 of the dequantized weights
#include "linear_quantized.cuh"

QUANTIZED_ENTRIES(Dequantized<Int4Codec<128>>)
