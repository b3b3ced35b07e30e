// linear.cu: GEMM y = x W^T + bias; an entry linear_[tall_]n<tokens> for each tile.
//
//   x    : [N, in] bf16, rows apart by any multiple of 16 bytes (a tensor map, boxes of 64 columns x the tokens
//          of a tile, or half of them where two blocks share them, 128-byte swizzle, zeros outside); memory past row N
//          may be NaN
//   W    : [out, in] bf16, tiled and swizzled (kernels/README.md)     bias : [out] bf16 or null
//   y    : [N, out] bf16, row-major
//   math : bf16 operands, float32 sums in a fixed order, bias added in float32, rounded once on store
//   grid : (as planned, at most one a multiprocessor, 1, 1), in clusters of 2 for CTA pairs and multicast
//   block: (320, 1, 1) up to 64 tokens, (384, 1, 1) above; tall (512, 1, 1)
//   shared: stages x (16 KB, tall 24 KB + tokens x 128 B), and four buffers of 4 KB at most (tall six, at 256
//          tokens eight) in which results are transposed
//   needs: in % 8 == 0, 16-byte aligned rows of x, padding of W zero (ops/cuda/gemm/linear.py checks); W written before
//          the kernel ahead of this one began, since weights are loaded before that one has ended
//   check: tests/gpu/gemm/test_linear.py against float32 sums of the same bf16, max |err| 1 bf16 ulp and float32
//   rounding
//
// The portable kernels are here too, for comparison.
#include "../../portable/gemm/linear.cu"
#include "linear.cuh"

template <int kTokens>
using Plain = Bf16Epilogue<kTokens, RowsOut<false>>;

LINEAR_ENTRIES(linear, Plain)
