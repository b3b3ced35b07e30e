// embedding.cu: out[n] = table[token n] as float32, rows read from the packed table.
//
//   tokens : [N] int32; t < 0 means row -1 - t of `drawn`     drawn : [M] int32, what the step before sampled; or null
//   table  : [V, D] bf16, packed in blocks of 64 x 64 with the 128-byte swizzle     out : [N, D] float32, row-major
//   math   : exact
//   grid   : (N, ceil(D / 1024), 1)    block : (128, 1, 1)    shared : none
//   needs  : D % 8 == 0, 16-byte aligned table and out (ops/cuda/elementwise/embedding.py checks). A token outside of the table
//            reads its nearest row: whoever made the token answers for it, and nothing is read out of bounds
//   check  : tests/gpu/elementwise/test_embedding.py against ops/reference/dense.py, equal to the bit
#include "math/bf16.cuh"
#include "sync/pdl.cuh"

constexpr int kThreads = WISP_ROW_THREADS;
constexpr int kBlockRows = 64, kBlockColumns = 64;

// Where chunk `chunk` (8 columns) of row `row` lies in a packed matrix of `tiles` blocks a row of blocks, in elements.
__device__ __forceinline__ int64_t packed_chunk(int row, int chunk, int tiles) {
  constexpr int kChunks = kBlockColumns / kBf16Vec;
  const int64_t block = static_cast<int64_t>(row / kBlockRows) * tiles + chunk / kChunks;
  const int place = (chunk % kChunks) ^ (row % 8);
  return block * (kBlockRows * kBlockColumns) + row % kBlockRows * kBlockColumns + place * kBf16Vec;
}

extern "C" __global__ void __launch_bounds__(kThreads) embedding(const int* tokens, const int* drawn, const bf16* table,
                                                                 float* out, int drawn_rows, int vocab, int columns) {
  pdl_launch_dependents();
  const int chunk = blockIdx.y * kThreads + threadIdx.x;
  pdl_wait();
  if (chunk >= columns / kBf16Vec) return;

  // 1. The token, perhaps one that the host does not know yet.
  int token = tokens[blockIdx.x];
  if (token < 0 && drawn_rows > 0) token = drawn[min(-1 - token, drawn_rows - 1)];
  token = min(max(token, 0), vocab - 1);

  // 2. Eight columns of its row.
  const int tiles = (columns + kBlockColumns - 1) / kBlockColumns;
  float values[8];
  load8(table + packed_chunk(token, chunk, tiles), values);
  store8(out + static_cast<int64_t>(blockIdx.x) * columns + chunk * kBf16Vec, values);
}
