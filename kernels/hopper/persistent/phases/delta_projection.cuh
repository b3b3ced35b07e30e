// delta_projection.cuh: projections of Gated DeltaNet: Q, K, V and Z, of which the first three are convolved as they
// come, and b and a of the few rows of a matrix of its own.
//
// A thread has a channel's result of a token, so it alone reads and shifts that channel's last inputs: no other thread
// needs them. Inputs are rounded to bf16, as the state keeps them.
#pragma once

#include "../compute.cuh"
#include "epilogues.cuh"
#include "operands.cuh"

// b and a are in few clusters, a block of 64 rows in each, as a stage takes as long with fewer. It is multiplied first,
// and for as long as 12 tiles of Q, K, V and Z take (of an H200's 66 clusters): of these the cluster has so many fewer,
// but keeps one or two.
constexpr int kGateBlocks = (2 * kDeltaHeads + kBlockM - 1) / kBlockM;
constexpr int kTilesOfGates = max_of(0, min_of(12, kQkvzRows / kTileM / 66 - 1));
constexpr int kQkvzTiles = kQkvzRows / kTileM + kTilesOfGates * kGateBlocks;

__device__ __forceinline__ int gate_blocks_before(const Args& args, int cluster) {
  return over_clusters(args, kGateBlocks * cluster);
}

struct Qkvz : GemmShape<kQkvzRows, kHidden, row_blocks(kQkvzTiles* kTileM), true> {
  static constexpr PhaseKind kTraceKind = kQkv;
  static constexpr bool kHasBias = false;
  static __device__ __forceinline__ const void* weights(const Args&, const LayerWeights& layer) { return layer.qkv; }
  static __device__ __forceinline__ int first_tile(const Args& args, int tiles, int cluster) {
    return over_clusters(args, kQkvzTiles * cluster) - kTilesOfGates * gate_blocks_before(args, cluster);
  }
  static __device__ __forceinline__ const bf16* bias(const LayerWeights& layer) { return nullptr; }
  static __device__ __forceinline__ const uint16_t* activations(const Args& args) { return args.normed; }
};

struct Gates : GemmShape<2 * kDeltaHeads, kHidden, 1, true> {
  static constexpr PhaseKind kTraceKind = kQkv;
  static constexpr bool kHasBias = false;
  static __device__ __forceinline__ int first_tile(const Args& args, int tiles, int cluster) {
    return min(tiles, kBlockTiles * gate_blocks_before(args, cluster));
  }
  static __device__ __forceinline__ const void* weights(const Args&, const LayerWeights& layer) {
    return layer.delta->gates;
  }
  static __device__ __forceinline__ const bf16* bias(const LayerWeights& layer) { return nullptr; }
  static __device__ __forceinline__ const uint16_t* activations(const Args& args) { return args.normed; }
};

// Convolution of a thread's channels, one a tile. Taps, slots and, up to 32 sequences, the last inputs are loaded
// before the main loop: a miss behind a full pipeline takes microseconds.
template <class G, class Compute>
class Convolution {
  static constexpr bool kLoadsEarly = Compute::kN <= 16;
  static constexpr int kBlocks = G::kMBlocks, kGroups = kLoadsEarly ? Compute::kGroups : 1;
  static_assert(kConvInputs == 4, "four taps in two words, and as many inputs");
  // The last three inputs as bf16, the oldest in the lower half of the first word.
  struct Inputs {
    uint32_t older = 0, last = 0;
  };

 public:
  __device__ __forceinline__ Convolution(const Compute& c, const TileRange& range, int first_row) {
#pragma unroll
    for (int g = 0; g < kGroups; g++) slots_[g] = slot_of(c, c.token(g));
#pragma unroll
    for (int m = 0; m < kBlocks; m++) {
      const int tile = m * kBlockTiles + c.warp(), row = first_row + tile * kTileM;
      const bool exists = tile < range.count && row < kConvRows;
      taps_[m] = exists ? *reinterpret_cast<const uint2*>(c.weights.delta->conv + row * kConvInputs) : uint2{};
      if constexpr (kLoadsEarly) {
#pragma unroll
        for (int g = 0; g < kGroups; g++) {
          if (exists) inputs_[m][g] = load(c, row, c.token(g), slots_[g]);
        }
      }
    }
  }

  __device__ __forceinline__ float operator()(const Compute& c, int tile, int row, int g, float sum) const {
    if (row >= kConvRows) return sum;
    const int slot = kLoadsEarly ? slots_[kLoadsEarly ? g : 0] : slot_of(c, c.token(g));
    uint2 taps = {};
    Inputs old;
#pragma unroll
    for (int m = 0; m < kBlocks; m++) {
      if (tile / kBlockTiles != m) continue;
      taps = taps_[m];
      if constexpr (kLoadsEarly) {
#pragma unroll
        for (int i = 0; i < kGroups; i++) old = i == g ? inputs_[m][i] : old;
      }
    }
    if constexpr (!kLoadsEarly) old = load(c, row, c.token(g), slot);
    const uint32_t newest = __bfloat16_as_ushort(__float2bfloat16(sum));
    const float convolved = bf16_low(old.older) * bf16_low(taps.x) + bf16_high(old.older) * bf16_high(taps.x) +
                            bf16_low(old.last) * bf16_low(taps.y) + bf16_low(newest) * bf16_high(taps.y);
    if (slot >= 0) {
      uint16_t* const to = place(c, row, slot);
      to[0] = old.older >> 16, to[kConvRows] = old.last, to[2 * kConvRows] = newest;
    }
    return convolved / (1.f + __expf(-convolved));
  }

 private:
  // Below 0 of padding.
  static __device__ __forceinline__ int slot_of(const Compute& c, int token) {
    return token < c.args.sequences ? c.args.state_slots[token] : -1;
  }
  // The oldest input; the others lie kConvRows apart.
  static __device__ __forceinline__ uint16_t* place(const Compute& c, int row, int slot) {
    const int64_t at = static_cast<int64_t>(slot) * c.args.state_layers + index_of_kind(c.layer);
    return reinterpret_cast<uint16_t*>(c.args.conv_inputs) + at * ((kConvInputs - 1) * kConvRows) + row;
  }
  // Zeros of a sequence that begins.
  static __device__ __forceinline__ Inputs load(const Compute& c, int row, int token, int slot) {
    if (slot < 0 || c.args.positions[token] <= 0) return {};
    const uint16_t* from = place(c, row, slot);
    return {from[0] | uint32_t{from[kConvRows]} << 16, from[2 * kConvRows]};
  }

  uint2 taps_[kBlocks];
  int slots_[kGroups];
  Inputs inputs_[kLoadsEarly ? kBlocks : 1][kGroups];
};

struct ProjectedQkvz {
  static constexpr int kRowsOfToken = kProjectedRows, kFirst = 0;
  template <class G, class Compute>
  using Finish = Convolution<G, Compute>;
  static __device__ __forceinline__ float* buffer(const Args& args) { return args.projected; }
};
struct ProjectedGates {
  static constexpr int kRowsOfToken = kProjectedRows, kFirst = kBetaFirst;
  template <class G, class Compute>
  using Finish = Unchanged<G, Compute>;
  static __device__ __forceinline__ float* buffer(const Args& args) { return args.projected; }
};

// A GEMM of so few rows that most clusters have none: these skip it.
template <class Operands, class Format, class Epilogue>
struct FewRowsGemm : Gemm<Operands, Format, Epilogue> {
  using Base = Gemm<Operands, Format, Epilogue>;

  template <class Stream>
  static __device__ __forceinline__ void stream_activations(Stream& stream) {
    if (Base::tile_range(stream).count > 0) Base::stream_activations(stream);
  }
  template <class Compute>
  static __device__ __forceinline__ void compute(Compute& compute) {
    if (Base::tile_range(compute).count > 0) Base::compute(compute);
  }
};
