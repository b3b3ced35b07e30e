// expert_gate_up.cuh: gate and up of the experts that were chosen, each with its own sequences alone.
//
// Rows of all entries, one behind the other, are split over the warpgroups of the grid, a warpgroup and its peer with
// half of K each. The CTA's half of all sequences' activations stays in shared memory for the phase: a lane of ldmatrix
// names the row of a sequence, so an expert's are picked where they lie.
#pragma once

#include "expert_matrix.cuh"
#include "math/activation.cuh"
#include "router.cuh"
#include "warp_tile.cuh"

// Activations: type of its results, the down GEMM's.
template <class Format, class Activations>
struct ExpertGateUp : Phase {
  using Matrix = ExpertMatrix<2 * kMlp, kHidden, Format>;
  using Routing = Router<typename Format::Activations>;
  static constexpr int kMBlocks = 4, kParts = Matrix::kParts;  // blocks of 64 rows between two exchanges
  static constexpr int kStageBytes = Matrix::kBlockBytes, kActivationStages = kParts;
  static constexpr bool kHasBlockScales = Format::kHasBlockScales;
  static constexpr bool kReadsF16 = !std::is_same<typename Format::Activations, Bf16Activations>::value;
  template <int N>
  static constexpr int kMinActivationStages = (Matrix::kKBlocks + 1) / 2 * kParts;
  static_assert(!kHasExperts || Matrix::kTiles % kBlockTiles == 0, "an expert's rows are whole blocks of 64");

  template <class Stream>
  static __device__ __forceinline__ void stream_memory(Stream& stream) {
    const auto& routing = stream.storage.template of<Routing>();
    mbarrier_wait(shared_address(&routing.listed), stream.layer & 1);
    const Matrix matrix = matrix_of(stream.args, *stream.weights);
    const TileRange range = tile_range(stream.args, routing.list, stream.warpgroup);
    const KRange half(Matrix::kKBlocks, false, stream.rank);
#pragma unroll 1
    for (int done = 0; done < range.count; done += kBlockTiles) {
      const int first = range.first + done, size = min(kBlockTiles, range.count - done);
      const int row_block = first / kBlockTiles, tile = first % kBlockTiles, here = min(size, kBlockTiles - tile);
      const int scale_bytes = kHasBlockScales ? (here < size ? 2 : 1) * Matrix::kBlockScaleBytes : 0;
      const char* const upper = expert_of(matrix, routing.list, row_block);
      const char* const lower = here < size ? expert_of(matrix, routing.list, row_block + 1) : upper;
#pragma unroll 1
      for (int k = half.begin; k < half.end; k++) {
        const uint32_t to = stream.acquire(size * Matrix::kTileBytes + scale_bytes), scales = stream.block_scales();
        if (elect_lane()) {
          Matrix::copy_tiles(upper, row_block % Matrix::kRowBlocks, k, tile, here, to, scales, stream.barrier());
          if (here < size) {
            Matrix::copy_tiles(lower, (row_block + 1) % Matrix::kRowBlocks, k, 0, size - here,
                               to + here * Matrix::kTileBytes, scales + Matrix::kBlockScaleBytes, stream.barrier());
          }
        }
        stream.commit();
      }
    }
  }

  template <class Stream>
  static __device__ __forceinline__ void stream_activations(Stream& stream) {
    const KRange half(Matrix::kKBlocks, false, stream.rank);
    stream.template copy<kHidden, kParts>(stream.args.normed, half.begin, half.end, half.last, 1);
  }

  template <class Compute>
  static __device__ __forceinline__ void compute(Compute& c) {
    const auto& list = c.storage.template of<Routing>().list;
    const Matrix matrix = matrix_of(c.args, c.weights);
    const TileRange range = tile_range(c.args, list, c.warpgroup);
    c.trace.mark(kGateUp * 8 + kBegun);
#pragma unroll 1
    for (int done = 0; done < range.count; done += kMBlocks * kBlockTiles) {
      const int tiles = min(range.count - done, kMBlocks * kBlockTiles);
      float sums[kMBlocks][4], gate_scales[kMBlocks], up_scales[kMBlocks];
      float gate_biases[kMBlocks] = {}, up_biases[kMBlocks] = {};
#pragma unroll
      for (int m = 0; m < kMBlocks; m++) {
        const WarpRows rows(list, range, done + m * kBlockTiles + c.warp());
        gate_scales[m] = matrix.load_row_scale(rows.entry.expert(), rows.row + c.lane() / 4);
        up_scales[m] = matrix.load_row_scale(rows.entry.expert(), rows.row + c.lane() / 4 + 8);
        if constexpr (kHasMlpBias) {
          const bf16* const biases = c.weights.gate_up_bias + static_cast<int64_t>(rows.entry.expert()) * (2 * kMlp);
          gate_biases[m] = __bfloat162float(biases[rows.row + c.lane() / 4]);
          up_biases[m] = __bfloat162float(biases[rows.row + c.lane() / 4 + 8]);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) sums[m][i] = 0.f;
      }
#pragma unroll
      for (int m = 0; m < kMBlocks; m++) {
        if (m * kBlockTiles >= tiles) break;
        multiply(c, list, range, done + m * kBlockTiles, sums[m]);
      }
      c.trace.mark(kGateUp * 8 + kMultiplied);
      c.reduction.template exchange<kMBlocks>(sums, tiles, [&](int tile, const Sums<kEntrySequences>& all) {
        float gate_scale = gate_scales[0], up_scale = up_scales[0];
        float gate_bias = gate_biases[0], up_bias = up_biases[0];
#pragma unroll
        for (int m = 1; m < kMBlocks; m++) {
          if (tile / kBlockTiles == m) gate_scale = gate_scales[m], up_scale = up_scales[m];
          if (kHasMlpBias && tile / kBlockTiles == m) gate_bias = gate_biases[m], up_bias = up_biases[m];
        }
        store(c, list, WarpRows(list, range, done + tile), all.top[0] * gate_scale, all.bottom[0] * up_scale, gate_bias,
              up_bias);
      });
    }
    c.trace.mark(kGateUp * 8 + kReduced);
    c.finish_phase(kGateUp);
    release_activations(c);
  }

 private:
  // A warp's 16 rows of the list, eight of gate and eight of up; past the end those of the last.
  struct WarpRows {
    ExpertEntry entry;
    int row, column;  // first row of the expert's matrix, and first of its outputs

    template <class List>
    __device__ __forceinline__ WarpRows(const List& list, const TileRange& range, int tile) {
      const int at = range.first + min(tile, range.count - 1);
      entry = list.entries[at / Matrix::kTiles];
      row = at % Matrix::kTiles * kTileM, column = at % Matrix::kTiles * (kTileM / 2);
    }
  };

  template <class List>
  static __device__ __forceinline__ TileRange tile_range(const Args& args, const List& list, int warpgroup) {
    return TileRange::of_pair(args, list.count * Matrix::kTiles, warpgroup);
  }
  static __device__ __forceinline__ Matrix matrix_of(const Args& args, const LayerWeights& layer) {
    return {static_cast<const char*>(layer.gate_up), args.gate_up_stride};
  }
  // Of a block of 64 rows of the list.
  template <class List>
  static __device__ __forceinline__ const char* expert_of(const Matrix& matrix, const List& list, int row_block) {
    return matrix.of(list.entries[row_block / Matrix::kRowBlocks].expert());
  }

  // Add up to four tiles, a warp each, over this CTA's half of K. The first time its activations are waited for.
  template <class Compute, class List>
  static __device__ __forceinline__ void multiply(Compute& c, const List& list, const TileRange& range, int done,
                                                  float (&sums)[4]) {
    const bool exists = done + c.warp() < range.count;
    const WarpRows rows(list, range, done + c.warp());
    const int slot = c.lane() % 8 < rows.entry.count() ? c.lane() % 8 : 0;
    const int sequence = list.slot_sequence[rows.entry.first_slot() + slot];
    const uint32_t columns_at = c.activations_data + sequence * 128;
    const uint32_t scales_at = c.block_scales + (range.first % kBlockTiles + c.warp()) * kTileBlockScaleBytes;
    const KRange half(Matrix::kKBlocks, false, c.rank);
    auto activations = c.activations;
    WarpTile<Format> tile;
    WarpColumns<Format> columns;
#pragma unroll 1
    for (int k = half.begin; k < half.end; k++) {
      mbarrier_wait(c.stage_full + c.stage.index * 8, c.stage.parity);
      if (exists) {
        tile.load(c.stages + c.stage.index * Compute::kStageBytes + c.warp() * Matrix::kTileBytes,
                  scales_at + c.stage.index * kStageBlockScaleBytes);
      }
      __syncwarp();
      c.stage.advance();
      c.release_stage_after(tile.last_loaded());
#pragma unroll
      for (int part = 0; part < kParts; part++) {
        if (done == 0) {
          mbarrier_wait(c.activations_full + activations.index * 8, activations.parity);
        }
        columns.load(part, columns_at + activations.index * Compute::Layout::kActivationBytes, sequence);
        activations.advance();
      }
      if (exists) tile.add_to(sums, columns);
    }
  }

  template <class Compute, class List>
  static __device__ __forceinline__ void store(Compute& c, const List& list, const WarpRows& rows, float gate_sum,
                                               float up_sum, float gate_bias, float up_bias) {
    const int place = c.lane() % 4 * 2 + c.rank, slot = rows.entry.first_slot() + place;
    if (place >= rows.entry.count()) return;
    const float scale = c.storage.row_scales[list.slot_sequence[slot]];
    const float gate = biased(gate_sum * scale, gate_bias), up = biased(up_sum * scale, up_bias);
    c.args.gated[static_cast<int64_t>(slot) * kMlp + rows.column + c.lane() / 4] =
        Activations::round(activation(gate, up) * (list.slot_weight[slot] * Activations::kGatedUnit));
  }

  static __device__ __forceinline__ float biased(float x, float bias) { return kHasMlpBias ? x + bias : x; }
  static __device__ __forceinline__ float activation(float gate, float up) {
    return kIsClamped ? clamped_swiglu(gate, up) : gate / (1.f + __expf(-gate)) * up;
  }

  // All of them are there before any is given back: a warpgroup may have had no rows. A lane has one each.
  template <class Compute>
  static __device__ __forceinline__ void release_activations(Compute& c) {
    const KRange half(Matrix::kKBlocks, false, c.rank);
    const int count = (half.end - half.begin) * kParts;
#pragma unroll 1
    for (int i = c.lane(); i < count; i += 32) {
      auto stage = c.activations;
      stage.advance(i);
      mbarrier_wait(c.activations_full + stage.index * 8, stage.parity);
      mbarrier_arrive(c.activations_empty + stage.index * 8);
    }
    __syncwarp();
    c.activations.advance(count);
  }
};
