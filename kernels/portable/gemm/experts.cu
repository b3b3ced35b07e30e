// experts.cu: GEMM of a mixture of experts, y = activation(x W_e^T + bias_e) of each expert's tokens, on mma.sync; an
// entry experts_mma_n<tokens> for each tile.
//
//   x    : [N, in] bf16, rows apart by any multiple of 16 bytes, row rows[position]; or a row a position
//   W    : [E, out, in] bf16, each matrix tiled and swizzled (kernels/README.md), all equally far apart
//   bias : [E, out] bf16 in the order of W's rows, or null
//   y    : [positions, out] bf16, or half as wide where gate and up are interleaved by eights: silu(gate) up,
//          or clamped; of an up without a gate the square of its positive part
//   tiles: written by moe/sort_pairs.cu: an expert, and positions of which it has at most a tile's tokens
//   math : bf16 operands, float32 sums in the order of K at any tile, bias and activation in float32, rounded once
//   grid : (row tiles of 128, tiles at most, 1)     block: (256, 1, 1)
//   shared: stages x (16 KB + tokens x 128 B), four stages, three at 128 tokens
//   needs: in % 8 == 0, 16-byte aligned rows of x, padding of W zero (ops/cuda/moe/experts.py checks)
//   check: tests/gpu/moe/test_mixture.py against ops/reference/moe.py, relative 2^-7 (two roundings)
#include "linear_mma.cuh"

EXPERTS_MMA(8)
EXPERTS_MMA(16)
EXPERTS_MMA(32)
EXPERTS_MMA(64)
EXPERTS_MMA(128)
