// prefill_work_tile.cuh: arguments of prefill attention, and the work tile of one thread block.
//
// A row is a (token, query head) pair of one KV head: row r of a chunk is token r / group, head r % group of the group.
// So a tile of rows holds all heads of its tokens, and K and V are read once for them. The host makes the work tiles
// (ops/cuda/attention/prefill_plan.py); each is computed for every KV head.
#pragma once

#include "math/bf16.cuh"
#include "math/constants.cuh"

struct PrefillWorkTile {
  int sequence;     // row of the block tables
  int first_query;  // row of q where the chunk begins
  int queries;      // tokens of the chunk
  int context;      // tokens in the cache, the chunk's included
  int first_row;    // of the tile
  int kv_begin;     // first KV tile
  int kv_end;       // last KV tile, exclusive
  int split;        // index | count << 16: other work tiles of the same rows have the other KV tiles
};

struct PrefillArguments {
  const bf16* q;                      // [N, Hq, Dh], a row every q_stride elements
  bf16* out;                          // [N, Hq * Dh], a row every out_stride elements
  const bf16* keys;                   // [P, Hkv, Tb, Dh]
  const bf16* values;                 // [P, Hkv, Tb, Dh]
  const int* block_tables;            // [B, table_width]
  const PrefillWorkTile* work_tiles;  // [W]
  float* partials;                    // [W * Hkv][kPrefillPartialFloats], if any row is split
  unsigned* arrivals;                 // [W * Hkv], zero before and after
  const float* sinks;                 // [Hq], one more logit of a head's softmax, or null
  long long q_stride, out_stride;
  int work_count;  // W * Hkv
  int kv_heads, group, head_size, block_tokens, table_width;
  unsigned group_reciprocal, block_reciprocal;  // see divide(); of group, of block_tokens
  int window;                                   // tokens that a row attends to, its own included; 2^30: all
  float log2_scale;                             // score scale, times log2(e)
};

// n / d for the reciprocal ceil(2^32 / d), 0 for d = 1; exact for n < 2^32 / d.
__device__ __forceinline__ int divide(int n, unsigned reciprocal) {
  return reciprocal ? __umulhi(n, reciprocal) : n;
}

// The rows of one work tile, for one KV head.
struct PrefillRows {
  const PrefillArguments& a;
  PrefillWorkTile work_tile;
  int head;  // KV head

  __device__ PrefillRows(const PrefillArguments& arguments, int work)
      : a(arguments), work_tile(arguments.work_tiles[work / arguments.kv_heads]), head(work % arguments.kv_heads) {}

  __device__ int count() const { return work_tile.queries * a.group; }
  __device__ int split() const { return work_tile.split & 0xffff; }
  __device__ int splits() const { return work_tile.split >> 16; }
  __device__ bool has(int row) const { return work_tile.first_row + row < count(); }
  __device__ int position(int row) const { return work_tile.context - work_tile.queries + token(row); }
  // No row attends to tokens below the first of these, or to tokens from the second on.
  __device__ int lowest() const { return max(0, position(0) - a.window + 1); }
  __device__ int context() const { return work_tile.context; }

  __device__ const bf16* query(int row) const { return a.q + element(row, a.q_stride); }
  __device__ bf16* output(int row) const { return a.out + element(row, a.out_stride); }

  // Return the weight of a row's sink, relative to `zero` (softmax_zero()).
  __device__ float sink_weight(int row, float zero) const {
    if (a.sinks == nullptr || !has(row)) return 0.f;
    const int index = work_tile.first_row + row;
    return exp2f(fmaf(a.sinks[head * a.group + index - token(row) * a.group], kLog2E, -zero));
  }

  // Return the row of `token` in the cache, viewed as [P * Hkv * Tb, Dh].
  __device__ int cache_row(int token) const {
    const int page = divide(token, a.block_reciprocal);
    const int block = a.block_tables[static_cast<long long>(work_tile.sequence) * a.table_width + page];
    return (block * a.kv_heads + head) * a.block_tokens + token - page * a.block_tokens;
  }

 private:
  __device__ int token(int row) const { return divide(work_tile.first_row + row, a.group_reciprocal); }  // of the chunk
  __device__ long long element(int row, long long stride) const {
    const int of = token(row);
    return (work_tile.first_query + of) * stride +
           static_cast<long long>(head * a.group + work_tile.first_row + row - of * a.group) * a.head_size;
  }
};
