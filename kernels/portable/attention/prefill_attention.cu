// prefill_attention.cu: out = softmax(scale q K^T) V over the paged cache, for chunks of more than one token.
//
//   q : [N, Hq, Dh] bf16, strided rows     out : [N, Hq * Dh] bf16, strided rows     N tokens, Hq query heads
//   keys, values : [P, Hkv, Tb, Dh] bf16, this step's tokens included     work tiles : int32, see prefill_work_tile.cuh
//   sinks : [Hq] float32 or null: one more logit of each head's softmax, not scaled, without a value
//   math : bf16 operands, float32 sums and softmax; weights rounded to bf16 for the second matrix product
//   grid : (work tiles * Hkv, 1, 1)    block : (2 * rows of a tile, 1, 1)    shared : PrefillTile::kSharedBytes
//   needs: Dh % 8 == 0, Dh <= the 64 to 256 of the kernel's name, 16-byte aligned rows
//          (ops/cuda/attention/prefill_attention.py checks)
//   check: tests/gpu/attention/test_prefill_attention.py against float32, error 1.5e-2 of a row's norm, mean 4e-3
//
// FlashAttention-2 (Dao 2023, arXiv:2307.08691): a warp has 16 rows; cp.async copies K and V tiles while the tile
// before is computed.
#include "attention/prefill_output.cuh"
#include "copy/async_copy.cuh"
#include "mma/warp_mma.cuh"
#include "sync/pdl.cuh"

namespace portable {

// A tile of kRows rows; heads are kDh wide in shared memory, zero padded.
template <int kDhPadded, int kRowsOfTile>
struct PrefillTile {
  static constexpr int kDh = kDhPadded, kRows = kRowsOfTile;
  static constexpr int kTokens = kDh > 128 ? 32 : 64;  // of a KV tile
  static constexpr int kThreads = 2 * kRows;
  static constexpr int kChunks = kDh / 8;  // of 16 bytes in a row
  // Against bank conflicts a row is swizzled where it has a multiple of eight chunks, else padded by one.
  static constexpr bool kSwizzled = kChunks % 8 == 0;
  static constexpr int kRowBytes = (kSwizzled ? kChunks : kChunks + 1) * 16;
  static constexpr int kKvBytes = kTokens * kRowBytes;
  static constexpr int kSharedBytes = kRows * kRowBytes + 4 * kKvBytes;
  static constexpr int kCopies = (kTokens * kChunks + kThreads - 1) / kThreads;  // a thread, of a KV tile

  static __device__ uint32_t at(int row, int chunk) {
    return row * kRowBytes + (kSwizzled ? chunk ^ (row % 8) : chunk) * 16;
  }
};

// Share of one thread in the copies of each KV tile.
template <class Tile>
struct KvCopies {
  const PrefillRows& rows;
  int lowest;
  int cache_row[Tile::kCopies];  // for the tile located last; -1: zeros

  __device__ explicit KvCopies(const PrefillRows& r) : rows(r), lowest(r.lowest()) {}

  __device__ void locate(int tile) {
#pragma unroll
    for (int i = 0; i < Tile::kCopies; i++) {
      const int token = tile * Tile::kTokens + (threadIdx.x + i * Tile::kThreads) / Tile::kChunks;
      cache_row[i] = token >= lowest && token < rows.context() ? rows.cache_row(token) : -1;
    }
  }

  __device__ void copy(const bf16* cache, uint32_t to) const {
#pragma unroll
    for (int i = 0; i < Tile::kCopies; i++) {
      const int index = threadIdx.x + i * Tile::kThreads, row = index / Tile::kChunks, chunk = index % Tile::kChunks;
      if (row >= Tile::kTokens) continue;
      const bool has = cache_row[i] >= 0 && chunk * 8 < rows.a.head_size;
      const long long from = has ? static_cast<long long>(cache_row[i]) * rows.a.head_size + chunk * 8 : 0;
      copy16_async(to + Tile::at(row, chunk), cache + from, has);
    }
  }
};

template <class Tile>
__device__ void copy_queries(const PrefillRows& rows, uint32_t to) {
#pragma unroll 4
  for (int i = threadIdx.x; i < Tile::kRows * Tile::kChunks; i += Tile::kThreads) {
    const int row = i / Tile::kChunks, chunk = i % Tile::kChunks;
    const bool has = rows.has(row) && chunk * 8 < rows.a.head_size;
    copy16_async(to + Tile::at(row, chunk), has ? rows.query(row) + chunk * 8 : rows.a.q, has);
  }
}

// scores = Q K^T of the warp's 16 rows, from `row` on.
template <class Tile>
__device__ void multiply_keys(float (&scores)[Tile::kTokens / 2], uint32_t queries, int row, uint32_t keys) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < Tile::kTokens / 2; i++) scores[i] = 0.f;
#pragma unroll
  for (int k = 0; k < Tile::kDh / 16; k++) {
    uint32_t a[4];
    load_matrices(a, queries + Tile::at(row + lane % 16, 2 * k + lane / 16));
#pragma unroll
    for (int n = 0; n < Tile::kTokens / 16; n++) {
      uint32_t b[4];
      load_matrices(b, keys + Tile::at(16 * n + lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2));
      mma_16x8x16(scores + 8 * n, a, b);
      mma_16x8x16(scores + 8 * n + 4, a, b + 2);
    }
  }
}

// o += weights V.
template <class Tile>
__device__ void multiply_values(float (&o)[Tile::kDh / 2], const float (&weights)[Tile::kTokens / 2], uint32_t values) {
  const int lane = threadIdx.x % 32;
  uint32_t a[Tile::kTokens / 4];
  pack_weights(a, weights);
#pragma unroll
  for (int k = 0; k < Tile::kTokens / 16; k++) {
#pragma unroll
    for (int n = 0; n < Tile::kDh / 16; n++) {
      uint32_t b[4];
      load_matrices_transposed(b, values + Tile::at(16 * k + lane % 16, 2 * n + lane / 16));
      mma_16x8x16(o + 8 * n, a + 4 * k, b);
      mma_16x8x16(o + 8 * n + 4, a + 4 * k, b + 2);
    }
  }
}

template <int kDh, int kRows>
__device__ __forceinline__ void prefill_attention(const PrefillArguments& a) {
  using Tile = PrefillTile<kDh, kRows>;
  extern __shared__ __align__(128) unsigned char shared[];
  pdl_launch_dependents();
  pdl_wait();
  const PrefillRows rows(a, blockIdx.x);
  const int row = threadIdx.x / 32 * 16;  // the warp's first row
  const uint32_t queries = shared_address(shared);
  const uint32_t keys = queries + kRows * Tile::kRowBytes, values = keys + 2 * Tile::kKvBytes;

  // 1. Copy groups, always in this order: Q and the first K, V, K, V, ...
  KvCopies<Tile> kv(rows);
  copy_queries<Tile>(rows, queries);
  kv.locate(rows.work_tile.kv_begin);
  kv.copy(a.keys, keys);
  copies_commit();
  kv.copy(a.values, values);
  copies_commit();
  kv.locate(rows.work_tile.kv_begin + 1);

  PrefillSoftmax softmax(rows, row);
  float o[kDh / 2] = {};
#pragma unroll 1
  for (int tile = rows.work_tile.kv_begin; tile < rows.work_tile.kv_end; tile++) {
    const int stage = (tile - rows.work_tile.kv_begin) % 2 * Tile::kKvBytes, next = Tile::kKvBytes - stage;
    const bool more = tile + 1 < rows.work_tile.kv_end;
    float scores[Tile::kTokens / 2], factor[2];

    // 2. Scores, once K has arrived for all threads. All are done with the K before, whose stage the next one takes.
    copies_wait<1>();
    __syncthreads();
    if (more) kv.copy(a.keys, keys + next);
    copies_commit();
    multiply_keys<Tile>(scores, queries, row, keys + stage);

    // 3. Softmax.
    if (softmax.needs_mask(tile * Tile::kTokens, Tile::kTokens)) softmax.mask(scores, tile * Tile::kTokens);
    softmax.update(scores, factor);
    scale_rows(o, factor);

    // 4. Weighted values, once V has arrived for all threads.
    copies_wait<1>();
    __syncthreads();
    if (more) {
      kv.copy(a.values, values + next);
      kv.locate(tile + 2);
    }
    copies_commit();
    multiply_values<Tile>(o, scores, values + stage);
  }

  // 5. Store the output, or combine with the other splits of these rows.
  softmax.finish();
  if (rows.splits() == 1) {
    store_rows<kDh>(rows, row, o, softmax);
  } else {
    store_partial<kDh, kRows>(a.partials + static_cast<long long>(blockIdx.x) * kPrefillPartialFloats<kDh, kRows>, row,
                              o, softmax);
    combine_partials<kDh, kRows, Tile::kThreads>(rows, blockIdx.x, threadIdx.x, [] { __syncthreads(); });
  }
}

}  // namespace portable

#define PREFILL_ATTENTION(dh, rows)                                                   \
  extern "C" __global__ void __launch_bounds__(2 * rows, 1)                           \
      prefill_attention_d##dh##_r##rows(const __grid_constant__ PrefillArguments a) { \
    portable::prefill_attention<dh, rows>(a);                                         \
  }
PREFILL_ATTENTION(64, 64)
PREFILL_ATTENTION(64, 128)
PREFILL_ATTENTION(80, 64)
PREFILL_ATTENTION(80, 128)
PREFILL_ATTENTION(96, 64)
PREFILL_ATTENTION(96, 128)
PREFILL_ATTENTION(128, 64)
PREFILL_ATTENTION(128, 128)
PREFILL_ATTENTION(192, 64)
PREFILL_ATTENTION(256, 64)
