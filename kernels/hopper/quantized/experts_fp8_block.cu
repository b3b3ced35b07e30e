// experts_fp8_block.cu: GEMM of a mixture of experts in block FP8 whose experts have many tokens each,
// y = x W_e^T + bias_e, on wgmma; entries experts_[swiglu_]fp8_block_wide.
//
//   x    : [positions, in] bf16, a row a position (a tensor map, boxes of 64 columns x 64 tokens); memory past the last
//          may be NaN
//   W    : [E, out, in], E4M3 with a float32 for each 8 rows of a tile (wisp_plan/quantization/packed_format.py), all
//          equally far apart
//   bias : [E, out] bf16 in the order of W's rows, or null
//   y    : [positions, out] bf16; _swiglu: silu(gate) up of interleaved rows, half as wide
//   tiles: written by moe/sort_pairs.cu: an expert, and positions of which it has at most 256
//   math : weights become bf16, exactly; float32 sums in the order of K, the same at any tile, in units of the block's
//          scale; bias and silu in float32, rounded once
//   grid : (at most one a multiprocessor, 1, 1)     block: (384, 1, 1)
//   shared: 96 KB of tokens (_swiglu: 128), 65 KB of weights, 64 KB of results (_swiglu: 32), barriers and a tile
//   needs: in % 8 == 0, out % 8 == 0, _swiglu out % 16 == 0 (ops/cuda/moe/experts.py checks); sections of W begin at
//          multiples of 128 bytes
//   check: tests/gpu/moe/test_wide_experts.py against float32 of the dequantized weights, relative 2^-7 (two roundings)
//
// The portable kernels are here too: they are for experts that have few tokens.
#include "../../portable/quantized/experts_mma_fp8.cu"
#include "../moe/wide_experts.cuh"

#define EXPERTS(name, is_gated)                                                                \
  extern "C" __global__ void __launch_bounds__(kExpertThreads, 1)                              \
      name(const __grid_constant__ CUtensorMap map, const __grid_constant__ ExpertArgs args) { \
    expert_linear<is_gated>(&map, args);                                                       \
  }

EXPERTS(experts_fp8_block_wide, false)
EXPERTS(experts_swiglu_fp8_block_wide, true)
