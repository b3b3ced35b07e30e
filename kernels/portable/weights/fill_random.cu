// fill_random.cu: w[i] = bf16(mean + scale * r(i)): random weights without a checkpoint, in the tiled layout.
//
//   weight : a tiled matrix [rows, columns] bf16; for fill_random_vector a vector [count] bf16
//   r(i)   : signed half word i % 8 of philox((i / 8, 0, 0, 0), key). i counts row by row, in the order of the
//            checkpoint: all rows of gate, then all of up; a head's channels one after the other
//   math   : float32, multiplication and addition each rounded, then rounded to bf16; padding is written as 0
//   grid   : (padded rows * padded columns / 2048, 1, 1), for a vector (ceil(count / 2048), 1, 1)
//   block  : (256, 1, 1)    shared : none
//   needs  : columns % 8 == 0, rows whole heads or a multiple of 16, 16-byte aligned weight, less than 2^35 numbers
//            (ops/cuda/device/arena.py checks)
//   check  : tests/gpu/engine/test_loading.py against ops/reference/random.py, equal to the bit
#include "math/bf16.cuh"
#include "math/philox.cuh"
#include "sync/pdl.cuh"

constexpr int kThreads = 256;
constexpr int kBlockRows = 64;
constexpr int kBlockChunks = 8;  // of 8 columns
constexpr int kChunksABlock = kBlockRows * kBlockChunks;

// Eight random bf16: numbers 8 * group to 8 * group + 7.
__device__ __forceinline__ uint4 random8(uint32_t group, unsigned long long key, float scale, float mean) {
  const auto key_high = static_cast<uint32_t>(key >> 32);
  const uint4 words = philox4x32(make_uint4(group, 0, 0, 0), make_uint2(static_cast<uint32_t>(key), key_high));
  const uint32_t pairs[4] = {words.x, words.y, words.z, words.w};
  float values[8];
#pragma unroll
  for (int i = 0; i < 8; i++) {
    const auto half = static_cast<int16_t>(i % 2 ? pairs[i / 2] >> 16 : pairs[i / 2] & 0xffffu);
    values[i] = __fadd_rn(__fmul_rn(static_cast<float>(half), scale), mean);
  }
  return pack8(values);
}

// Return the checkpoint's row that lies at `index` of `count`. `order`: 0 plain; 1 halves interleaved by eight; else
// the size of a head, its halves interleaved by 32.
__device__ __forceinline__ int stacked_row(int index, int count, int order) {
  if (order == 0) return index;
  if (order == 1) return index / 16 * 8 + index % 8 + (index % 16 < 8 ? 0 : count / 2);
  const int within = index % order;
  return index - within + within / 64 * 32 + within % 32 + (within % 64 < 32 ? 0 : order / 2);
}

extern "C" __global__ void __launch_bounds__(kThreads)
    fill_random(bf16* weight, int rows, int columns, int order, unsigned long long key, float scale, float mean) {
  pdl_launch_dependents();
  pdl_wait();

  // 1. The row and the eight columns of this thread's 16 bytes: blocks of 64 x 64, chunks swizzled in a row.
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int block = static_cast<int>(index / kChunksABlock), within = static_cast<int>(index % kChunksABlock);
  const int tiles = (columns + 63) / 64;
  const int block_row = within / kBlockChunks;
  const int row = block / tiles * kBlockRows + block_row;
  const int chunk = block % tiles * kBlockChunks + (within % kBlockChunks ^ block_row % 8);

  // 2. Padding, or eight numbers that depend on their row and column alone.
  uint4 values = make_uint4(0, 0, 0, 0);
  if (row < rows && chunk < columns / kBf16Vec) {
    const int stacked = stacked_row(row, rows, order);
    const uint32_t group = static_cast<uint32_t>(stacked) * (columns / kBf16Vec) + chunk;
    values = random8(group, key, scale, mean);
  }
  store16(weight + index * kBf16Vec, values);
}

// Rows [first, first + count / columns) of a matrix, row-major, for what has another layout.
extern "C" __global__ void __launch_bounds__(kThreads)
    fill_random_rows(bf16* rows, long long count, int columns, int first, unsigned long long key, float scale,
                     float mean) {
  pdl_launch_dependents();
  pdl_wait();
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (index * kBf16Vec >= count) return;
  const uint32_t group = static_cast<uint32_t>(first) * (columns / kBf16Vec) + static_cast<uint32_t>(index);
  store16(rows + index * kBf16Vec, random8(group, key, scale, mean));
}

extern "C" __global__ void __launch_bounds__(kThreads)
    fill_random_vector(bf16* weight, int count, int order, unsigned long long key, float scale, float mean) {
  pdl_launch_dependents();
  pdl_wait();
  const int first = (blockIdx.x * kThreads + threadIdx.x) * kBf16Vec;
  if (first >= count) return;
  const int stacked = stacked_row(first, count, order);
  const uint4 values = random8(stacked / kBf16Vec, key, scale, mean);
  if (first + kBf16Vec <= count) {
    store16(weight + first, values);
    return;
  }
  for (int i = 0; i < count - first; i++) weight[first + i] = reinterpret_cast<const bf16*>(&values)[i];
}
