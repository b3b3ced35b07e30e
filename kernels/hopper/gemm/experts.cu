// experts.cu: GEMM of a mixture of experts whose experts have many tokens each, y = x W_e^T + bias_e, on wgmma; an
// entry experts_[swiglu_]tall_n<tokens> for each tile.
//
//   x    : [positions, in] bf16, a row a position (a tensor map as of linear.cu, boxes of a tile's tokens); memory past
//          the last may be NaN
//   W    : [E, out, in] bf16, each matrix tiled and swizzled (kernels/README.md), all equally far apart
//   bias : [E, out] bf16 in the order of W's rows, or null
//   y    : [positions, out] bf16; _swiglu: silu(gate) up of interleaved rows, half as wide
//   tiles: written by moe/sort_pairs.cu: an expert, and positions of which it has at most a tile's tokens
//   math : bf16 operands, float32 sums in the order of K, the same at any tile; bias and silu in float32, rounded once
//   grid : (at most one a multiprocessor, 1, 1)     block: (512, 1, 1)
//   shared: stages x (24 KB + tokens x 128 B), the buffers of linear.cu, and 256 bytes of barriers
//   needs: in % 8 == 0, out % 8 == 0, _swiglu out % 16 == 0 (ops/cuda/moe/experts.py checks)
//   check: tests/gpu/moe/test_wide_experts.py against float32 sums of the same bf16, relative 2^-7 (two roundings)
//
// The portable kernels are here too: they are faster where experts have few tokens.
#include "../../portable/gemm/experts.cu"
#include "experts.cuh"

EXPERTS(experts_tall_n128, 128, 3, false)
EXPERTS(experts_tall_n192, 192, 3, false)
EXPERTS(experts_swiglu_tall_n128, 128, 3, true)
EXPERTS(experts_swiglu_tall_n192, 192, 3, true)
