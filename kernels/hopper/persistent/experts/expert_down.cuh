// expert_down.cuh: the down GEMM of the experts that were chosen: K of all entries, one behind the other.
//
// A cluster has its rows of the residual, as in a dense layer; its four warpgroups have a quarter of K each. A block of
// K has an entry's sequences alone, so a warp keeps an entry's sums apart and adds them to those of its sequences when
// the next entry begins. Where a stage has two blocks of K, the two lanes' sums are added at the end.
#pragma once

#include "../phases/epilogues.cuh"
#include "../phases/operands.cuh"
#include "../phases/paged_kv.cuh"
#include "expert_matrix.cuh"
#include "gated_chunks.cuh"
#include "router.cuh"
#include "warp_tile.cuh"

template <class WeightFormat, class Epilogue>
struct ExpertDown : Phase, Down {
  using Format = WeightFormat;
  using Matrix = ExpertMatrix<kHidden, kMlp, Format>;
  using Routing = Router<typename Format::Activations>;
  using Chunks = ChunkRange<Matrix, Format::kBlockK>;
  static constexpr int kParts = Matrix::kParts, kStageBytes = Matrix::kBlockBytes, kActivationStages = kParts;
  static constexpr bool kHasBias = false;  // added by the router, which has the sequences' choices
  static constexpr bool kHasBlockScales = Format::kHasBlockScales, kIsOfExperts = true;
  static constexpr bool kReadsF16 = !std::is_same<typename Format::Activations, Bf16Activations>::value;
  template <int N>
  static constexpr int kMinActivationStages = ChunkRings<N>::kActivationStages;
  static_assert(!kHasExperts || (kHidden % kTileM == 0 && kResidualMBlocks == 1), "a cluster has four tiles at most");

  template <int N>
  struct Storage {
    ChunkRings<N> rings;
  };

  template <class OwnStorage>
  static __device__ __forceinline__ void init_barriers(OwnStorage& storage) {
    storage.rings.init();
  }

  template <class Stream>
  static __device__ __forceinline__ void stream_memory(Stream& stream) {
    const auto& list = stream.storage.template of<Routing>().list;
    const Matrix matrix = matrix_of(stream.args, *stream.weights);
    const TileRange rows = row_range(stream.args);
    const KUnits units(rows.count, list.count * Matrix::kKBlocks, stream.rank, stream.warpgroup);
    const int row_block = rows.first / kBlockTiles, tile = rows.first % kBlockTiles;
    const int here = min(rows.count, kBlockTiles - tile);
    const int scale_bytes = kHasBlockScales ? (here < rows.count ? 2 : 1) * Matrix::kBlockScaleBytes : 0;
#pragma unroll 1
    for (int unit = units.begin; unit < units.end; unit++) {
      const int lanes = min(units.lanes, units.blocks - units.block(unit, 0));
      uint32_t to = stream.acquire(lanes * (rows.count * Matrix::kTileBytes + scale_bytes));
      uint32_t scales = stream.block_scales();
      if (elect_lane()) {
#pragma unroll 1
        for (int lane = 0; lane < lanes; lane++) {
          const int block = units.block(unit, lane), k = block % Matrix::kKBlocks;
          const char* const expert = matrix.of(list.entries[block / Matrix::kKBlocks].expert());
          Matrix::copy_tiles(expert, row_block, k, tile, here, to, scales, stream.barrier());
          if (here < rows.count) {
            Matrix::copy_tiles(expert, row_block + 1, k, 0, rows.count - here, to + here * Matrix::kTileBytes,
                               scales + Matrix::kBlockScaleBytes, stream.barrier());
          }
          to += rows.count * Matrix::kTileBytes, scales += 2 * Matrix::kBlockScaleBytes;
        }
      }
      stream.commit();
    }
  }

  // A warp has both warpgroups' chunks in turn, or, of two warps, each its own.
  template <class Stream>
  static __device__ __forceinline__ void stream_activations(Stream& stream) {
    using Rings = ChunkRings<Stream::Layout::N>;
    using Writer = ChunkWriter<Chunks, Rings>;
    const auto& list = stream.storage.template of<Routing>().list;
    const Rings& rings = stream.storage.template of<ExpertDown>().rings;
    const auto writer_of = [&](int warpgroup) {
      return Writer(rings, KUnits(row_range(stream.args).count, list.count * Matrix::kKBlocks, stream.rank, warpgroup),
                    stream.data, warpgroup);
    };
    wait_for_free_stages(stream);
    if constexpr (Stream::Layout::kCopyWarps > 1) {
      Writer writer = writer_of(stream.part);
      while (writer.chunks.first < writer.chunks.end) writer.copy_next(stream, list);
    } else {
      Writer even = writer_of(0), odd = writer_of(1);
#pragma unroll 1
      while (even.chunks.first < even.chunks.end || odd.chunks.first < odd.chunks.end) {
        even.copy_next(stream, list), odd.copy_next(stream, list);
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
    const auto& list = c.storage.template of<Routing>().list;
    auto& rings = c.storage.template of<ExpertDown>().rings;
    const Matrix matrix = matrix_of(c.args, c.weights);
    const KUnits units(tiles, list.count * Matrix::kKBlocks, c.rank, c.warpgroup);
    const int lane = units.lanes == 2 ? c.warp() / 2 : 0, own = units.lanes == 2 ? c.warp() % 2 : c.warp();
    const int first_tile = c.residual_range.first, row = (first_tile + own) * kTileM + c.lane() / 4;
    const uint32_t tile_at = c.stages + (lane * tiles + own) * Matrix::kTileBytes;
    const uint32_t scales_at = c.block_scales + lane * (2 * Matrix::kBlockScaleBytes) +
                               (first_tile % kBlockTiles + own) * kTileBlockScaleBytes;
    ChunkReader<Chunks, Compute, std::decay_t<decltype(rings)>> chunks(c, rings, units);
#pragma unroll
    for (int i = 0; i < kSums; i++) sums[0][i] = 0.f;
    float parts[4] = {};  // of the entry
    float upper_scale = 1.f, lower_scale = 1.f;
    int entry = -1;
    WarpTile<Format> tile;
    WarpColumns<Format> columns;
#pragma unroll 1
    for (int unit = units.begin; unit < units.end; unit++) {
      const int block = units.block(unit, lane), entry_now = block / Matrix::kKBlocks;
      const bool exists = own < tiles && block < units.blocks;
      if (exists && entry_now != entry) {
        if (entry >= 0) add_entry(list.entries[entry], list, parts, upper_scale, lower_scale, sums[0]);
        entry = entry_now;
        // Needed when the entry ends: a miss behind a full pipeline takes microseconds.
        const int expert = list.entries[entry].expert();
        upper_scale = matrix.load_row_scale(expert, row), lower_scale = matrix.load_row_scale(expert, row + 8);
      }
      mbarrier_wait(c.stage_full + c.stage.index * 8, c.stage.parity);
      if (exists) {
        tile.load(tile_at + c.stage.index * Compute::kStageBytes, scales_at + c.stage.index * kStageBlockScaleBytes);
      }
      __syncwarp();
      c.stage.advance();
      c.release_stage_after(tile.last_loaded());
      chunks.move_to(block);
      if (exists) {
        const uint32_t at = chunks.row_of(block);
#pragma unroll
        for (int part = 0; part < kParts; part++) columns.load(part, at + part * 128, c.lane());
        tile.add_to(parts, columns);
      }
    }
    if (entry >= 0) add_entry(list.entries[entry], list, parts, upper_scale, lower_scale, sums[0]);
    const int done = chunks.finish();
    if (units.lanes == 2) store_lane(c, sums[0]);
    c.sync_warpgroup();
    if (units.lanes == 2) add_lane(c, sums[0]);
    if (threadIdx.x % 128 == 0) rings.done[c.warpgroup] += done;
  }

 private:
  static __device__ __forceinline__ TileRange row_range(const Args& args) {
    return TileRange::of_cluster(args, (kHidden + kTileM - 1) / kTileM);
  }
  static __device__ __forceinline__ Matrix matrix_of(const Args& args, const LayerWeights& layer) {
    return {static_cast<const char*>(layer.down), args.down_stride};
  }
  // Of the pipeline of activations, whose memory the rings take: a lane waits for one each.
  template <class Stream>
  static __device__ __forceinline__ void wait_for_free_stages(const Stream& stream) {
#pragma unroll 1
    for (int i = threadIdx.x % 32; i < Stream::Layout::kActivationStages; i += 32) {
      auto stage = stream.stage;
      stage.advance(i);
      stream.wait_for_release(stream.empty + stage.index * 8, stage.parity);
    }
    __syncwarp();
  }

  // Add an entry's sums, of its places in the list, to those of its sequences, and clear them. In `sums` a sequence has
  // the lanes of its pair.
  template <class List, int kSums>
  static __device__ __forceinline__ void add_entry(const ExpertEntry& entry, const List& list, float (&parts)[4],
                                                   float upper_scale, float lower_scale, float (&sums)[kSums]) {
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
            sums[i / 2 * 4 + i % 2] += values[odd] * upper_scale;
            sums[i / 2 * 4 + i % 2 + 2] += values[odd + 2] * lower_scale;
          }
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) parts[i] = 0.f;
  }

  // Warps 2 and 3 have sums of the tiles of warps 0 and 1.
  template <class Compute, int kSums>
  static __device__ __forceinline__ void store_lane(Compute& c, const float (&sums)[kSums]) {
    if (c.warp() / 2 == 0) return;
#pragma unroll
    for (int i = 0; i < kSums; i++) store_shared(lane_sums(c) + i * 256, __float_as_uint(sums[i]));
  }
  template <class Compute, int kSums>
  static __device__ __forceinline__ void add_lane(Compute& c, float (&sums)[kSums]) {
    if (c.warp() / 2 == 1) return;
#pragma unroll
    for (int i = 0; i < kSums; i++) sums[i] += load_shared(lane_sums(c) + i * 256);
  }
  template <class Compute>
  static __device__ __forceinline__ uint32_t lane_sums(const Compute& c) {
    return c.reduction.unused_buffer() + threadIdx.x % 64 * 4;
  }
  static __device__ __forceinline__ float load_shared(uint32_t from) {
    float value;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(from) : "memory");
    return value;
  }
};
