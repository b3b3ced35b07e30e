// rotary_epilogue.cuh: epilogue of the fused QKV + RoPE GEMM: RoPE on Q and K, Q to the output, K and V to the paged
// cache.
//
// A head's rows are interleaved as rope_interleaved_<Dh> of ops/protocol/weights/row_permutation.py (heads of 64 are so
// in checkpoint order): row tile t of a head has channels 32 t to 32 t + 31 of its first half, then the 32 that RoPE
// pairs with them. So a row tile is of one head, and a thread finds both channels of a pair in the rows that its
// warpgroup has just transposed.
#pragma once

#include "epilogue.cuh"

// By value, as ops/cuda/gemm/rotary_arguments.py fills it.
struct RotaryArgs {
  const float *cosines, *sines;  // [known_positions, Dh / 2]
  const int* positions;          // [tokens]; clamped to the table
  const int64_t* slots;          // [tokens], block * Tb + offset, below 2^31; -1 writes nothing
  bf16 *keys, *values;           // [P, Hkv, Tb, Dh]
  int query_heads, kv_heads, head_size;
  int known_positions;
  int block_tokens;  // Tb
};

struct RotaryOut {
  using Extra = RotaryArgs;
  static constexpr bool kGated = false;

  template <int kChunk>
  __device__ static void store(const GemmArgs& args, const Extra& heads, uint32_t buffer, int first_row,
                               int first_token, int end) {
    if (first_row >= args.rows) return;
    const int size = heads.head_size, head = first_row / size, within = first_row - head * size;
    const bool is_query = head < heads.query_heads, is_value = head >= heads.query_heads + heads.kv_heads;
#pragma unroll
    for (int at = threadIdx.x % 128; at < kChunk * 4; at += 128) {
      const int index = at / 4, vector = at % 4, token = first_token + index, channel = within / 2 + vector * 8;
      if (token >= end) continue;
      uint4 first = load_shared16(buffer + transposed_offset<8>(index, vector));
      uint4 second = load_shared16(buffer + transposed_offset<8>(index, vector + 4));
      if (!is_value) apply_rope(first, second, heads, heads.positions[token], channel);
      bf16* to;
      if (is_query) {
        to = static_cast<bf16*>(args.out) + static_cast<size_t>(token) * args.out_columns + head * size;
      } else {
        const int slot = static_cast<int>(heads.slots[token]);
        if (slot < 0) continue;
        const int block = slot / heads.block_tokens, offset = slot - block * heads.block_tokens;
        const int kv_head = head - heads.query_heads - (is_value ? heads.kv_heads : 0);
        const int64_t row = (static_cast<int64_t>(block) * heads.kv_heads + kv_head) * heads.block_tokens + offset;
        to = (is_value ? heads.values : heads.keys) + row * size;
      }
      store16(to + channel, first);
      store16(to + size / 2 + channel, second);
    }
  }

 private:
  // Apply RoPE to eight channels from `channel` on and the eight that are paired with them.
  __device__ static void apply_rope(uint4& first, uint4& second, const Extra& heads, int position, int channel) {
    const int64_t angles =
        static_cast<int64_t>(min(max(position, 0), heads.known_positions - 1)) * (heads.head_size / 2);
    float a[8], b[8], cosines[8], sines[8];
    load8(heads.cosines + angles + channel, cosines);
    load8(heads.sines + angles + channel, sines);
    unpack8(first, a);
    unpack8(second, b);
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const float x = a[i], y = b[i];
      a[i] = x * cosines[i] - y * sines[i];
      b[i] = y * cosines[i] + x * sines[i];
    }
    first = pack8(a);
    second = pack8(b);
  }
};
