// shared_storage.cuh: what lies in shared memory, and where; the state of a pipeline.
//
// Two pipelines of weights and cached keys and values, one for each warpgroup, whose stages have as many bytes as the
// largest tile that a phase streams; a pipeline of activations; buffers of the reduction in a cluster; barriers and
// small arrays.
#pragma once

#include "phases.cuh"

// A pipeline's next stage, and the parity of that stage's next barrier phase.
template <int kStages>
struct PipelineState {
  int index = 0;
  uint32_t parity;

  __device__ __forceinline__ explicit PipelineState(uint32_t first_parity) : parity(first_parity) {}
  __device__ __forceinline__ void advance() {
    if (++index == kStages) index = 0, parity ^= 1;
  }
  __device__ __forceinline__ void advance(int stages) {
    index += stages;
    parity ^= index / kStages & 1;
    index %= kStages;
  }
};

// Of 16 rows; of the 64-row blocks of a stage, which with experts has two blocks of K.
constexpr int kTileBlockScaleBytes = 8, kStageBlockScaleBytes = kHasExperts ? 128 : 64;

// Stages of activations. Unpacked weights are multiplied faster, so that latency needs more of them in flight.
constexpr int activation_stages(int sequences, int of_block) {
  if (of_block == 1) return sequences == 8 ? 16 : sequences == 64 ? 7 : 8;
  if (of_block == 2) return sequences == 8 ? 16 : 8;
  return sequences == 8 ? 32 : sequences == 16 ? 24 : sequences == 32 ? 12 : 8;
}

// Sizes and offsets in shared memory.
template <class S>
struct SmemLayout {
  static constexpr int N = S::kN;
  static constexpr int kActivationBytes = N * 128;  // of a stage: 64 columns of the batch
  static constexpr int kActivationStages = max_of(activation_stages(N, S::kActivationStages), S::kMinActivationStages);
  static constexpr int kCopyWarps = N >= (S::kActivationStages > 1 ? 32 : 64) ? 2 : 1;  // that copy activations
  static constexpr bool kHasRowScaleWarp = N < 32;                       // else the compute warps gather scales
  static constexpr int kExchangeMBlocks = N == 8 ? 4 : N == 64 ? 1 : 2;  // 64-row blocks that peers exchange at once
  static constexpr int kExchangeFloats = N / 4;                          // of a block, that a thread sends its peer
  static constexpr int kExchangeBytes = kExchangeMBlocks * 128 * kExchangeFloats * 4;  // of a warpgroup
  static constexpr int kReduceGroups = N / 8 < 4 ? N / 8 : 4;    // groups of 8 tokens that four reduce at once
  static constexpr int kPartialBytes = 128 * kReduceGroups * 4;  // that a warpgroup gets from each other one of a block
  // 64-row blocks that four reduce at once: a round trip takes a microsecond. With experts, memory is theirs.
  static constexpr int kFittingMBlocks = kHasExperts || N > 16 ? 1 : 32 / N;
  static constexpr int kReduceMBlocks = max_of(1, min_of(S::kSplitMBlocks, kFittingMBlocks));
  static constexpr int kBufferBytes = max_of(kExchangeBytes, kReduceMBlocks * 3 * kPartialBytes);
  static constexpr int kReductionBytes = (kWarpgroups * 2 * kBufferBytes + 1023) / 1024 * 1024;  // two in turn
  static constexpr int kRegionBytes =
      max_of(kActivationStages * kActivationBytes + kReductionBytes, (S::kScratchBytes + 1023) / 1024 * 1024);

  // Barriers of at most so many stages, the phases' own storage, and the rows' scales and sums of squares.
  static constexpr int kStageBarrierBytes = 16 + (S::kHasBlockScales ? kStageBlockScaleBytes : 0);
  static constexpr int kBarrierBytes =
      kSharedBytes / S::kStageBytes * kStageBarrierBytes + kActivationStages * 16 + 128;
  static constexpr int kStorageBytes =
      (kBarrierBytes + int{sizeof(typename S::Storage)} + N * (1 + S::kReadsF16 + kWarpgroups * 4) * 4 + 1023) / 1024 *
      1024;

  static constexpr int kStages = (kSharedBytes - kStorageBytes - kRegionBytes) / (kWarpgroups * S::kStageBytes);
  // Offsets: the two memory pipelines, the region, the storage.
  static constexpr int kRegion = kWarpgroups * kStages * S::kStageBytes;
  static constexpr int kReduction = kRegion + kActivationStages * kActivationBytes;
  static constexpr int kStorage = kRegion + kRegionBytes;
  static constexpr int kTotal = kStorage + kStorageBytes;
};

template <class S>
struct SharedStorage {
  using Layout = SmemLayout<S>;
  uint64_t stage_full[kWarpgroups][Layout::kStages], stage_empty[kWarpgroups][Layout::kStages];
  uint64_t activations_full[Layout::kActivationStages], activations_empty[Layout::kActivationStages];
  uint64_t exchanged[kWarpgroups][2], reduced[kWarpgroups][2];
  uint64_t planned, scaled;
  uint64_t ended;            // by all warps but those that copy activations
  unsigned barriers_passed;  // of the grid, by this block
  alignas(16) unsigned char block_scales[kWarpgroups][S::kHasBlockScales ? Layout::kStages : 1]
                                        [S::kHasBlockScales ? kStageBlockScaleBytes : 1];
  typename S::Storage phases;
  float row_scales[S::kN];  // 1 / rms of each row of the residual, over its unit
  float units[S::kReadsF16 ? S::kN : 1];
  float square_sums[kWarpgroups][4][S::kN];

  template <class P>
  __device__ __forceinline__ StorageOf<P, S::kN>& of() {
    return phases;
  }
  template <class P>
  __device__ __forceinline__ const StorageOf<P, S::kN>& of() const {
    return phases;
  }
};
