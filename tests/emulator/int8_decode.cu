// int8_decode.cu: the persistent decode kernel with a toy weight format: int8 with a scale a row.
#include "layers.cuh"
#include "step.cuh"

struct Toy : WeightFormat {
  static constexpr int kBlockK = BLOCK_K;
  static constexpr int kTileBytes = 16 * kBlockK + 16 * 4;  // 16 rows, then their scales in float32

  template <int N>
  static __device__ __forceinline__ void mma(float (&sums)[N / 2], uint32_t weights,
                                             const uint32_t (&activations)[kBlockK / 64]) {
    const int lane = threadIdx.x % 32;
    const uint32_t tile = weights + threadIdx.x / 32 % 4 * kTileBytes;
    for (int k = 0; k < kBlockK; k += 16) {
      uint32_t a[4];  // rows l / 4 and l / 4 + 8 of columns 2 (l % 4) and the next, then the same 8 columns on
      for (int i = 0; i < 4; i++) {
        const int row = lane / 4 + i % 2 * 8, column = k + i / 2 * 8 + lane % 4 * 2;
        const uint32_t codes = load(tile + row * kBlockK + column / 4 * 4) >> column % 4 * 8;
        const float scale = __uint_as_float(load(tile + 16 * kBlockK + row * 4));
        a[i] = pack_bf16(static_cast<int8_t>(codes) * scale, static_cast<int8_t>(codes >> 8) * scale);
      }
      wgmma_rs<N>(sums, a, wgmma_descriptor(activations[k / 64] + k % 64 * 2));
    }
    wgmma_commit();
    wgmma_wait<0>();  // the next tile's operands use the same registers
  }

  static __device__ __forceinline__ uint32_t load(uint32_t from) {
    float word;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(word) : "r"(from) : "memory");
    return __float_as_uint(word);
  }
};

PERSISTENT_DECODE(8, Toy)
