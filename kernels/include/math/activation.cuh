// activation.cuh: gates of recurrent mixers, and functions of a gate and an up value in feed-forward blocks.
#pragma once

__device__ __forceinline__ float sigmoid(float x) {
  return __fdividef(1.f, 1.f + __expf(-x));
}

// log(1 + exp(x)), without overflow.
__device__ __forceinline__ float softplus(float x) {
  return fmaxf(x, 0.f) + log1pf(expf(-fabsf(x)));
}

__device__ __forceinline__ float silu(float x) {
  return __fdividef(x, 1.f + __expf(-x));
}

// (u + 1) g sigmoid(1.702 g), of the gate up to 7 and of up within 7 of zero: gpt-oss.
__device__ __forceinline__ float clamped_swiglu(float gate, float up) {
  const float g = gate > 7.f ? 7.f : gate, u = up > 7.f ? 7.f : up < -7.f ? -7.f : up;  // NaN stays
  return (u + 1.f) * __fdividef(g, 1.f + __expf(-1.702f * g));
}

__device__ __forceinline__ float squared_relu(float x) {
  return x < 0.f ? 0.f : x * x;
}

// GELU in its approximation by tanh: x (1 + tanh(u)) / 2 = x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3).
__device__ __forceinline__ float gelu_tanh(float x) {
  constexpr float kTwice = 1.5957691216057308f;  // 2 sqrt(2 / pi)
  return __fdividef(x, 1.f + __expf(-kTwice * x * fmaf(0.044715f * x, x, 1.f)));
}
