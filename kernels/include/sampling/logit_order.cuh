// logit_order.cuh: logits as integers that sort alike, as histogram bins, and as weights relative to the row's best.
#pragma once
#include <cstdint>

typedef unsigned long long u64;  // the 64-bit integer that atomicAdd takes

constexpr int kTokenBits = WISP_SAMPLING_TOKEN_BITS, kRankBits = 32 + kTokenBits;  // V <= 262,144
constexpr uint32_t kTokenMask = (1u << kTokenBits) - 1;
constexpr uint32_t kOrderNaN = 0xffffffffu, kOrderInfinity = 0xff800000u, kOrderMinusInfinity = 0x007fffffu;

// A larger float gives a larger integer; -0 is 0, and NaN of either sign is above +inf, as in argmax.
__device__ __forceinline__ uint32_t order_bits(float x) {
  const int bits = __float_as_int(x + 0.0f);
  return x != x ? kOrderNaN : uint32_t(bits) ^ (uint32_t(bits >> 31) | 0x80000000u);
}

// A token's rank in its row as one number, larger is better: by logit, the lower id first among equals. Never 0.
__device__ __forceinline__ u64 rank_of(uint32_t order, int token) {
  return u64(order) << kTokenBits | (kTokenMask - uint32_t(token));
}

__device__ __forceinline__ int token_of(u64 rank) {
  return int(kTokenMask - (uint32_t(rank) & kTokenMask));
}

__device__ __forceinline__ float logit_of(u64 rank) {
  const uint32_t order = uint32_t(rank >> kTokenBits);
  return __uint_as_float(order & 0x80000000u ? order ^ 0x80000000u : ~order);
}

__device__ __forceinline__ bool is_finite(u64 rank) {
  const uint32_t order = uint32_t(rank >> kTokenBits);
  return kOrderMinusInfinity < order && order < kOrderInfinity;
}

// Histogram bins of the distance to the best logit: bin 0 up to 2^-7, then 256 an octave, the last from 2^7 on. In a
// row of 128,256 normal logits, of whatever spread, the fullest bin includes about 1,200.
constexpr int kBins = WISP_SAMPLING_BINS, kFirstBin = (127 - 7) << 8;

__device__ __forceinline__ int bin_of(float distance) {
  return min(max(int(__float_as_uint(distance) >> 15) - kFirstBin + 1, 0), kBins - 1);
}

// 1 / temperature in two floats each, for powers of two and of e.
struct Inverse {
  float log2_high, log2_low, high, low;
};

// Below the smallest normal number a temperature would make finite logits infinite.
constexpr double kMinTemperature = 1e-30;

__device__ __forceinline__ Inverse inverse_of(float temperature) {
  const double inverse = 1.0 / fmax(double(temperature), kMinTemperature), log2 = inverse * 1.4426950408889634;
  return {float(log2), float(log2 - float(log2)), float(inverse), float(inverse - float(inverse))};
}

// exp(-distance / temperature) in units of 2^-44: sums of 2^18 of these are exact, so their order does not matter.
constexpr int kWeightBits = 44;

__device__ __forceinline__ u64 weight_of(float distance, Inverse inverse) {
  const float power = distance * inverse.log2_high;
  if (!(power < kWeightBits + 1.5f)) return 0;
  const float lost = fmaf(distance, inverse.log2_high, -power) + distance * inverse.log2_low;
  const float rounded = rintf(power);
  const uint32_t mantissa = __float2uint_rn(exp2f(rounded - power - lost) * 16777216.0f);  // 0.70 .. 1.42 of 2^24
  const int shift = kWeightBits - 24 - int(rounded);
  return shift >= 0 ? u64(mantissa) << shift : u64(mantissa >> -shift);
}

// Return the natural logarithm of a sum of weights.
__device__ __forceinline__ double log_of_weights(u64 sum) {
  return log(double(sum)) - kWeightBits * 0.69314718055994531;
}
