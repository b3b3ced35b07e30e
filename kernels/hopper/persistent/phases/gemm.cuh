// gemm.cuh: Y = W X^T, W streamed from memory in its format, X from other blocks; an epilogue takes the sums.
//
// Rows go in 16-row tiles, one a warp; four are a 64-row block, what a warpgroup's MMA takes; up to kMBlocks of them
// are accumulated side by side. K goes in blocks of the format's kBlockK columns, half of them for each CTA of a
// cluster. With kSplitsK the four warpgroups of a cluster have the same rows, and a CTA's two take its blocks of K in
// turn; else each has rows of its own, and its peer in the other CTA the same.
#pragma once

#include <type_traits>

#include "../activation_types.cuh"
#include "../shared_storage.cuh"
#include "copy/async_copy.cuh"
#include "copy/tma.cuh"
#include "mma/wgmma.cuh"
#include "sync/uniform.cuh"

constexpr int kTileM = 16, kBlockTiles = 4, kBlockM = kBlockTiles * kTileM;

constexpr int kRowsOfVocabulary = 0;  // as many rows as the vocabulary, known at run time

template <int kRowCount, int kInputCount, int kMBlockCount, bool kIsSplit>
struct GemmShape {
  static constexpr int kRows = kRowCount, kInputs = kInputCount, kMBlocks = kMBlockCount;
  static constexpr bool kSplitsK = kIsSplit;
  static constexpr bool kReadsGated = false;   // activations are times kGatedUnit
  static constexpr bool kIsOfExperts = false;  // main loop of its own (experts/)

  // The first tile of a cluster, where its four warpgroups have the same.
  static __device__ __forceinline__ int first_tile(const Args& args, int tiles, int cluster) {
    return over_clusters(args, tiles * cluster);
  }
};

// 16-row tiles [first, first + count) of a GEMM, which a warpgroup has with its peer or with all four of its cluster.
struct TileRange {
  int first, count;

  __device__ __forceinline__ TileRange(int begin, int end) : first(begin), count(end - begin) {}
  // This cluster's of all.
  static __device__ __forceinline__ TileRange of_cluster(const Args& args, int tiles) {
    const int cluster = blockIdx.x / 2;
    return {over_clusters(args, tiles * cluster), over_clusters(args, tiles * (cluster + 1))};
  }
  // A warpgroup's, and its peer's in the other CTA: each cluster has two such pairs.
  static __device__ __forceinline__ TileRange of_pair(const Args& args, int tiles, int warpgroup) {
    const int pair = blockIdx.x / 2 * 2 + warpgroup;
    return {over_clusters(args, tiles * pair / 2), over_clusters(args, tiles * (pair + 1) / 2)};
  }
};

// Blocks [begin, end) of K, a CTA's half. Where two warpgroups take them in turn there are as many for each: past
// `last` come columns of zeros.
struct KRange {
  int begin, end, last;

  __device__ __forceinline__ KRange(int blocks, bool is_split, int rank) {
    const int half = (blocks + 1) / 2;
    begin = rank ? half : 0, last = (rank ? blocks : half) - 1;
    end = is_split ? begin + (last - begin + 2) / 2 * 2 : last + 1;
  }
};

// Operands: a GemmShape and addresses, as in operands.cuh.
template <class Operands, class WeightFormat, class Epilogue>
struct Gemm : Phase, Operands {
  using Format = WeightFormat;
  using Operands::kInputs, Operands::kMBlocks, Operands::kRows, Operands::kSplitsK;
  static constexpr bool kEndsAtBarrier = Epilogue::kEndsAtBarrier, kReadsRowScales = Epilogue::kReadsRowScales;
  static constexpr int kKBlocks = (kInputs + Format::kBlockK - 1) / Format::kBlockK, kParts = Format::kBlockK / 64;
  static constexpr int kTileBytes = Format::kTileBytes, kStageBytes = kBlockTiles * kTileBytes;
  static constexpr int kActivationStages = kParts, kSplitMBlocks = kSplitsK ? kMBlocks : 0;
  static constexpr bool kHasBlockScales = Format::kHasBlockScales;
  static constexpr bool kReadsF16 = !std::is_same<typename Format::Activations, Bf16Activations>::value;
  static constexpr int kKStep = kSplitsK ? 2 : 1;  // of two blocks of K, the other warpgroup takes one
  static_assert(Format::kBlockK % 64 == 0 && kTileBytes % 16 == 0,
                "tiles are copied in 16 bytes, activations in 64 columns");

  // The main loop and epilogues ask a GEMM phase for these; one whose rows or K are known at run time (experts) reads
  // them from the role's storage.
  template <class Role>
  static __device__ __forceinline__ int row_tiles(const Role& role) {
    return ((kRows == kRowsOfVocabulary ? role.args.vocab : kRows) + kTileM - 1) / kTileM;
  }
  template <class Role>
  static __device__ __forceinline__ TileRange tile_range(const Role& role) {
    const int cluster = blockIdx.x / 2, tiles = row_tiles(role);
    if constexpr (kSplitsK) {
      return {Operands::first_tile(role.args, tiles, cluster), Operands::first_tile(role.args, tiles, cluster + 1)};
    } else {
      return TileRange::of_pair(role.args, tiles, role.warpgroup);
    }
  }
  // How often the warpgroup with the most tiles goes over K.
  template <class Role>
  static __device__ __forceinline__ int passes(const Role& role) {
    const int most = over_clusters(role.args, (row_tiles(role) + static_cast<int>(gridDim.x) - 1) / 2);
    return kSplitsK ? 1 : (most + kMBlocks * kBlockTiles - 1) / (kMBlocks * kBlockTiles);
  }
  template <class Role>
  static __device__ __forceinline__ KRange k_range(const Role& role) {
    return KRange(kKBlocks, kSplitsK, role.rank);
  }

  // Sections behind the tiles, each from a multiple of 128 bytes on: scales of blocks, and of rows.
  template <class Role>
  static __device__ __forceinline__ size_t block_scales(const Role& role) {
    const size_t row_blocks = (row_tiles(role) + kBlockTiles - 1) / kBlockTiles;
    return (row_blocks * kKBlocks * kStageBytes + 127) / 128 * 128;
  }
  template <class Role>
  static __device__ __forceinline__ size_t row_scales(const Role& role) {
    const size_t row_blocks = (row_tiles(role) + kBlockTiles - 1) / kBlockTiles;
    const size_t size = kHasBlockScales ? row_blocks * kKBlocks * (kBlockTiles * kTileBlockScaleBytes) : 0;
    return block_scales(role) + (size + 127) / 128 * 128;
  }
  // The scale of a row of weights, 1 past the end or if the format has none.
  template <class Compute>
  static __device__ __forceinline__ float load_row_scale(const Compute& c, int row) {
    if constexpr (!Format::kIsQuantized) return 1.f;
    if (row >= row_tiles(c) * kTileM) return 1.f;
    const char* const weights = reinterpret_cast<const char*>(Operands::weights(c.args, c.weights));
    return reinterpret_cast<const float*>(weights + row_scales(c))[row];
  }

  template <class Stream>
  static __device__ __forceinline__ void stream_memory(Stream& stream) {
    const char* const weights = uniform(reinterpret_cast<const char*>(Operands::weights(stream.args, *stream.weights)));
    const TileRange range = tile_range(stream);
    const KRange half = k_range(stream);
    // Tiles are packed four to a 64-row block; each stage's begin in one where the range does, and end in the next.
    const int offset = range.first % kBlockTiles;
    constexpr size_t kRowBlockBytes = size_t{kKBlocks} * kStageBytes;
#pragma unroll 1
    for (int done = 0; done < range.count; done += kMBlocks * kBlockTiles) {
      const int tiles = min(range.count - done, kMBlocks * kBlockTiles);
      const size_t row_block = (range.first + done) / kBlockTiles * size_t{kKBlocks};
#pragma unroll 1
      for (int k = half.begin + (kSplitsK ? stream.warpgroup : 0); k < half.end; k += kKStep) {
        const size_t index = row_block + min(k, half.last);
        const char* block = weights + index * kStageBytes;
        const char* scales = weights + block_scales(stream) + index * (kBlockTiles * kTileBlockScaleBytes);
#pragma unroll 1
        for (int left = tiles; left > 0; left -= kBlockTiles) {
          const int size = min(kBlockTiles, left), here = min(size, kBlockTiles - offset);
          stream_stage(stream, block, scales, offset, here, size - here);
          block += kRowBlockBytes, scales += kKBlocks * (kBlockTiles * kTileBlockScaleBytes);
        }
      }
    }
  }

  // A stage of `here` tiles of a block, from its tile `offset` on, and the first `there` of the one below it; their
  // block scales, if the format has any, are those of whole blocks.
  template <class Stream>
  static __device__ __forceinline__ void stream_stage(Stream& stream, const char* block, const char* scales, int offset,
                                                      int here, int there) {
    constexpr int kScaleBytes = kHasBlockScales ? kBlockTiles * kTileBlockScaleBytes : 0;
    const uint32_t to = stream.acquire((here + there) * kTileBytes + (there > 0 ? 2 : 1) * kScaleBytes);
    const uint32_t barrier = stream.barrier(), scales_to = stream.block_scales();
    if (elect_lane()) {
      if constexpr (kHasBlockScales) bulk_load(scales_to, scales, kScaleBytes, barrier, kEvictNormal);
      bulk_load(to, block + offset * kTileBytes, here * kTileBytes, barrier, kEvictFirst);
      if (there > 0) {
        if constexpr (kHasBlockScales) {
          bulk_load(scales_to + kScaleBytes, scales + kKBlocks * kScaleBytes, kScaleBytes, barrier, kEvictNormal);
        }
        bulk_load(to + here * kTileBytes, block + size_t{kKBlocks} * kStageBytes, there * kTileBytes, barrier,
                  kEvictFirst);
      }
    }
    stream.commit();
  }

  // This CTA's half of K, as often as its warpgroups go over it.
  template <class Stream>
  static __device__ __forceinline__ void stream_activations(Stream& stream) {
    const KRange half = k_range(stream);
    stream.template copy<kInputs, kParts>(Operands::activations(stream.args), half.begin, half.end, half.last,
                                          passes(stream));
  }

  template <class Compute>
  static __device__ __forceinline__ void begin_step(Compute& compute) {
    Epilogue::template begin_step<Gemm>(compute);
  }
  template <class Compute>
  static __device__ __forceinline__ void compute(Compute& compute) {
    Epilogue::template run<Gemm>(compute);
  }
};

// Sums of `tiles` 16-row tiles in up to kMBlocks blocks, over the warpgroup's part of K. One stage's MMAs stay in
// flight while the next one's begin; what they read is released when those after them have begun. Blocks without rows
// multiply what lies there: a branch around MMAs in flight would make the compiler wait for them.
template <class G, class Compute, int kSums>
__device__ __forceinline__ void gemm_main_loop(Compute& c, float (&sums)[G::kMBlocks][kSums], int tiles) {
  using Layout = typename Compute::Layout;
  constexpr int kParts = G::kParts;
  const KRange half = G::k_range(c);
  PipelineState<Layout::kActivationStages> activations = c.activations;
  if (G::kSplitsK && c.warpgroup == 1) {
#pragma unroll
    for (int part = 0; part < kParts; part++) activations.advance();
  }
  PipelineState<Layout::kActivationStages> read = activations;  // the oldest stage that is not released
  bool holds_stage = false, holds_activations = false;
#pragma unroll
  for (int m = 0; m < G::kMBlocks; m++) {
#pragma unroll
    for (int i = 0; i < kSums; i++) sums[m][i] = 0.f;
  }
#pragma unroll 1
  for (int k = half.begin; k < half.end; k += G::kKStep) {
    // A stage that the other warpgroup had in between is not waited for: its copies were begun before some of those
    // that this one has seen, by the same threads, so its phase is over.
    uint32_t columns[kParts];
#pragma unroll
    for (int part = 0; part < kParts; part++) {
      mbarrier_wait(c.activations_full + activations.index * 8, activations.parity);
      columns[part] = c.activations_data + activations.index * Layout::kActivationBytes;
      if (part + 1 < kParts) activations.advance();
    }
    fence_async_shared();  // threads copied the activations, the tensor cores read them
#pragma unroll
    for (int m = 0; m < G::kMBlocks; m++) {
      const bool exists = m * kBlockTiles < tiles;
      if (exists) mbarrier_wait(c.stage_full + c.stage.index * 8, c.stage.parity);
      const uint32_t weights = c.stages + c.stage.index * Compute::kStageBytes;
      if (exists) c.stage.advance();
      G::Format::template mma<kSums * 2>(sums[m], weights, columns);
      wgmma_wait<1>();
      if (exists && holds_stage) c.release_stage();
      holds_stage = holds_stage || exists;
      if (m == 0 && holds_activations) c.template release_activations<G::kKStep, kParts>(read);
    }
    holds_activations = true;
#pragma unroll
    for (int i = 0; i < kParts * (G::kKStep - 1) + 1; i++) activations.advance();
  }
  wgmma_wait<0>();
#pragma unroll
  for (int m = 0; m < G::kMBlocks; m++) wgmma_registers(sums[m]);
  if (holds_stage) c.release_stage();
  if (holds_activations) c.template release_activations<G::kKStep, kParts>(read);
  c.activations.advance((half.end - half.begin) * kParts);
}

template <class G, class Compute>
class QuantizedLoop;  // quantized_gemm.cuh

// The main loop of the format.
template <class G, class Compute, int kSums>
__device__ __forceinline__ void multiply(Compute& c, float (&sums)[G::kMBlocks][kSums], int tiles) {
  if constexpr (G::kIsOfExperts) {
    G::multiply(c, sums, tiles);
  } else if constexpr (G::Format::kIsQuantized) {
    QuantizedLoop<G, Compute>(c).run(sums, tiles);
  } else {
    gemm_main_loop<G>(c, sums, tiles);
  }
}

// Scales of the rows that a thread finishes of each block; loaded before a main loop: a miss behind a full pipeline
// takes microseconds.
template <class G>
struct RowScales {
  float values[G::kMBlocks];

  // `first`: row of this thread in tile 0 of the first block.
  template <class Compute>
  __device__ __forceinline__ RowScales(const Compute& c, int first) {
#pragma unroll
    for (int m = 0; m < G::kMBlocks; m++) {
      values[m] = G::load_row_scale(c, first + (m * kBlockTiles + c.warp()) * kTileM);
    }
  }
  // Of a tile, counted from the first block's.
  __device__ __forceinline__ float of_tile(int tile) const {
    float value = values[0];
#pragma unroll
    for (int m = 1; m < G::kMBlocks; m++) value = tile / kBlockTiles == m ? values[m] : value;
    return value;
  }
};

// Go over K once for every kMBlocks blocks of this warpgroup, as often as the warpgroup with the most.
// `use(first tile, sums, tiles, scales of upper rows, of lower rows)`.
template <class G, class Compute, class Use>
__device__ __forceinline__ void each_pass(Compute& c, Use use) {
  const TileRange range = G::tile_range(c);
  const int passes = G::passes(c);
#pragma unroll 1
  for (int pass = 0; pass < passes; pass++) {
    const int done = pass * G::kMBlocks * kBlockTiles;
    const int tiles = max(0, min(range.count - done, G::kMBlocks * kBlockTiles));
    const int row = (range.first + done) * kTileM + c.lane() / 4;
    const RowScales<G> upper(c, row), lower(c, row + 8);
    float sums[G::kMBlocks][Compute::kN / 2];
    multiply<G>(c, sums, tiles);
    use(range.first + done, sums, tiles, upper, lower);
  }
}
