// delta_gates.cuh: gates of a token in a value head of a Gated DeltaNet, and where its Q, K and V lie.
#pragma once

#include "math/activation.cuh"
#include "math/bf16.cuh"

constexpr float kL2Eps = 1e-6f;  // added to the sums of squares of Q and K

// By value, as ops/cuda/recurrent/arguments.py fills it.
struct DeltaShape {
  int64_t qkv_stride, gate_stride, slot_stride;  // elements between rows, and between slots of states
  int key_heads, value_heads;                    // Hk, Hv
  int key_size, value_size;                      // Dk, Dv
  int min_tokens;    // of a sequence that the chunked kernels compute; the decode kernel: of those it leaves
  float scale, eps;  // Dk^-1/2; added to the gated norm's mean square

  __device__ __forceinline__ int key_head(int value_head) const { return value_head / (value_heads / key_heads); }
  __device__ __forceinline__ const bf16* query(const bf16* qkv, int64_t token, int key_head) const {
    return qkv + token * qkv_stride + key_head * key_size;
  }
  __device__ __forceinline__ const bf16* key(const bf16* qkv, int64_t token, int key_head) const {
    return query(qkv, token, key_heads + key_head);
  }
  __device__ __forceinline__ const bf16* value(const bf16* qkv, int64_t token, int value_head) const {
    return qkv + token * qkv_stride + 2 * key_heads * key_size + value_head * value_size;
  }
  __device__ __forceinline__ int64_t state_size() const { return static_cast<int64_t>(key_size) * value_size; }
};

struct DeltaGate {
  float beta, decay;  // decay is a logarithm

  __device__ __forceinline__ DeltaGate(float b, float a, float rate, float step_bias)
      : beta(sigmoid(b)), decay(-rate * softplus(a + step_bias)) {}

  // gates : [N, 2 Hv] bf16: b, then a
  __device__ __forceinline__ DeltaGate(const bf16* gates, int64_t token, int head, float rate, float step_bias,
                                       const DeltaShape& shape)
      : DeltaGate(__bfloat162float(gates[token * shape.gate_stride + head]),
                  __bfloat162float(gates[token * shape.gate_stride + shape.value_heads + head]), rate, step_bias) {}
};
