// linear_swiglu.cu: y = silu(gate) * up, both from one GEMM x W^T + bias; an entry for each tile.
//
//   x    : [N, in] bf16, as in linear.cu     W : [2 F, in] bf16, tiled; rows of gate and up interleaved by eights
//   bias : [2 F] bf16 in the same order, or null     y : [N, F] bf16, row-major
//   math : bf16 operands, float32 sums in a fixed order; bias, silu and gating in float32, rounded once on store
//   grid : as linear.cu     block: as linear.cu     shared: as linear.cu
//   needs: as linear.cu, and F % 8 == 0 (ops/cuda/gemm/linear.py checks)
//   check: tests/gpu/gemm/test_linear.py against float32 sums of the same bf16, relative 2^-8 (rounding) and 1e-5 (exp)
#include "../../portable/gemm/linear_swiglu.cu"
#include "linear.cuh"

template <int kTokens>
using Gated = Bf16Epilogue<kTokens, RowsOut<true>>;

LINEAR_ENTRIES(linear_swiglu, Gated)
