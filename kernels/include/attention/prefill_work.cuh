// prefill_work.cuh: what prefill attention is asked, and which part of it one thread block does.
//
// A row is a (token, query head) pair of one KV head: row r of a chunk is token r / group, head r % group of the group.
// So a tile of rows holds all heads of its tokens, and K and V are read once for them. Work items come from the host
// (ops/cuda/attention/prefill_plan.py); each is done for every KV head.
#pragma once

#include "math/bf16.cuh"

struct PrefillItem {
  int sequence;     // row of the block tables
  int first_query;  // row of q where the chunk begins
  int queries;      // tokens of the chunk
  int context;      // tokens in the cache, the chunk's included
  int first_row;    // of the tile
  int kv_begin;     // KV tiles from here
  int kv_end;       // to here, exclusive
  int split;        // part | parts << 16: other items of the same rows have the other KV tiles
};

struct PrefillArguments {
  const bf16* q;             // [N, Hq, Dh], a row every q_stride elements
  bf16* out;                 // [N, Hq * Dh], a row every out_stride elements
  const bf16* keys;          // [P, Hkv, Tb, Dh]
  const bf16* values;        // [P, Hkv, Tb, Dh]
  const int* block_tables;   // [B, table_width]
  const PrefillItem* items;  // [items]
  float* parts;              // [items * Hkv][prefill_part_floats], if anything is split
  unsigned* arrivals;        // [items * Hkv], zero, left at zero
  long long q_stride, out_stride;
  int work;  // items * Hkv
  int kv_heads, group, head_size, block_tokens, table_width;
  unsigned group_reciprocal, block_reciprocal;  // see divide(); of group, of block_tokens
  int window;                                   // a row sees this many tokens, its own included; 2^30 for all
  float log2_scale;                             // of the scores, times log2(e)
};

// n / d for the reciprocal ceil(2^32 / d), 0 for d = 1; exact for n < 2^32 / d.
__device__ __forceinline__ int divide(int n, unsigned reciprocal) {
  return reciprocal ? __umulhi(n, reciprocal) : n;
}

// The rows of one item.
struct PrefillRows {
  const PrefillArguments& a;
  PrefillItem item;
  int head;  // KV head

  __device__ PrefillRows(const PrefillArguments& arguments, int work)
      : a(arguments), item(arguments.items[work / arguments.kv_heads]), head(work % arguments.kv_heads) {}

  __device__ int count() const { return item.queries * a.group; }
  __device__ int part() const { return item.split & 0xffff; }
  __device__ int parts() const { return item.split >> 16; }
  // Row of the tile to row of the chunk.
  __device__ bool has(int row) const { return item.first_row + row < count(); }
  __device__ int position(int row) const { return item.context - item.queries + token(row); }
  // Tokens that no row sees are below the first of these, or not below the second.
  __device__ int lowest() const { return max(0, position(0) - a.window + 1); }
  __device__ int context() const { return item.context; }

  __device__ const bf16* query(int row) const { return a.q + element(row, a.q_stride); }
  __device__ bf16* output(int row) const { return a.out + element(row, a.out_stride); }

  // Row of the cache, seen as [P * Hkv * Tb, Dh], that has `token`.
  __device__ int cache_row(int token) const {
    const int page = divide(token, a.block_reciprocal);
    const int block = a.block_tables[static_cast<long long>(item.sequence) * a.table_width + page];
    return (block * a.kv_heads + head) * a.block_tokens + token - page * a.block_tokens;
  }

 private:
  __device__ int token(int row) const { return divide(item.first_row + row, a.group_reciprocal); }  // of the chunk
  __device__ long long element(int row, long long stride) const {
    const int of = token(row);
    return (item.first_query + of) * stride +
           static_cast<long long>(head * a.group + item.first_row + row - of * a.group) * a.head_size;
  }
};
