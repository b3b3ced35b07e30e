// operands.cuh: the GEMMs of a dense layer and the head: shapes, weights, biases and activations.
#pragma once

#include "../compute.cuh"

// 64-row blocks that a cluster has of a GEMM: two are enough for 66 clusters and 8,448 rows.
constexpr int row_blocks(int rows) {
  return rows <= 66 * 128 ? 2 : 4;
}

struct Qkv : GemmShape<kQkvRows, kHidden, row_blocks(kQkvRows), true> {
  static constexpr PhaseKind kTraceKind = kQkv;
  static constexpr bool kHasBias = kHasQkvBias;
  static __device__ __forceinline__ const void* weights(const Args&, const LayerWeights& layer) { return layer.qkv; }
  static __device__ __forceinline__ const bf16* bias(const LayerWeights& layer) { return layer.qkv_bias; }
  static __device__ __forceinline__ const uint16_t* activations(const Args& args) { return args.normed; }
};
struct Output : GemmShape<kHidden, kQueryRows, kResidualMBlocks, true> {
  static constexpr PhaseKind kTraceKind = kOutput;
  static constexpr bool kHasBias = kHasOutputBias;
  static __device__ __forceinline__ const void* weights(const Args&, const LayerWeights& layer) { return layer.output; }
  static __device__ __forceinline__ const bf16* bias(const LayerWeights& layer) { return layer.output_bias; }
  static __device__ __forceinline__ const uint16_t* activations(const Args& args) { return args.attended; }
  template <class Compute>
  static __device__ __forceinline__ const bf16* next_norm(const Compute& c) {
    return c.weights.mlp_norm;
  }
};
// 64-row blocks that a warpgroup has of gate and up at a time: four, or those that it needs if these are few more, lest
// all go over K again for a tile or none.
constexpr int gate_up_blocks(int sequences) {
  const int tiles = (2 * kMlp / kTileM + 131) / 132, blocks = (tiles + kBlockTiles - 1) / kBlockTiles;
  return sequences <= 16 && blocks > 4 && blocks <= 6 ? blocks : 4;
}
template <int kBlocks>
struct GateUp : GemmShape<2 * kMlp, kHidden, kBlocks, false> {
  static constexpr PhaseKind kTraceKind = kGateUp;
  static constexpr bool kHasBias = kHasMlpBias;
  static __device__ __forceinline__ const void* weights(const Args&, const LayerWeights& layer) {
    return layer.gate_up;
  }
  static __device__ __forceinline__ const bf16* bias(const LayerWeights& layer) { return layer.gate_up_bias; }
  static __device__ __forceinline__ const uint16_t* activations(const Args& args) { return args.normed; }
};
struct Down : GemmShape<kHidden, kMlp, kResidualMBlocks, true> {
  static constexpr PhaseKind kTraceKind = kDown;
  static constexpr bool kReadsGated = true;
  static constexpr bool kHasBias = kHasMlpBias;
  static __device__ __forceinline__ const void* weights(const Args&, const LayerWeights& layer) { return layer.down; }
  static __device__ __forceinline__ const bf16* bias(const LayerWeights& layer) { return layer.down_bias; }
  static __device__ __forceinline__ const uint16_t* activations(const Args& args) { return args.gated; }
  template <class Compute>
  static __device__ __forceinline__ const bf16* next_norm(const Compute& c) {
    return c.norm_after_layer();
  }
};
struct Head : GemmShape<kRowsOfVocabulary, kHidden, 4, false> {
  static constexpr PhaseKind kTraceKind = kHead;
  static __device__ __forceinline__ const void* weights(const Args& args, const LayerWeights&) { return args.head; }
  static __device__ __forceinline__ const uint16_t* activations(const Args& args) { return args.normed; }
};
