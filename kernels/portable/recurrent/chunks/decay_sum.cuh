// decay_sum.cuh: running sums of decays' logarithms in a chunk, whose differences lose nothing.
#pragma once

// A sum of decays' logarithms in two floats, high + low: differences of sums are as exact as one float.
struct Sum {
  float high, low;

  __device__ __forceinline__ Sum plus(const Sum& other) const {
    const float sum = high + other.high, part = sum - high;
    const float rest = (high - (sum - part)) + (other.high - part) + low + other.low;
    const float rounded = sum + rest;
    return {rounded, rest - (rounded - sum)};
  }
  __device__ __forceinline__ float minus(const Sum& other) const { return (high - other.high) + (low - other.low); }
};
