// quantized_gemm.cuh: main loops of quantized weights. A warp loads its 16-row tile of a stage into registers, releases
// the stage, and unpacks the tile into A fragments of f16.
//
// Up to 16 sequences by mma.sync: each warp has the activations of a block of K in registers, for all its blocks of
// rows. From 32 on by wgmma, activations in shared memory: an instruction that makes an operand of an MMA in flight
// would serialize them all, so a group is done before the next operands are made.
#pragma once

#include <type_traits>

#include "../formats/quantized.cuh"
#include "gemm.cuh"
#include "mma/warp_mma.cuh"

// use(std::integral_constant<int, i>) for i of [kBegin, kEnd), unrolled.
template <int kBegin, int kEnd, class Use>
__device__ __forceinline__ void for_each_step(Use use) {
  if constexpr (kBegin < kEnd) {
    use(std::integral_constant<int, kBegin>{});
    for_each_step<kBegin + 1, kEnd>(use);
  }
}

// Add a warp's tile to its sums of 8 kGroups tokens, of which `b` has each 64 columns: of each step two registers.
//
// An MMA takes longer than unpacking the next step's fragment, so chains of MMAs take turns, lest each wait for the
// one before. The sums of a chain have one scale.
template <class Format, int kGroups>
__device__ __forceinline__ void add_tile(float (&sums)[4 * kGroups], const typename Format::Unpacker& unpacker,
                                         const uint32_t (&codes)[kCodeWords],
                                         const uint32_t (&b)[Format::kBlockK / 64][kGroups][2][4]) {
  constexpr int kSteps = Format::kBlockK / 16, kPromotedSteps = Format::kPromotedSteps;
  constexpr int kScales = kPromotedSteps > 0 ? kSteps / kPromotedSteps : 1, kScaleSteps = kSteps / kScales;
  // One H200, 1 sequence: int4 1.90 to 1.86 ms with four chains; with two, fp8 and nvfp4 are 1 % faster.
  constexpr int kMinChains = (kScales > 1 ? 4 : 2) / kGroups, kChains = kScales > kMinChains ? kScales : kMinChains;
  constexpr int kScaleChains = kChains / kScales;
  float parts[kChains][kGroups][4];
  for_each_step<0, kSteps>([&](auto which) {
    constexpr int i = decltype(which)::value, kChain = i % kChains, kIndex = i / kChains;
    constexpr int kStep = kChain / kScaleChains * kScaleSteps + kIndex * kScaleChains + kChain % kScaleChains;
    uint32_t a[4];
    unpacker.template unpack<kStep>(a, codes);
#pragma unroll
    for (int g = 0; g < kGroups; g++) {
      float (&d)[4] = parts[kChain][g];
      if (kIndex == 0) d[0] = d[1] = d[2] = d[3] = 0.f;
      Format::Activations::mma(d, a, &b[kStep / 4][g][kStep / 2 % 2][kStep % 2 * 2]);
    }
  });
#pragma unroll
  for (int scale = 0; scale < kScales; scale++) {
    const float upper = unpacker.scale(scale, false), lower = unpacker.scale(scale, true);
#pragma unroll
    for (int g = 0; g < kGroups; g++) {
#pragma unroll
      for (int i = 0; i < 4; i++) {
        float sum = parts[scale * kScaleChains][g][i];
#pragma unroll
        for (int chain = 1; chain < kScaleChains; chain++) sum += parts[scale * kScaleChains + chain][g][i];
        sums[4 * g + i] += kPromotedSteps > 0 ? sum * (i < 2 ? upper : lower) : sum;
      }
    }
  }
}

template <class G, class Compute>
class QuantizedLoop {
  using Layout = typename Compute::Layout;
  using Format = typename G::Format;
  using Unpacker = typename Format::Unpacker;
  using Activations = PipelineState<Layout::kActivationStages>;
  static constexpr int N = Compute::kN, kGroups = N / 8, kParts = G::kParts;
  static constexpr int kPromotedSteps = Format::kPromotedSteps;
  static constexpr int kStagesAtOnce = N == 32 && kPromotedSteps == 0 ? kParts : 2;  // as registers allow
  static constexpr int kStepsAtOnce = 4 * kStagesAtOnce;
  using BlockSums = float[G::kMBlocks][N / 2];
  static_assert(std::is_same<typename Format::Activations, F16Activations>::value, "wgmma's operands are f16");

 public:
  __device__ __forceinline__ explicit QuantizedLoop(Compute& compute) : c_(compute) {
    const int warp = c_.warp(), first = Format::kHasBlockScales ? G::tile_range(c_).first % kBlockTiles : 0;
    block_scales_ = c_.block_scales + (first + warp) * kTileBlockScaleBytes;
  }

  __device__ __forceinline__ void run(BlockSums& sums, int tiles) {
#pragma unroll
    for (int m = 0; m < G::kMBlocks; m++) {
#pragma unroll
      for (int i = 0; i < N / 2; i++) sums[m][i] = 0.f;
    }
    const KRange half = G::k_range(c_);
    Activations activations = c_.activations;
    if (G::kSplitsK && c_.warpgroup == 1) advance<kParts>(activations);
#pragma unroll 1
    for (int k = half.begin; k < half.end; k += G::kKStep) {
      if constexpr (N <= 16) {
        multiply_by_warp(sums, tiles, activations);
      } else {
        multiply_by_warpgroup(sums, tiles, activations);
      }
      if constexpr (G::kSplitsK) advance<kParts>(activations);
    }
    c_.activations.advance((half.end - half.begin) * kParts);
  }

 private:
  template <int kStages>
  static __device__ __forceinline__ void advance(Activations& activations) {
#pragma unroll
    for (int i = 0; i < kStages; i++) activations.advance();
  }
  __device__ __forceinline__ uint32_t address_of(int stage) const {
    return c_.activations_data + stage * Layout::kActivationBytes;
  }
  __device__ __forceinline__ void wait_for(const Activations& activations) const {
    mbarrier_wait(c_.activations_full + activations.index * 8, activations.parity);
  }
  __device__ __forceinline__ void release(int stage) const {
    if (c_.lane() == 0) mbarrier_arrive(c_.activations_empty + stage * 8, G::kKStep);
  }
  __device__ __forceinline__ void release_after(int stage, uint32_t loaded) const {
    if (c_.lane() == 0) mbarrier_arrive_after(c_.activations_empty + stage * 8, loaded, G::kKStep);
  }

  // This warp's tile of the next stage, which is released; what lies there if the warpgroup has none.
  __device__ __forceinline__ void load(uint32_t (&codes)[kCodeWords], Unpacker& unpacker, bool exists) {
    if (exists) mbarrier_wait(c_.stage_full + c_.stage.index * 8, c_.stage.parity);
    const uint32_t tile = c_.stages + c_.stage.index * Compute::kStageBytes + c_.warp() * Format::kTileBytes;
    load_codes(codes, tile);
    unpacker.load(tile, block_scales_ + c_.stage.index * kStageBlockScaleBytes);
    uint32_t loaded = unpacker.last_loaded(codes);
    if constexpr (N > 16) loaded ^= codes[0] ^ codes[4] ^ codes[8] ^ codes[12];  // of each load, beside wgmma
    __syncwarp();
    if (exists) c_.stage.advance(), c_.release_stage_after(loaded);
  }

  // A block of K. Its last stage of activations came last.
  __device__ __forceinline__ void multiply_by_warp(BlockSums& sums, int tiles, Activations& activations) {
    Activations last = activations;
    advance<kParts - 1>(last);
    wait_for(last);
    uint32_t b[kParts][kGroups][2][4];  // of 64 columns: of each step two registers
    const int row = c_.lane() % 8, chunk = c_.lane() / 8;
#pragma unroll
    for (int part = 0; part < kParts; part++) {
      const uint32_t from = address_of(activations.index) + row * 128;
#pragma unroll
      for (int g = 0; g < kGroups; g++) {
#pragma unroll
        for (int i = 0; i < 2; i++) load_matrices(b[part][g][i], from + g * 1024 + ((chunk + 4 * i) ^ row) * 16);
      }
      __syncwarp();
      release_after(activations.index, b[part][kGroups - 1][1][0]);
      activations.advance();
    }
#pragma unroll
    for (int m = 0; m < G::kMBlocks; m++) {
      if (m * kBlockTiles >= tiles) break;
      uint32_t codes[kCodeWords];
      Unpacker unpacker;
      load(codes, unpacker, true);
      add_tile<Format, kGroups>(sums[m], unpacker, codes, b);
    }
  }

  __device__ __forceinline__ void multiply_by_warpgroup(BlockSums& sums, int tiles, Activations& activations) {
    const Activations first = activations;
#pragma unroll
    for (int m = 0; m < G::kMBlocks; m++) {
      uint32_t codes[kCodeWords];
      Unpacker unpacker;
      load(codes, unpacker, m * kBlockTiles < tiles);
      activations = first;
      for_each_step<0, kParts / kStagesAtOnce>(
          [&](auto which) { add_stages<decltype(which)::value>(sums[m], m, unpacker, codes, activations); });
    }
  }

  // Of kStagesAtOnce stages of activations, four steps each.
  template <int kIndex>
  __device__ __forceinline__ void add_stages(float (&sums)[N / 2], int m, const Unpacker& unpacker,
                                             const uint32_t (&codes)[kCodeWords], Activations& activations) {
    constexpr bool kIsPromoted = kPromotedSteps == 8, kIsScaled = kPromotedSteps > 0 && !kIsPromoted;
    uint32_t a[kStepsAtOnce][4];
    for_each_step<0, kStepsAtOnce>([&](auto which) {
      constexpr int i = decltype(which)::value, kStep = kStepsAtOnce * kIndex + i;
      if constexpr (kIsScaled) {
        unpack_scaled<Format, kStep>(unpacker, a[i], codes);
      } else {
        unpacker.template unpack<kStep>(a[i], codes);
      }
    });
    int stages[kStagesAtOnce];
#pragma unroll
    for (int i = 0; i < kStagesAtOnce; i++) {
      if (i + 1 == kStagesAtOnce && m == 0) {
        wait_for(activations);
        fence_async_shared();  // threads copied the activations, the tensor cores read them
      }
      stages[i] = activations.index;
      activations.advance();
    }
#pragma unroll
    for (int i = 0; i < kStepsAtOnce * 4; i++) asm volatile("" : "+r"(a[i / 4][i % 4])::"memory");
    if constexpr (kIsPromoted) {
      float parts[kStepsAtOnce / 8][N / 2];
      multiply<true>(parts, a, stages);
#pragma unroll
      for (int group = 0; group < kStepsAtOnce / 8; group++) {
        const int scale = kIndex * (kStepsAtOnce / 8) + group;
        const float upper = unpacker.scale(scale, false), lower = unpacker.scale(scale, true);
#pragma unroll
        for (int i = 0; i < N / 2; i++) sums[i] += parts[group][i] * (i % 4 < 2 ? upper : lower);
      }
    } else {
      wgmma_registers(sums);
      multiply<false>(*reinterpret_cast<float (*)[1][N / 2]>(&sums), a, stages);
    }
    if (m == G::kMBlocks - 1) {
#pragma unroll
      for (int i = 0; i < kStagesAtOnce; i++) release(stages[i]);
    }
  }

  // Add all steps to d[0]; or, if there are parts, set each to the sum of its eight steps.
  template <bool kHasParts, int kCount>
  __device__ __forceinline__ void multiply(float (&d)[kCount][N / 2], const uint32_t (&a)[kStepsAtOnce][4],
                                           const int (&stages)[kStagesAtOnce]) {
    wgmma_fence();
    for_each_step<0, kStepsAtOnce>([&](auto which) {
      constexpr int i = decltype(which)::value;
      const uint64_t b = wgmma_descriptor(address_of(stages[i / 4]) + i % 4 * 32);
      wgmma_rs_f16<N, !kHasParts || i % 8 != 0>(d[kHasParts ? i / 8 : 0], a[i], b);
    });
    wgmma_commit();
    wgmma_wait<0>();
#pragma unroll
    for (int i = 0; i < kCount; i++) wgmma_registers(d[i]);
  }

  Compute& c_;
  uint32_t block_scales_;  // of this warp's tile in a pipeline's first stage
};
