// mamba_shape.cuh: sizes of a Mamba-2 layer, where a head's channels lie, and the time step and decay of a token.
#pragma once

#include "math/activation.cuh"
#include "math/bf16.cuh"

// By value, as ops/cuda/recurrent/mamba_arguments.py fills it.
struct MambaShape {
  int64_t conv_stride, step_stride, slot_stride;  // elements between rows of xbc and steps, and between slots of states
  int heads, head_size, state_size, groups;       // H, Dh, S, G
  int min_tokens;                                 // of a sequence that is scanned in chunks; fewer are decoded
  float step_scale;                               // factor of projected time steps

  __device__ __forceinline__ int inner() const { return heads * head_size; }
  __device__ __forceinline__ const bf16* x(const bf16* xbc, int64_t token, int head) const {
    return xbc + token * conv_stride + head * head_size;
  }
  __device__ __forceinline__ const bf16* b(const bf16* xbc, int64_t token, int head) const {
    return xbc + token * conv_stride + inner() + head / (heads / groups) * state_size;
  }
  __device__ __forceinline__ const bf16* c(const bf16* xbc, int64_t token, int head) const {
    return b(xbc, token, head) + groups * state_size;
  }
  __device__ __forceinline__ int64_t head_state(int head) const {
    return static_cast<int64_t>(head) * head_size * state_size;
  }
};

// Weights of a head: the decay's rate, the time step's bias, and the factor of x in the result.
struct MambaHead {
  float rate, step_bias, skip;

  __device__ __forceinline__ MambaHead(const float* rates, const float* step_biases, const float* skips, int head)
      : rate(expf(rates[head])), step_bias(step_biases[head]), skip(skips[head]) {}

  __device__ __forceinline__ float step(const bf16* steps, int64_t token, int head, const MambaShape& shape) const {
    return softplus(fmaf(shape.step_scale, __bfloat162float(steps[token * shape.step_stride + head]), step_bias));
  }
};
