// bf16.cuh: weights in bf16, which the tensor cores read from a pipeline's stage as they lie.
//
// A format derives from WeightFormat, or, if a warp unpacks it to f16, from Quantized (quantized.cuh). It has
//   kBlockK      columns of a weight tile, a multiple of 64
//   kTileBytes   of a tile of 16 rows, scales of its groups included, a multiple of 16
//   Activations  type of the activations (activation_types.cuh)
//   mma()        the MMAs of 64 rows and kBlockK columns; or, of a Quantized, Unpacker
#pragma once

#include "../activation_types.cuh"
#include "mma/wgmma.cuh"

struct WeightFormat {
  using Activations = Bf16Activations;
  static constexpr bool kIsQuantized = false;     // main loops of quantized_gemm.cuh, row scales
  static constexpr bool kHasBlockScales = false;  // float32 of 8 rows of a tile, in a section of their own
};

struct Bf16 : WeightFormat {
  static constexpr int kBlockK = 64;
  static constexpr int kTileBytes = 16 * 128;  // 128-byte swizzle

  // sums += W X^T by a warpgroup, 64 rows, kBlockK columns. May still be in flight on return.
  //
  // weights: address of the 64 rows     activations: address of each 64 columns of the batch, 128-byte swizzle
  template <int N>
  static __device__ __forceinline__ void mma(float (&sums)[N / 2], uint32_t weights, const uint32_t (&activations)[1]) {
    wgmma_registers(sums);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < 4; i++) {
      wgmma_ss<N>(sums, wgmma_descriptor(weights + i * 32), wgmma_descriptor(activations[0] + i * 32));
    }
    wgmma_commit();
  }
};
