// expert_matrix.cuh: the packed matrices of a layer's experts, one behind the other at equal strides.
#pragma once

#include "../phases/gemm.cuh"
#include "expert_list.cuh"

template <int kRows, int kInputs, class Format>
struct ExpertMatrix {
  static constexpr int kTiles = kRows / kTileM, kRowBlocks = (kTiles + kBlockTiles - 1) / kBlockTiles;
  static constexpr int kParts = Format::kBlockK / 64, kKBlocks = (kInputs + Format::kBlockK - 1) / Format::kBlockK;
  static constexpr int kTileBytes = Format::kTileBytes, kBlockBytes = kBlockTiles * kTileBytes;
  static constexpr int kBlockScaleBytes = kBlockTiles * kTileBlockScaleBytes;  // of 64 rows and a block of K
  // Sections behind the tiles, as Gemm's.
  static constexpr size_t kBlockScalesAt = (static_cast<size_t>(kRowBlocks) * kKBlocks * kBlockBytes + 127) / 128 * 128;
  static constexpr size_t kAllBlockScaleBytes =
      Format::kHasBlockScales ? static_cast<size_t>(kRowBlocks) * kKBlocks * kBlockScaleBytes : 0;
  static constexpr size_t kRowScalesAt = kBlockScalesAt + (kAllBlockScaleBytes + 127) / 128 * 128;
  static_assert(kRows % kTileM == 0, "tiles of an expert's own");

  const char* first;  // expert
  int64_t stride;

  __device__ __forceinline__ const char* of(int expert) const { return first + expert * stride; }

  // Copy tiles [tile, tile + count) of a block of 64 rows of an expert, from block `k` of K, and that block's scales.
  static __device__ __forceinline__ void copy_tiles(const char* expert, int row_block, int k, int tile, int count,
                                                    uint32_t to, uint32_t scales_to, uint32_t barrier) {
    const size_t block = static_cast<size_t>(row_block) * kKBlocks + k;
    if constexpr (Format::kHasBlockScales) {
      bulk_load(scales_to, expert + kBlockScalesAt + block * kBlockScaleBytes, kBlockScaleBytes, barrier, kEvictNormal);
    }
    bulk_load(to, expert + block * kBlockBytes + tile * kTileBytes, count * kTileBytes, barrier, kEvictFirst);
  }

  // The scale of a row of an expert, 1 if the format has none.
  __device__ __forceinline__ float load_row_scale(int expert, int row) const {
    if constexpr (!Format::kIsQuantized) return 1.f;
    return reinterpret_cast<const float*>(of(expert) + kRowScalesAt)[row];
  }
};
