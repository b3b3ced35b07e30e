// field_words.cuh: a lane's share of 64 columns of MXFP4 whose numbers lie in fields.
#pragma once

#include "quantized/e2m1_fields.cuh"
#include "quantized_words.cuh"

namespace portable {

// A word has 32 columns of one row: [2 groups][upper, lower].
struct Mxfp4FieldWords : Mxfp4Words {
  __device__ __forceinline__ void fragment(uint32_t (&a)[4], int step) const {
    const int group = step / 2;
    const uint32_t own = mxfp4_scales(scales, group);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int row = i % 2, side = i / 2;
      a[i] = scaled_pair(e2m1_pair(word(2 * group + row), step % 2 * 2 + side), own, row);
    }
  }
};

}  // namespace portable
