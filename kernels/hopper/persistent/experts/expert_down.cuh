// expert_down.cuh: the down GEMM of the experts that were chosen: K of all entries, one behind the other.
//
// A cluster has its rows of the residual, as in a dense layer; its four warpgroups share K. A block of K has an entry's
// sequences alone, so a warp keeps an entry's sums apart and adds them to those of its sequences when the next entry
// begins. Where a cluster has at most two tiles, a stage has two blocks of K, and a warp's tile one of them (a lane of
// K); the two lanes' sums are added at the end.
#pragma once

#include "../phases/epilogues.cuh"
#include "../phases/operands.cuh"
#include "../phases/paged_kv.cuh"
#include "expert_matrix.cuh"
#include "router.cuh"
#include "warp_tile.cuh"

// What a CTA has of K: units of one or two blocks, which its warpgroups take in turn.
struct KUnits {
  int tiles, lanes, blocks;  // tiles of the cluster, blocks of K of a unit, and of all entries
  int begin, end;            // units of this CTA

  __device__ __forceinline__ KUnits(int tiles, int blocks, int rank)
      : tiles(tiles), lanes(tiles <= kBlockTiles / 2 ? 2 : 1), blocks(blocks) {
    const int units = tiles == 0 ? 0 : (blocks + lanes - 1) / lanes, half = (units + 1) / 2;
    begin = rank ? half : 0, end = rank ? units : half;
  }
  __device__ __forceinline__ int block(int unit, int lane) const { return unit * lanes + lane; }
};

// Stages of activations of a unit: the 64 columns of an entry's sequences are an eighth of N of a stage.
template <int N, int kParts>
struct UnitStages {
  static constexpr int kPartsOfStage = N / kEntrySequences, kPartBytes = kEntrySequences * 128;
  int count;

  __device__ __forceinline__ explicit UnitStages(const KUnits& units)
      : count((units.lanes * kParts + kPartsOfStage - 1) / kPartsOfStage) {}
  // The offset of a part of a unit whose first stage is `first`.
  template <int kStages>
  static __device__ __forceinline__ uint32_t offset(const PipelineState<kStages>& first, int part) {
    const int index = first.index + part / kPartsOfStage;
    return (index < kStages ? index : index - kStages) * (N * 128) + part % kPartsOfStage * kPartBytes;
  }
};

template <class WeightFormat, class Epilogue>
struct ExpertDown : Phase, Down {
  using Format = WeightFormat;
  using Matrix = ExpertMatrix<kHidden, kMlp, Format>;
  using Routing = Router<typename Format::Activations>;
  static constexpr int kParts = Matrix::kParts, kStageBytes = Matrix::kBlockBytes, kActivationStages = kParts;
  static constexpr bool kHasBlockScales = Format::kHasBlockScales, kIsOfExperts = true;
  static constexpr bool kReadsF16 = !std::is_same<typename Format::Activations, Bf16Activations>::value;
  template <int N>
  static constexpr int kMinActivationStages = 256 / N;  // 32 KB, lest their latency show
  static_assert(!kHasExperts || (kHidden % kTileM == 0 && kResidualMBlocks == 1), "a cluster has four tiles at most");

  template <class Stream>
  static __device__ __forceinline__ void stream_memory(Stream& stream) {
    const auto& list = stream.storage.template of<Routing>().list;
    const Matrix matrix = matrix_of(stream.args, *stream.weights);
    const TileRange rows = row_range();
    const KUnits units(rows.count, list.count * Matrix::kKBlocks, stream.rank);
    const int row_block = rows.first / kBlockTiles, tile = rows.first % kBlockTiles;
    const int here = min(rows.count, kBlockTiles - tile);
    const int scale_bytes = kHasBlockScales ? (here < rows.count ? 2 : 1) * Matrix::kBlockScaleBytes : 0;
    const bool is_elected = threadIdx.x % 32 == 0;
#pragma unroll 1
    for (int unit = units.begin + stream.warpgroup; unit < units.end; unit += kWarpgroups) {
      const int lanes = min(units.lanes, units.blocks - units.block(unit, 0));
      uint32_t to = stream.acquire(lanes * (rows.count * Matrix::kTileBytes + scale_bytes));
      uint32_t scales = stream.block_scales();
#pragma unroll 1
      for (int lane = 0; lane < lanes && is_elected; lane++) {
        const int block = units.block(unit, lane), k = block % Matrix::kKBlocks;
        const char* const expert = matrix.of(list.entries[block / Matrix::kKBlocks].expert());
        Matrix::copy_tiles(expert, row_block, k, tile, here, to, scales, stream.barrier());
        if (here < rows.count) {
          Matrix::copy_tiles(expert, row_block + 1, k, 0, rows.count - here, to + here * Matrix::kTileBytes,
                             scales + Matrix::kBlockScaleBytes, stream.barrier());
        }
        to += rows.count * Matrix::kTileBytes, scales += 2 * Matrix::kBlockScaleBytes;
      }
      stream.commit();
    }
  }

  // Of each block of K the rows of `gated` of its entry.
  template <class Stream>
  static __device__ __forceinline__ void stream_activations(Stream& stream) {
    using Layout = typename Stream::Layout;
    using Stages = UnitStages<Layout::N, kParts>;
    constexpr int kRowsAtOnce = 4 * Layout::kCopyWarps;
    const auto& list = stream.storage.template of<Routing>().list;
    const KUnits units(row_range().count, list.count * Matrix::kKBlocks, stream.rank);
    const Stages stages(units);
    const int chunk = threadIdx.x % 8, first_row = stream.part * 4 + threadIdx.x % 32 / 8;
#pragma unroll 1
    for (int unit = units.begin; unit < units.end; unit++) {
      const auto first = stream.stage;
      auto stage = first;
#pragma unroll 1
      for (int i = 0; i < stages.count; i++, stage.advance()) {
        stream.detector.wait(stream.empty + stage.index * 8, stage.parity, kActivationsEmpty, stream.phase);
      }
#pragma unroll 1
      for (int lane = 0; lane < min(units.lanes, units.blocks - units.block(unit, 0)); lane++) {
        const int block = units.block(unit, lane), column = block % Matrix::kKBlocks * Format::kBlockK + chunk * 8;
        const ExpertEntry entry = list.entries[block / Matrix::kKBlocks];
        const uint16_t* const from = stream.args.gated + static_cast<int64_t>(entry.first_slot()) * kMlp + column;
#pragma unroll
        for (int part = 0; part < kParts; part++) {
          const uint32_t to = stream.data + Stages::offset(first, lane * kParts + part);
#pragma unroll
          for (int i = 0; i < kEntrySequences / kRowsAtOnce; i++) {
            const int row = first_row + i * kRowsAtOnce;
            if (row < entry.count()) {
              copy16_async(to + row * 128 + (chunk ^ row) * 16, from + row * kMlp + part * 64,
                           kMlp % Format::kBlockK == 0 || column + part * 64 < kMlp);
            }
          }
        }
      }
#pragma unroll 1
      for (int i = 0; i < stages.count; i++, stream.stage.advance()) {
        mbarrier_arrive_after_copies(stream.full + stream.stage.index * 8);
      }
    }
  }

  template <class Compute>
  static __device__ __forceinline__ void compute(Compute& c) {
    Epilogue::template run<ExpertDown>(c);
  }

  // Scales of rows differ by expert: they are multiplied in here.
  template <class Compute>
  static __device__ __forceinline__ float load_row_scale(const Compute& c, int row) {
    return 1.f;
  }

  template <class Compute, int kSums>
  static __device__ __forceinline__ void multiply(Compute& c, float (&sums)[1][kSums], int tiles) {
    constexpr int kAll = Compute::Layout::kActivationStages;
    using Stages = UnitStages<Compute::kN, kParts>;
    const auto& list = c.storage.template of<Routing>().list;
    const Matrix matrix = matrix_of(c.args, c.weights);
    const KUnits units(tiles, list.count * Matrix::kKBlocks, c.rank);
    const Stages stages(units);
    const int lane = units.lanes == 2 ? c.warp() / 2 : 0, own = units.lanes == 2 ? c.warp() % 2 : c.warp();
    const int first_tile = c.residual_range.first, row = (first_tile + own) * kTileM + c.lane() / 4;
    const uint32_t tile_at = c.stages + (lane * tiles + own) * Matrix::kTileBytes;
    const uint32_t scales_at = c.block_scales + lane * (2 * Matrix::kBlockScaleBytes) +
                               (first_tile % kBlockTiles + own) * kTileBlockScaleBytes;
    const auto has_block = [&](int unit) {
      return own < tiles && unit < units.end && units.block(unit, lane) < units.blocks;
    };
    const auto scales_of = [&](int unit) {
      RowPair pair{1.f, 1.f};
      if (Format::kIsQuantized && has_block(unit)) {
        const int expert = list.entries[units.block(unit, lane) / Matrix::kKBlocks].expert();
        pair.upper = matrix.load_row_scale(expert, row), pair.lower = matrix.load_row_scale(expert, row + 8);
      }
      return pair;
    };
#pragma unroll
    for (int i = 0; i < kSums; i++) sums[0][i] = 0.f;
    float parts[4] = {};  // of the entry
    int entry = -1;
    PipelineState<kAll> activations = c.activations;
    if (c.warpgroup == 1) activations.advance(stages.count);
    const int first = units.begin + c.warpgroup;
    // Loaded two units ahead: a miss behind a full pipeline takes microseconds.
    RowPair scales{1.f, 1.f}, next = scales_of(first), after = scales_of(first + kWarpgroups);
    WarpTile<Format> tile;
    WarpColumns<Format> columns;
#pragma unroll 1
    for (int unit = first; unit < units.end; unit += kWarpgroups) {
      const bool exists = has_block(unit);
      const int entry_now = units.block(unit, lane) / Matrix::kKBlocks;
      if (exists && entry_now != entry) {
        if (entry >= 0) add_entry(list.entries[entry], list, parts, scales, sums[0]);
        entry = entry_now;
      }
      if (exists) scales = next;
      next = after, after = scales_of(unit + 2 * kWarpgroups);
      c.detector.wait(c.stage_full + c.stage.index * 8, c.stage.parity, kStageFull, c.phase);
      if (exists) {
        tile.load(tile_at + c.stage.index * Compute::kStageBytes, scales_at + c.stage.index * kStageBlockScaleBytes);
      }
      __syncwarp();
      c.stage.advance();
      c.release_stage();
      auto last = activations;
      last.advance(stages.count - 1);
      c.detector.wait(c.activations_full + last.index * 8, last.parity, kActivationsFull, c.phase);
#pragma unroll
      for (int part = 0; part < kParts; part++) {
        const uint32_t at = c.activations_data + Stages::offset(activations, lane * kParts + part);
        columns.load(part, at + c.lane() % 8 * 128, c.lane());
      }
      __syncwarp();
#pragma unroll 1
      for (int i = 0; i < stages.count; i++, activations.advance()) {
        if (c.lane() == 0) mbarrier_arrive(c.activations_empty + activations.index * 8, kWarpgroups);
      }
      activations.advance(stages.count);
      if (exists) tile.add_to(parts, columns);
    }
    if (entry >= 0) add_entry(list.entries[entry], list, parts, scales, sums[0]);
    c.activations.advance((units.end - units.begin) * stages.count);
    if (units.lanes == 2) add_lanes(c, sums[0], tiles);
  }

 private:
  struct RowPair {
    float upper, lower;
  };

  static __device__ __forceinline__ TileRange row_range() {
    return TileRange((kHidden + kTileM - 1) / kTileM, blockIdx.x / 2, gridDim.x / 2);
  }
  static __device__ __forceinline__ Matrix matrix_of(const Args& args, const LayerWeights& layer) {
    return {static_cast<const char*>(layer.down), args.down_stride};
  }

  // Add an entry's sums, of its places in the list, to those of its sequences, and clear them. In `sums` a sequence has
  // the lanes of its pair.
  template <class List, int kSums>
  static __device__ __forceinline__ void add_entry(const ExpertEntry& entry, const List& list, float (&parts)[4],
                                                   const RowPair& scales, float (&sums)[kSums]) {
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int pair = 0; 2 * pair < entry.count(); pair++) {
      float values[4];
#pragma unroll
      for (int i = 0; i < 4; i++) values[i] = __shfl_sync(kWholeWarp, parts[i], (lane & ~3) + pair);
#pragma unroll
      for (int odd = 0; odd < 2; odd++) {
        const int place = 2 * pair + odd;
        const int sequence = place < entry.count() ? list.slot_sequence[entry.first_slot() + place] : 255;
#pragma unroll
        for (int i = 0; i < kSums / 2; i++) {
          if (sequence == i / 2 * 8 + lane % 4 * 2 + i % 2) {
            sums[i / 2 * 4 + i % 2] += values[odd] * scales.upper;
            sums[i / 2 * 4 + i % 2 + 2] += values[odd + 2] * scales.lower;
          }
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) parts[i] = 0.f;
  }

  // Warps 2 and 3 have sums of the tiles of warps 0 and 1.
  template <class Compute, int kSums>
  static __device__ __forceinline__ void add_lanes(Compute& c, float (&sums)[kSums], int tiles) {
    const uint32_t at = c.reduction.unused_buffer() + threadIdx.x % 64 * 4;
    if (c.warp() / 2 == 1) {
#pragma unroll
      for (int i = 0; i < kSums; i++) store_shared(at + i * 256, __float_as_uint(sums[i]));
    }
    c.sync_warpgroup();
    if (c.warp() / 2 == 0) {
#pragma unroll
      for (int i = 0; i < kSums; i++) sums[i] += load_shared(at + i * 256);
    }
  }
  static __device__ __forceinline__ float load_shared(uint32_t from) {
    float value;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(from) : "memory");
    return value;
  }
};
