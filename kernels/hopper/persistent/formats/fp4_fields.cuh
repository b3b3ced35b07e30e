// fp4_fields.cuh: E2M1 in fields of bf16 with a scale for 32 columns of a row (MXFP4 of experts), and one a row.
//
// Unpacked to bf16, not f16, which no single multiplication reaches: activations are bf16 too, and warps multiply.
#pragma once

#include "quantized.cuh"
#include "quantized/e2m1_fields.cuh"

struct Mxfp4Fields : Quantized {
  using Activations = Bf16Activations;
  static constexpr int kBlockK = 256, kTileBytes = kCodeBytes + GroupScales<4>::kBytes;

  // A word has 32 columns of one row, two steps: [8 groups][upper, lower].
  struct Unpacker : GroupScales<4> {
    template <int kStep>
    __device__ __forceinline__ void unpack(uint32_t (&a)[4], const uint32_t (&codes)[kCodeWords]) const {
      constexpr int kGroup = kStep / 2;
      const uint32_t pair = mxfp4_scales(scales[kGroup / 2], kGroup % 2);
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int row = i % 2, side = i / 2;
        a[i] = scaled_pair(e2m1_pair(codes[2 * kGroup + row], kStep % 2 * 2 + side), pair, row);
      }
    }
  };
};
