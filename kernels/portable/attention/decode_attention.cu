// decode_attention.cu: o = softmax(scale * q K^T) V of sequences with one query token, K and V in a paged cache.
//
//   q : rows of Hq * Dh bf16, `q_stride` elements apart; query head h reads KV head h / G, G = Hq / Hkv
//   keys, values : [P, Hkv, Tb, Dh] bf16     query_starts : [B + 1] int32     contexts : [B] int32 tokens in the cache
//   tables : [B, W] int32, a sequence's KV blocks
//   out   : [N, Hq * Dh] bf16; rows of sequences without context, or with another number of queries than one, are
//   skipped partials : [M * G, Dh] float32     stats : [M * G] (maximum, sum)     M = 2 Hkv * `filling` splits at most,
//   Hkv * B * `own_splits` where these are not 0
//   arrived : [B * Hkv] uint32, zero before and after; it, partials and stats serve sequences of several splits
//   sinks : [Hq] float32 or null: one more logit of each head's softmax, not scaled, without a value
//   math  : bf16 tensor-core operands, float32 sums; probabilities rounded to bf16; softmax in float32, base 2
//   grid  : (Hkv, filling + B or B * own_splits), or less where contexts are short
//   block : (128, 1, 1); (64, 1, 1) above Dh 128
//   shared: warps * 2 * 2 * 16 * (size + 8) * 2 B, size = the entry's; and 1 KB static
//   needs : Dh % 8 == 0 up to the entry's size (64, 80, 96, 128, 192, 256); G <= 8, or 16 (entries ending in _wide);
//           Tb % 8 == 0; 16-byte aligned arrays (ops/cuda/attention/decode_attention.py checks)
//   check : tests/gpu/attention/test_decode_attention.py against ops/reference/attention.py, max |err| 2^-7 of the
//           largest value
//
// Bound by memory: 16 tokens of 128 channels are 8 KB and cost a warp about 300 instructions, where an SM's share of
// 4.5 TB/s gives it 1,700 issue slots.
#include "decode_attention.cuh"

DECODE_ATTENTIONS(decode_attention, PlainKv)
