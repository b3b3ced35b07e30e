// mma_output.cuh: last steps of a GEMM tile on mma.sync: combining partial sums of K-ranges, epilogue, store.
#pragma once

#include "math/activation.cuh"
#include "math/bf16.cuh"

namespace portable {

// Of gate and up: silu(gate) * up, or clamped (math/activation.cuh); of an up without a gate the square of its positive
// part.
enum class Store { kPlain, kGated, kFloat32, kClamped, kSquared };

template <Store kStore>
constexpr bool kIsGated = kStore == Store::kGated || kStore == Store::kClamped;

// By value, as ops/cuda/gemm/portable_linear.py fills it.
struct GemmArgs {
  const unsigned char* weight;
  const bf16* bias;  // [rows] in the weight's row order, or null
  void* out;
  float4* partials;    // [tiles, splits of a tile, sums of a thread / 4, kGemmThreads]
  unsigned* arrivals;  // [tiles], zero before and after
  long long x_stride;  // elements
  int rows, inputs, tokens;
};

constexpr int kGemmThreads = WISP_MMA_GEMM_THREADS, kTileRows = 128;

// The tile of a block: its 128 weight rows, and its tokens [first, end).
struct TilePlace {
  int row_tile, first, end;
};

// What is multiplied with and added to the sums of rows `row` and `row + 8`.
struct RowTerms {
  float scale[2], bias[2];

  // `scales` are the rows', if any.
  __device__ __forceinline__ void load(const GemmArgs& a, int row, const float* scales) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const bool exists = row + 8 * i < a.rows;
      bias[i] = a.bias && exists ? __bfloat162float(a.bias[row + 8 * i]) : 0.f;
      scale[i] = scales && exists ? scales[row + 8 * i] : 1.f;
    }
  }
};

// A thread's sums of a tile: kM fragments of 16 rows by kN of 8 tokens, from `warp_row` and `warp_token` on. K-ranges
// are blockIdx.z; of a GEMM that splits K, token tiles are blockIdx.x, row tiles blockIdx.y.
template <class Tile>
struct TileOutput {
  const GemmArgs& a;
  TilePlace at;
  int lane, warp_row, warp_token;  // the warp's first row and token in the tile

  __device__ TileOutput(const GemmArgs& a, const TilePlace& at) : a(a), at(at) {
    const int warp = threadIdx.x / 32;
    lane = threadIdx.x % 32;
    warp_row = warp / Tile::kWarpsAcross * Tile::kWarpRows, warp_token = warp % Tile::kWarpsAcross * Tile::kWarpTokens;
  }

  // Store the partial sums of this K-range and arrive. Returns true in the last block, which then has the sums over all
  // of K, added in the order of K: the same bits whichever block is last.
  __device__ bool combine(float (&sums)[Tile::kM][Tile::kN][4]) const {
    constexpr int kVectors = Tile::kM * Tile::kN;
    const int tile = blockIdx.y * gridDim.x + blockIdx.x, splits = gridDim.z;
    float4* first = a.partials + static_cast<size_t>(tile) * splits * kVectors * kGemmThreads + threadIdx.x;
#pragma unroll
    for (int i = 0; i < kVectors; i++) {
      const float* s = sums[i / Tile::kN][i % Tile::kN];
      __stcg(first + (blockIdx.z * kVectors + i) * kGemmThreads, make_float4(s[0], s[1], s[2], s[3]));
    }
    __threadfence();
    __syncthreads();
    if (!__syncthreads_or(threadIdx.x == 0 && atomicAdd(a.arrivals + tile, 1) == splits - 1)) return false;
    __threadfence();
    if (threadIdx.x == 0) a.arrivals[tile] = 0;
#pragma unroll
    for (int i = 0; i < kVectors; i++) {
      float* s = sums[i / Tile::kN][i % Tile::kN];
      s[0] = s[1] = s[2] = s[3] = 0.f;
    }
#pragma unroll(kVectors < 4 ? 4 : 1)
    for (int split = 0; split < splits; split++) {
#pragma unroll
      for (int i = 0; i < kVectors; i++) {
        float* s = sums[i / Tile::kN][i % Tile::kN];
        const float4 v = __ldcg(first + (split * kVectors + i) * kGemmThreads);
        s[0] += v.x, s[1] += v.y, s[2] += v.z, s[3] += v.w;
      }
    }
    return true;
  }

  // A thread's sums of a fragment are rows `row(m)` and 8 on, of two neighbouring tokens.
  __device__ __forceinline__ int row(int m) const { return at.row_tile * kTileRows + warp_row + m * 16 + lane / 4; }
  // Terms of the thread's rows; `scales` are the rows', if any.
  __device__ __forceinline__ void load_terms(RowTerms (&terms)[Tile::kM], const float* scales) const {
#pragma unroll
    for (int m = 0; m < Tile::kM; m++) terms[m].load(a, row(m), scales);
  }

  template <Store kStore>
  __device__ void store(const float (&sums)[Tile::kM][Tile::kN][4], const RowTerms (&terms)[Tile::kM]) const {
#pragma unroll
    for (int m = 0; m < Tile::kM; m++) {
      const int row = this->row(m);
      if (row >= a.rows) continue;
      const bool has_right = row + 8 < a.rows;
      const float (&scale)[2] = terms[m].scale, (&bias)[2] = terms[m].bias;
#pragma unroll
      for (int i = 0; i < Tile::kN * 2; i++) {
        const int token = at.first + warp_token + i / 2 * 8 + lane % 4 * 2 + i % 2;
        if (token >= at.end) continue;
        const float s = sums[m][i / 2][i % 2] * scale[0] + bias[0], t = sums[m][i / 2][i % 2 + 2] * scale[1] + bias[1];
        if constexpr (kIsGated<kStore>) {
          bf16* y = static_cast<bf16*>(a.out) + static_cast<size_t>(token) * (a.rows / 2) + row / 16 * 8 + row % 16;
          *y = __float2bfloat16_rn(kStore == Store::kClamped ? clamped_swiglu(s, t) : silu(s) * t);
        } else if constexpr (kStore != Store::kFloat32) {
          bf16* y = static_cast<bf16*>(a.out) + static_cast<size_t>(token) * a.rows + row;
          y[0] = __float2bfloat16_rn(kStore == Store::kSquared ? squared_relu(s) : s);
          if (has_right) y[8] = __float2bfloat16_rn(kStore == Store::kSquared ? squared_relu(t) : t);
        } else {
          float* y = static_cast<float*>(a.out) + static_cast<size_t>(token) * a.rows + row;
          y[0] = s;
          if (has_right) y[8] = t;
        }
      }
    }
  }

  template <Store kStore>
  __device__ void store(const float (&sums)[Tile::kM][Tile::kN][4], const float* scales = nullptr) const {
    RowTerms terms[Tile::kM];
    load_terms(terms, scales);
    store<kStore>(sums, terms);
  }

  // The same, of a store that is known at run time.
  __device__ void store_as(Store store_kind, const float (&sums)[Tile::kM][Tile::kN][4],
                           const RowTerms (&terms)[Tile::kM]) const {
    switch (store_kind) {
      case Store::kPlain:
        return store<Store::kPlain>(sums, terms);
      case Store::kGated:
        return store<Store::kGated>(sums, terms);
      case Store::kFloat32:
        return store<Store::kFloat32>(sums, terms);
      case Store::kClamped:
        return store<Store::kClamped>(sums, terms);
      case Store::kSquared:
        return store<Store::kSquared>(sums, terms);
    }
  }
  __device__ void store_as(Store store_kind, const float (&sums)[Tile::kM][Tile::kN][4],
                           const float* scales = nullptr) const {
    RowTerms terms[Tile::kM];
    load_terms(terms, scales);
    store_as(store_kind, sums, terms);
  }
};

}  // namespace portable
