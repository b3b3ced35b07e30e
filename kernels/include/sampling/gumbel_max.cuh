// gumbel_max.cuh: exponential-race (Gumbel-max) sampling of a token, keyed so that it is batch-invariant.
//
// Source: Efraimidis & Spirakis 2006: with probability p_i the smallest of E_i / p_i is that of i, for independent
// exponential E. In logarithms: sample the largest of (logit - best) / temperature - log(E).
#pragma once
#include "math/philox.cuh"
#include "sampling/logit_order.cuh"

// Return the random words of tokens 4 * group .. 4 * group + 3 at this step of this seed.
__device__ __forceinline__ uint4 token_words(uint32_t group, u64 seed, u64 step) {
  return philox4x32(make_uint4(group, 0, uint32_t(step), uint32_t(step >> 32)),
                    make_uint2(uint32_t(seed), uint32_t(seed >> 32)));
}

__device__ __forceinline__ uint32_t word_at(uint4 words, int index) {
  return index == 0 ? words.x : index == 1 ? words.y : index == 2 ? words.z : words.w;
}

// Return log(E), E = -log(1 - u), u = (word + 0.5) / 2^32, within 1.1e-6 of float64's. Near u = 0 float32 cannot hold
// 1 - u, so there E is its series in u.
__device__ __forceinline__ float log_exponential(uint32_t word) {
  const float unit = 2.3283064365386963e-10f;  // 2^-32
  const float u = fmaf(float(word), unit, 0.5f * unit), rest = fmaf(float(~word), unit, 0.5f * unit);
  const float series = u * (1 + u * (0.5f + u * (1.0f / 3 + u * (0.25f + u * (0.2f + u * (1.0f / 6))))));
  return logf(u < 0.0625f ? series : -logf(rest));
}

// Running maximum of the perturbed logits of one row, over the tokens of one thread.
struct GumbelMax {
  Inverse inverse;
  float top;     // the best logit
  bool has_min;  // min-p: logits below top + min_distance are excluded
  double min_distance;
  u64 seed, step;
  u64 best;  // the largest key and its token as one number, the lower id first among equals; 0: none

  __device__ GumbelMax(float temperature, float min_p, u64 seed, u64 step, float top)
      : inverse(inverse_of(temperature)), top(top), has_min(min_p > 0), seed(seed), step(step), best(0) {
    min_distance = has_min ? fmax(double(temperature), kMinTemperature) * log(double(min_p)) : 0;
  }

  // Return (logit - best) / temperature.
  __device__ float scaled(float x) const {
    const float distance = top - x;
    return -fmaf(distance, inverse.high, distance * inverse.low);
  }

  // The best logit's key is at least -log(22.9) = -3.13, and no key is more than 22.9 above its scaled logit.
  __device__ bool may_win(float x) const {
    return scaled(x) > -27 && (!has_min || double(x) - double(top) >= min_distance);
  }

  __device__ void offer(float x, int token, uint32_t word) {
    const u64 key = u64(order_bits(scaled(x) - log_exponential(word))) << 32 | uint32_t(~token);
    best = best > key ? best : key;
  }
};
