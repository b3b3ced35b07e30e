// quantize_tokens.cu: round activations to E4M3, with a scale for each token or for each 128 columns of a token.
//
//   x : [N, in] bf16, rows `stride` elements apart     codes : [N, in] E4M3; of each 16 columns, 2 p, 2 p + 1, 8 + 2 p
//   and 9 + 2 p are neighbours, as w8a8_fragments.cuh says
//   scales : float32, [N] (quantize_tokens), or [in / 128 rounded up][scale_stride] (quantize_tokens_128)
//   math : scale = max |x| / 448, at least 2^-100; codes = x / scale in float32, rounded to nearest; NaN stays NaN
//   grid : (N, 1, 1)     block : (256, 1, 1)     shared : 128 B, a float a warp
//   needs: in % 16 == 0; rows at multiples of 16 bytes (ops/cuda/gemm/token_codes.py checks)
//   check: tests/gpu/gemm/test_w8a8_linear.py against the formula, to the bit
#include "math/bf16.cuh"
#include "math/reduce.cuh"
#include "sync/pdl.cuh"

constexpr int kQuantizeThreads = 256, kLane = 16;  // columns of a thread at a time
constexpr float kLargest = 448.f, kMinScale = 0x1p-100f;

struct TokenChunk {
  float values[kLane];

  __device__ __forceinline__ void load(const bf16* from) {
    float half[2][8];
    load8(from, half[0]);
    load8(from + 8, half[1]);
#pragma unroll
    for (int i = 0; i < kLane; i++) values[i] = half[i / 8][i % 8];
  }
  __device__ __forceinline__ float largest() const {
    float max = 0.f;
#pragma unroll
    for (int i = 0; i < kLane; i++) max = fmaxf(max, fabsf(values[i]));
    return max;
  }
  __device__ __forceinline__ void store(unsigned char* to, float scale) const {
    uint32_t words[4];
#pragma unroll
    for (int p = 0; p < 4; p++) words[p] = pair(2 * p, scale) | pair(8 + 2 * p, scale) << 16;
    store16(to, make_uint4(words[0], words[1], words[2], words[3]));
  }

 private:
  __device__ __forceinline__ uint32_t pair(int i, float scale) const {
    uint16_t codes;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;"
        : "=h"(codes)
        : "f"(__fdiv_rn(values[i + 1], scale)), "f"(__fdiv_rn(values[i], scale)));
    return codes;
  }
};

__device__ __forceinline__ float scale_of(float largest) {
  return fmaxf(__fdiv_rn(largest, kLargest), kMinScale);
}

extern "C" __global__ void __launch_bounds__(kQuantizeThreads)
    quantize_tokens(const bf16* x, unsigned char* codes, float* scales, int columns, int64_t stride) {
  __shared__ float scratch[32];
  pdl_launch_dependents();
  pdl_wait();
  const int64_t token = blockIdx.x;
  float largest = 0.f;
  TokenChunk chunk;
  for (int column = threadIdx.x * kLane; column < columns; column += kQuantizeThreads * kLane) {
    chunk.load(x + token * stride + column);
    largest = fmaxf(largest, chunk.largest());
  }
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  largest = warp_max(largest);
  if (lane == 0) scratch[warp] = largest;
  __syncthreads();
  const float scale = scale_of(warp_max(lane < kQuantizeThreads / 32 ? scratch[lane] : 0.f));
  if (threadIdx.x == 0) scales[token] = scale;
  for (int column = threadIdx.x * kLane; column < columns; column += kQuantizeThreads * kLane) {
    if (columns > kQuantizeThreads * kLane) chunk.load(x + token * stride + column);
    chunk.store(codes + token * columns + column, scale);
  }
}

extern "C" __global__ void __launch_bounds__(kQuantizeThreads)
    quantize_tokens_128(const bf16* x, unsigned char* codes, float* scales, int columns, int64_t stride,
                        int scale_stride) {
  pdl_launch_dependents();
  pdl_wait();
  const int64_t token = blockIdx.x;
  const int rounded = (columns + 511) / 512 * 512;  // whole warps: eight lanes share a scale
  TokenChunk chunk;
  for (int column = threadIdx.x * kLane; column < rounded; column += kQuantizeThreads * kLane) {
    const bool exists = column < columns;
    float largest = 0.f;
    if (exists) {
      chunk.load(x + token * stride + column);
      largest = chunk.largest();
    }
    const float scale = scale_of(warp_max<8>(largest));
    if (!exists) continue;
    if (threadIdx.x % 8 == 0) scales[static_cast<int64_t>(column / 128) * scale_stride + token] = scale;
    chunk.store(codes + token * columns + column, scale);
  }
}
