// token_conv.cuh: the causal convolution of one token, with causal_conv.cu's bits: four channels a lane, and their
// state.
#pragma once

#include "math/activation.cuh"
#include "math/bf16.cuh"

struct TokenConv {
  static constexpr int kTaps = 4, kPast = kTaps - 1, kChannels = 4;

  uint2 taps[kChannels], inputs[kTaps];  // each channel's taps; four channels of each input, the newest last

  // weight : [C, 4] bf16     state : [3, C] bf16; all from the lane's first channel on
  __device__ __forceinline__ void load(const bf16* weight, const bf16* state, int channels, bool is_first) {
    const uint4 low = load16(weight), high = load16(weight + kBf16Vec);
    taps[0] = make_uint2(low.x, low.y), taps[1] = make_uint2(low.z, low.w);
    taps[2] = make_uint2(high.x, high.y), taps[3] = make_uint2(high.z, high.w);
#pragma unroll
    for (int i = 0; i < kPast; i++) {
      inputs[i] = make_uint2(0, 0);
      if (!is_first) inputs[i] = *reinterpret_cast<const uint2*>(state + static_cast<int64_t>(i) * channels);
    }
  }

  // silu(sums), rounded to bf16.
  __device__ __forceinline__ float4 of(const bf16* newest) {
    inputs[kPast] = *reinterpret_cast<const uint2*>(newest);
    float sums[kChannels] = {};
#pragma unroll
    for (int tap = 0; tap < kTaps; tap++) {
#pragma unroll
      for (int c = 0; c < kChannels; c++) {
        sums[c] = fmaf(element(taps[c], tap), element(inputs[tap], c), sums[c]);
      }
    }
    return make_float4(rounded(silu(sums[0])), rounded(silu(sums[1])), rounded(silu(sums[2])), rounded(silu(sums[3])));
  }

  __device__ __forceinline__ void store(bf16* state, int channels) const {
#pragma unroll
    for (int i = 0; i < kPast; i++) {
      *reinterpret_cast<uint2*>(state + static_cast<int64_t>(i) * channels) = inputs[i + 1];
    }
  }

 private:
  __device__ __forceinline__ static float element(const uint2& four, int index) {
    const uint32_t pair = index < 2 ? four.x : four.y;
    return index % 2 == 0 ? bf16_low(pair) : bf16_high(pair);
  }
  __device__ __forceinline__ static float rounded(float value) { return __bfloat162float(__float2bfloat16_rn(value)); }
};
