// pack.cu: convert rows of a checkpoint's matrix to the tiled, 128B-swizzled layout that GEMMs read, and back.
//
//   rows   : [R, in] bf16, float16 or float32 (by entry), row-major     in : columns
//   packed : the complete matrix, blocks of 64 rows x 64 columns, 8,192 bytes each, row tile by row tile; in a block
//            row r has 128 bytes, its 16-byte chunk c at index c ^ (r % 8)
//   math   : rounded once to bf16, to nearest even
//   grid   : (ceil(k_tiles / 4), ceil(R / 32), 1)    block : (256, 1, 1)    shared : none
//   needs  : in % 8 == 0, 16-byte aligned rows, first + R inside the matrix (ops/cuda/weights/packing.py checks);
//            columns past `in` are not written: the arena is zeroed. The next kernel may stream weights before this one
//            has ended: synchronize after packing
//   check  : tests/gpu/gemm/test_pack.py against ops/reference/packing.py, exact
#include <cuda_fp16.h>

#include "math/bf16.cuh"
#include "packed_row.cuh"
#include "sync/pdl.cuh"

constexpr int kThreads = WISP_PACK_THREADS, kChunks = 8, kRows = kThreads / kChunks;
constexpr int kTilesAtOnce = WISP_PACK_TILES;
constexpr int kBlockChunks = 64 * kChunks;  // of a block of the layout

__device__ __forceinline__ uint4 load_rounded(const bf16* from) {
  return load16(from);
}

__device__ __forceinline__ uint4 load_rounded(const float* from) {
  float values[8];
  load8(from, values);
  return pack8(values);
}

__device__ __forceinline__ uint4 load_rounded(const __half* from) {
  const uint4 packed = load16(from);
  const __half2* pairs = reinterpret_cast<const __half2*>(&packed);
  float values[8];
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const float2 pair = __half22float2(pairs[i]);
    values[2 * i] = pair.x;
    values[2 * i + 1] = pair.y;
  }
  return pack8(values);
}

// The chunks of this thread: one chunk of one row in kTilesAtOnce neighbouring blocks.
struct Chunks {
  int row, column, count;  // in rows [R, in]: the first column, and the number of blocks
  size_t packed;           // offset in chunks

  __device__ Chunks(int rows, int first, int columns, int k_tiles, int order) {
    const int chunk = threadIdx.x % kChunks, k = blockIdx.x * kTilesAtOnce;
    row = blockIdx.y * kRows + threadIdx.x / kChunks;
    column = k * 64 + chunk * 8;
    count = row < rows && column < columns ? min((columns - column + 63) / 64, kTilesAtOnce) : 0;
    const int at = packed_row(first + row, order);
    packed = (static_cast<size_t>(at / 64) * k_tiles + k) * kBlockChunks + at % 64 * kChunks + (chunk ^ at % 8);
  }
};

template <class Source>
__device__ __forceinline__ void pack(const Source* source, uint4* packed, const Chunks& at, int columns) {
  const Source* from = source + static_cast<size_t>(at.row) * columns + at.column;
  uint4 values[kTilesAtOnce];
  pdl_wait();
#pragma unroll
  for (int i = 0; i < kTilesAtOnce; i++) {
    if (i < at.count) values[i] = load_rounded(from + i * 64);
  }
#pragma unroll
  for (int i = 0; i < kTilesAtOnce; i++) {
    if (i < at.count) packed[at.packed + i * kBlockChunks] = values[i];
  }
}

#define PACK_ENTRY(name, Source)                                                                            \
  extern "C" __global__ void __launch_bounds__(kThreads)                                                    \
      name(const Source* source, uint4* packed, int rows, int first, int columns, int k_tiles, int order) { \
    pdl_launch_dependents();                                                                                \
    pack(source, packed, Chunks(rows, first, columns, k_tiles, order), columns);                            \
  }

PACK_ENTRY(pack_bf16, bf16)
PACK_ENTRY(pack_f16, __half)
PACK_ENTRY(pack_f32, float)

// Read rows [first, first + R) of one order as row-major bf16.
extern "C" __global__ void __launch_bounds__(kThreads)
    unpack(const uint4* packed, bf16* out, int rows, int first, int columns, int k_tiles, int order) {
  pdl_launch_dependents();
  const Chunks at(rows, first, columns, k_tiles, order);
  bf16* to = out + static_cast<size_t>(at.row) * columns + at.column;
  pdl_wait();
#pragma unroll
  for (int i = 0; i < kTilesAtOnce; i++) {
    if (i < at.count) store16(to + i * 64, packed[at.packed + i * kBlockChunks]);
  }
}
