// bf16_as_f16.cuh: weights in bf16, packed as bf16.cuh's, with activations of f16: for a few rows beside quantized
// ones.
//
// A warp loads the A fragments of its 16 rows and converts them; numbers below 2^-14 lose bits.
#pragma once

#include "bf16.cuh"
#include "math/f16.cuh"
#include "mma/warp_mma.cuh"

struct Bf16AsF16 : WeightFormat {
  using Activations = F16Activations;
  static constexpr int kBlockK = 64;
  static constexpr int kTileBytes = 16 * 128;

  // As Bf16::mma; done on return.
  template <int N>
  static __device__ __forceinline__ void mma(float (&sums)[N / 2], uint32_t weights, const uint32_t (&activations)[1]) {
    const int lane = threadIdx.x % 32, row = lane % 16;
    const uint32_t tile = weights + threadIdx.x / 32 % 4 * kTileBytes + row * 128;
    uint32_t a[4][4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
      load_matrices(a[i], tile + ((2 * i + lane / 16) ^ (row % 8)) * 16);
#pragma unroll
      for (int j = 0; j < 4; j++) a[i][j] = pack_f16(bf16_low(a[i][j]), bf16_high(a[i][j]));
    }
    wgmma_registers(sums);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < 4; i++) wgmma_rs_f16<N>(sums, a[i], wgmma_descriptor(activations[0] + i * 32));
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_registers(sums);
  }
};
