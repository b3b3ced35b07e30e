// embedding.cu: out[n] = table[token n] as float32, rows read from the tiled table.
//
//   tokens : [N] int32; t < 0 means row -1 - t of `sampled`     sampled : [M] int32, tokens of the step before, or null
//   table  : [V, D] bf16, in 128B-swizzled blocks of 64 x 64     out : [N, D] float32, row-major
//   math   : exact
//   grid   : (N, ceil(D / 1024), 1)    block : (128, 1, 1)    shared : none
//   needs  : D % 8 == 0, 16-byte aligned table and out (ops/cuda/elementwise/embedding.py checks). A token outside of
//            the table reads the nearest row, so that nothing is read out of bounds
//   check  : tests/gpu/elementwise/test_embedding.py against ops/reference/dense.py, equal to the bit
#include "copy/tiled_matrix.cuh"
#include "math/bf16.cuh"
#include "sync/pdl.cuh"

constexpr int kThreads = WISP_ROW_THREADS;

extern "C" __global__ void __launch_bounds__(kThreads)
    embedding(const int* tokens, const int* sampled, const bf16* table, float* out, int sampled_rows, int vocab,
              int columns) {
  pdl_launch_dependents();
  const int chunk = blockIdx.y * kThreads + threadIdx.x;
  pdl_wait();
  if (chunk >= columns / kBf16Vec) return;

  // 1. The token, perhaps one that the step before sampled.
  int token = tokens[blockIdx.x];
  if (token < 0 && sampled_rows > 0) token = sampled[min(-1 - token, sampled_rows - 1)];
  token = min(max(token, 0), vocab - 1);

  // 2. Eight columns of its row.
  const int tiles = (columns + kBlockColumns - 1) / kBlockColumns;
  float values[8];
  load8(table + tiled_chunk(token, chunk, tiles), values);
  store8(out + static_cast<int64_t>(blockIdx.x) * columns + chunk * kBf16Vec, values);
}
