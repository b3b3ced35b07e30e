// epilogues.cuh: epilogues, which take a GEMM's sums. An epilogue runs the GEMM, since it decides when to ask for what
// it needs beside the sums.
//
//   StorePolled      [2, N, rows]   sums / rms + bias, float32, read without a barrier: Q, K and V
//   AddToResidual    registers      residual += sums + bias; the next norm's input is published
//   SwiGlu           [64, F] bf16   silu(gate) * up, rows interleaved by eights (f16 for quantized weights)
//   StoreLogits      [B, V] float32 sums / rms
#pragma once

#include "../compute.cuh"
#include "../polled.cuh"
#include "quantized_gemm.cuh"

struct Epilogue {
  static constexpr bool kEndsAtBarrier = true, kReadsRowScales = false;
  template <class G, class Compute>
  static __device__ __forceinline__ void begin_step(Compute& c) {}
};

// No barrier follows: each float is kNotYet until it is written, and its reader polls. What is read in the next layer
// of the kind is made unwritten again here, by the thread that will write it: all have read it, since barriers lie
// between. Target has
//   kRowsOfToken, kFirst   floats of a token in the buffer, and that of the GEMM's row 0
//   buffer(args)           [2, N, kRowsOfToken], even and odd layers
//   Finish<G>              finish(c, tile, row, token, group, sum): of what is stored; made before the main loop
template <class Target>
struct StorePolled : Epilogue {
  static constexpr bool kEndsAtBarrier = false, kReadsRowScales = true;

  template <class G, class Compute>
  static __device__ __forceinline__ void run(Compute& c) {
    const TileRange range = G::tile_range(c);
    const int first_row = range.first * kTileM + c.warpgroup * 8 + c.lane() / 4, layer = index_of_kind(c.layer);
    const RowScales<G> row_scales(c, first_row);
    typename Target::template Finish<G, Compute> finish(c, range, first_row);
    float sums[G::kMBlocks][Compute::kN / 2];
    c.trace.mark(G::kTraceKind * 8 + kBegun);
    c.begin_row_scales();
    multiply<G>(c, sums, range.count);
    c.trace.mark(G::kTraceKind * 8 + kMultiplied);
    c.wait_for_row_scales();
    c.reduction.template reduce<G::kMBlocks>(sums, range.count, [&](int tile, int g, float sum) {
      const int row = first_row + tile * kTileM, token = c.token(g);
      if (token >= c.args.sequences || row >= G::kRows) return;
      const float bias = G::kHasBias ? load_row(G::bias(c.weights), row, G::kRows) : 0.f;
      const float scale = row_scales.of_tile(tile) * c.storage.row_scales[token];
      const float result = finish(c, tile, row, g, sum * scale + bias);
      store_polled(place(c, layer, token, row), __float_as_uint(result));
      store_polled(place(c, layer + 1, token, row), kNotYet);
    });
    c.trace.mark(G::kTraceKind * 8 + kReduced);
  }

  // Of the first layer, as run() does for the others.
  template <class G, class Compute>
  static __device__ __forceinline__ void begin_step(Compute& c) {
    const TileRange range = G::tile_range(c);
#pragma unroll 1
    for (int tile = c.warp(); tile < range.count; tile += kBlockTiles) {
      const int row = (range.first + tile) * kTileM + c.warpgroup * 8 + c.lane() / 4;
#pragma unroll
      for (int g = 0; g < Compute::kGroups; g++) {
        if (c.token(g) < c.args.sequences && row < G::kRows) store_polled(place(c, 0, c.token(g), row), kNotYet);
      }
    }
  }

 private:
  template <class Compute>
  static __device__ __forceinline__ float* place(Compute& c, int layer, int token, int row) {
    return Target::buffer(c.args) + static_cast<int64_t>(layer % 2 * Compute::kN + token) * Target::kRowsOfToken +
           Target::kFirst + row;
  }
};

// What is stored as it is.
template <class G, class Compute>
struct Unchanged {
  __device__ __forceinline__ Unchanged(const Compute& c, const TileRange& range, int first_row) {}
  __device__ __forceinline__ float operator()(const Compute& c, int tile, int row, int g, float sum) const {
    return sum;
  }
};

struct PreRopeQkv {
  static constexpr int kRowsOfToken = kQkvRows, kFirst = 0;
  template <class G, class Compute>
  using Finish = Unchanged<G, Compute>;
  static __device__ __forceinline__ float* buffer(const Args& args) { return args.pre_rope_qkv; }
};
using StorePreRopeQkv = StorePolled<PreRopeQkv>;

// Next: type of the next GEMM's activations; Last: of the head's, after the last layer.
template <class Next, class Last = Next>
struct AddToResidual : Epilogue {
  template <class G, class Compute>
  static __device__ __forceinline__ void run(Compute& c) {
    constexpr int kMBlocks = G::kMBlocks;
    constexpr float kUnit = G::kReadsGated ? G::Format::Activations::kGatedUnit : 1.f;
    static_assert(kMBlocks == kResidualMBlocks && G::kSplitsK && G::kRows == kHidden,
                  "the rows that a thread has of the residual");
    // Loaded before the barrier: a miss behind a full pipeline takes microseconds.
    const bf16* next_norm = G::next_norm(c);
    const RowScales<G> row_scales(c, c.residual_range.first * kTileM + c.warpgroup * 8 + c.lane() / 4);
    float norm[kMBlocks], bias[kMBlocks];
#pragma unroll
    for (int m = 0; m < kMBlocks; m++) {
      norm[m] = load_norm(next_norm, c.residual_row(m), kHidden);
      bias[m] = G::kHasBias ? load_row(G::bias(c.weights), c.residual_row(m), kHidden) : 0.f;
    }
    float sums[kMBlocks][Compute::kN / 2];
    c.trace.mark(G::kTraceKind * 8 + kBegun);
    multiply<G>(c, sums, c.residual_range.count);
    c.trace.mark(G::kTraceKind * 8 + kMultiplied);
    c.reduction.template reduce<kMBlocks>(sums, c.residual_range.count, [&](int tile, int g, float sum) {
#pragma unroll
      for (int m = 0; m < kMBlocks; m++) {
        if (tile / kBlockTiles == m) {
#pragma unroll
          for (int i = 0; i < Compute::kGroups; i++) {
            if (i == g) c.residual[m][i] += sum * (row_scales.values[m] / kUnit) + bias[m];
          }
        }
      }
    });
    c.trace.mark(G::kTraceKind * 8 + kReduced);
    c.template publish_residual<Next, Last>(norm, G::kTraceKind);
  }
};

// Activations: type of its results, the down GEMM's.
template <class Activations>
struct SwiGlu : Epilogue {
  static constexpr bool kReadsRowScales = true;

  template <class G, class Compute>
  static __device__ __forceinline__ void run(Compute& c) {
    c.trace.mark(G::kTraceKind * 8 + kBegun);
    bool has_scales = false;
    c.begin_row_scales();
    each_pass<G>(c, [&](int first, float (&sums)[G::kMBlocks][Compute::kN / 2], int tiles,
                        const RowScales<G>& gate_scales, const RowScales<G>& up_scales) {
      if (!has_scales) c.wait_for_row_scales();
      has_scales = true;
      c.trace.mark(G::kTraceKind * 8 + kMultiplied);
      c.reduction.template exchange<G::kMBlocks>(sums, tiles, [&](int tile, const Sums<Compute::kN>& all) {
        const int row = (first + tile) * kTileM + c.lane() / 4, column = (first + tile) * 8 + c.lane() / 4;
        const float gate_bias = G::kHasBias ? load_row(G::bias(c.weights), row, G::kRows) : 0.f;
        const float up_bias = G::kHasBias ? load_row(G::bias(c.weights), row + 8, G::kRows) : 0.f;
#pragma unroll
        for (int g = 0; g < Compute::kGroups; g++) {
          if (c.token(g) >= c.args.sequences) break;
          const float scale = c.storage.row_scales[c.token(g)];
          const float gate = all.top[g] * (gate_scales.of_tile(tile) * scale) + gate_bias;
          const float up = all.bottom[g] * (up_scales.of_tile(tile) * scale) + up_bias;
          c.args.gated[static_cast<int64_t>(c.token(g)) * kMlp + column] =
              Activations::round(gate / (1.f + __expf(-gate)) * up * Activations::kGatedUnit);
        }
      });
    });
    c.trace.mark(G::kTraceKind * 8 + kReduced);
    c.finish_phase(G::kTraceKind);
  }
};

struct StoreLogits : Epilogue {
  static constexpr bool kEndsAtBarrier = false, kReadsRowScales = true;

  template <class G, class Compute>
  static __device__ __forceinline__ void run(Compute& c) {
    c.trace.mark(G::kTraceKind * 8 + kBegun);
    bool has_scales = false;
    c.begin_row_scales();
    each_pass<G>(c, [&](int first, float (&sums)[G::kMBlocks][Compute::kN / 2], int tiles, const RowScales<G>& upper,
                        const RowScales<G>& lower) {
      if (!has_scales) c.wait_for_row_scales();
      has_scales = true;
      c.reduction.template exchange<G::kMBlocks>(sums, tiles, [&](int tile, const Sums<Compute::kN>& all) {
        const int row = (first + tile) * kTileM + c.lane() / 4;
#pragma unroll
        for (int g = 0; g < Compute::kGroups; g++) {
          if (c.token(g) >= c.args.sequences) break;
          float* out = c.args.logits + static_cast<int64_t>(c.token(g)) * c.args.vocab + row;
          const float scale = c.storage.row_scales[c.token(g)];
          if (row < c.args.vocab) out[0] = all.top[g] * (upper.of_tile(tile) * scale);
          if (row + 8 < c.args.vocab) out[8] = all.bottom[g] * (lower.of_tile(tile) * scale);
        }
      });
    });
    c.trace.mark(G::kTraceKind * 8 + kSignalled);
  }
};
