// decode_attention_fp8.cu: o = softmax(scale * q K^T) V of sequences with one query token, K and V in FP8 (E4M3); of
// turbo8 too.
//
//   as decode_attention.cu, but
//   keys, values : [P, Hkv, Tb, bytes of a row] uint8
//   math : as there, but on float16 operands; the layer's scale of V multiplies the result
//   grid : (Hkv, filling + B)    block : (128, 1, 1); (64, 1, 1) above Dh 128
//   shared: warps * (stages of the bytes of 16 rows of K and of V, and these rows in float16)
//   needs : as there, and Dh % 16 == 0, Tb % 16 == 0 (ops/cuda/attention/decode_attention.py checks)
//   check : tests/gpu/kv_cache/test_quantized_attention.py against ops/reference, max |err| 2^-6 of the largest value
#include "quantized_kv.cuh"

DECODE_ATTENTIONS(decode_attention_fp8, QuantizedKv<Fp8>)
