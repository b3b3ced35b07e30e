// triangular_inverse.cuh: the inverse of a 64 x 64 matrix I + L, L strictly lower, in place, in float32.
//
// Diagonal blocks of 16 by forward substitution, a column a thread; then pairs of blocks are joined, as
// [A 0; C B]^-1 = [A^-1 0; -B^-1 C A^-1 B^-1]: blocks of 16 to 32, and of 32 to 64.
#pragma once

constexpr int kInverseThreads = 128;
constexpr int kInverseStride = 68;  // floats of a row in shared memory

struct Tile {
  float (*rows)[kInverseStride];

  __device__ __forceinline__ float4& at(int row, int column) const {
    return *reinterpret_cast<float4*>(&rows[row][column]);
  }
};

// Four columns of a row of M[row0 ...][k0 ...] times M[k0' ...][column0 ...], over `kLength` terms.
template <int kLength>
__device__ __forceinline__ float4 row_times(const Tile& tile, int row, int left, int upper, int column) {
  float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
  for (int k = 0; k < kLength; k++) {
    const float a = tile.rows[row][left + k];
    const float4 b = tile.at(upper + k, column);
    sum.x = fmaf(a, b.x, sum.x), sum.y = fmaf(a, b.y, sum.y);
    sum.z = fmaf(a, b.z, sum.z), sum.w = fmaf(a, b.w, sum.w);
  }
  return sum;
}

// Join diagonal blocks of kSize in pairs: the block below the first of each pair becomes -B^-1 C A^-1.
template <int kSize>
__device__ __forceinline__ void join_blocks(const Tile& tile, int thread) {
  constexpr int kQuads = kSize * kSize / 4, kAll = kQuads * (64 / kSize / 2);  // four columns of a row each
  constexpr int kMine = kAll / kInverseThreads;
  float4 sums[kMine];
  const auto place = [&](int i, int& origin, int& row, int& column) {
    const int quad = thread + i * kInverseThreads;
    origin = quad / kQuads * 2 * kSize;  // of the pair
    row = origin + kSize + quad % kQuads / (kSize / 4);
    column = origin + quad % (kSize / 4) * 4;
  };
  int origin, row, column;
#pragma unroll
  for (int pass = 0; pass < 2; pass++) {
#pragma unroll
    for (int i = 0; i < kMine; i++) {
      place(i, origin, row, column);
      if (pass == 0) {
        sums[i] = row_times<kSize>(tile, row, origin, origin, column);  // C A^-1
      } else {
        const float4 sum = row_times<kSize>(tile, row, origin + kSize, origin + kSize, column);  // B^-1 (C A^-1)
        sums[i] = make_float4(-sum.x, -sum.y, -sum.z, -sum.w);
      }
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kMine; i++) {
      place(i, origin, row, column);
      tile.at(row, column) = sums[i];
    }
    __syncthreads();
  }
}

// Invert in place. Above the diagonal there must be zeros; the diagonal is not read. Every thread of the block takes
// part in the barriers, kInverseThreads of them for each matrix; the matrix is complete before and after.
__device__ __forceinline__ void invert_unit_lower(const Tile& tile, int thread) {
  float column[16];
  const int origin = thread / 16 * 16, own = thread % 16;
  if (thread < 64) {
#pragma unroll
    for (int i = 0; i < 16; i++) {
      float sum = i == own ? 1.f : 0.f;
#pragma unroll
      for (int k = 0; k < i; k++) sum = fmaf(-tile.rows[origin + i][origin + k], column[k], sum);
      column[i] = sum;
    }
  }
  __syncthreads();
  if (thread < 64) {
#pragma unroll
    for (int i = 0; i < 16; i++) tile.rows[origin + i][origin + own] = column[i];
  }
  __syncthreads();
  join_blocks<16>(tile, thread);
  join_blocks<32>(tile, thread);
}
