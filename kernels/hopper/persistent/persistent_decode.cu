// persistent_decode.cu: a decode step, from token ids to logits, in one kernel: one token for each of up to 64
// sequences.
//
//   tokens, positions, contexts : [B] int32     slots : [B] int64     tables : [B, W] int32, as of wisp_runtime.batch
//   weights : packed (kernels/README.md)     keys, values : [L, P, Hkv, Tb, Dh] bf16 or E4M3     logits : [B, V]
//   float32 keys, values : tensor maps of the cache, [L P Hkv Tb, Dh], boxes of 16 rows of 64 columns; of E4M3 of
//   two-byte
//           elements, [L P Hkv Tb Dh / 128, 64], boxes of 16 tokens
//   math  : bf16 MMAs into float32; residual, Q, K, V before RoPE and scores float32; probabilities rounded to bf16.
//           K is added in two parts (gate and up, head) or four (Q, K and V, output, down), each in order, and a
//           sequence's attention in splits that its context alone decides: a row's numbers depend on no other row
//   grid  : (2 * clusters, 1, 1), clusters of 2; all run at once, or nothing (cuOccupancyMaxActiveClusters)
//   block : (384, 1, 1)     shared : SmemLayout::kTotal
//   needs : a model of model.cuh; B <= N; Tb % 16 == 0; 16-byte aligned arrays (ops/cuda/persistent/)
//   check : tests/gpu/persistent/test_persistent_decode.py against the general path; tests/emulator without a GPU
//
// docs/decode-step.md goes through it from the pipelines to the barrier.
#include "layers.cuh"
#include "step.cuh"

PERSISTENT_DECODE(8, formats::WISP_WEIGHT_FORMAT, formats::WISP_HEAD_FORMAT, kv_formats::WISP_KV_FORMAT)
PERSISTENT_DECODE(16, formats::WISP_WEIGHT_FORMAT, formats::WISP_HEAD_FORMAT, kv_formats::WISP_KV_FORMAT)
PERSISTENT_DECODE(32, formats::WISP_WEIGHT_FORMAT, formats::WISP_HEAD_FORMAT, kv_formats::WISP_KV_FORMAT)
#if !WISP_EXPERTS  // which have a bit for each of 32 sequences
PERSISTENT_DECODE(64, formats::WISP_WEIGHT_FORMAT, formats::WISP_HEAD_FORMAT, kv_formats::WISP_KV_FORMAT)
#endif
