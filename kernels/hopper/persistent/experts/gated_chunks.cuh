// gated_chunks.cuh: rows of `gated` in shared memory, as the experts' down GEMM reads them.
//
// A chunk is 256 columns of an entry's rows, 512 bytes each: one instruction of a warp copies a row, however few an
// entry has. Each warpgroup has its own part of K, and a ring of its own of the chunks that lie there, in the memory of
// the pipeline of activations, all stages of which are free by then.
#pragma once

#include "../activation_stream.cuh"
#include "../phases/gemm.cuh"
#include "expert_list.cuh"

constexpr int kChunkColumns = 256, kChunkRowBytes = kChunkColumns * 2;
constexpr int kChunkBytes = kEntrySequences * kChunkRowBytes;

// A warpgroup's part of K of all entries, one behind the other: units of one or two blocks. Where the cluster has at
// most two tiles, a stage has two blocks, and a warp's tile one of them (a lane of K).
struct KUnits {
  int lanes, blocks;  // blocks of K of a unit, and of all entries
  int begin, end;     // units of the warpgroup

  __device__ __forceinline__ KUnits(int tiles, int blocks, int rank, int warpgroup)
      : lanes(tiles <= kBlockTiles / 2 ? 2 : 1), blocks(blocks) {
    const int units = tiles == 0 ? 0 : (blocks + lanes - 1) / lanes, part = 2 * rank + warpgroup;
    begin = units * part / 4, end = units * (part + 1) / 4;
  }
  __device__ __forceinline__ int block(int unit, int lane) const { return unit * lanes + lane; }
};

// The chunks of a warpgroup's units, counted from the first entry's.
template <class Matrix, int kBlockK>
struct ChunkRange {
  static constexpr int kKBlocks = Matrix::kKBlocks, kBlocks = kChunkColumns / kBlockK;
  static constexpr int kOfEntry = (kKBlocks + kBlocks - 1) / kBlocks;
  static_assert(kChunkColumns % kBlockK == 0, "a block of K lies in one chunk");
  int first, end;

  __device__ __forceinline__ explicit ChunkRange(const KUnits& units) {
    first = of_block(units.block(units.begin, 0));
    end = units.begin < units.end ? of_block(min(units.block(units.end, 0), units.blocks) - 1) + 1 : first;
  }
  static __device__ __forceinline__ int of_block(int block) {
    return block / kKBlocks * kOfEntry + block % kKBlocks / kBlocks;
  }
  // Where a block's columns begin in a row of its chunk.
  static __device__ __forceinline__ int offset_of(int block) { return block % kKBlocks % kBlocks * (kBlockK * 2); }
};

// The rings of both warpgroups, in shared memory all step long.
template <int N>
struct ChunkRings {
  static constexpr int kChunks = N < 32 ? 6 : 8;                                             // of a warpgroup
  static constexpr int kActivationStages = kWarpgroups * kChunks * kChunkBytes / (N * 128);  // that they lie in
  uint64_t full[kWarpgroups][kChunks], empty[kWarpgroups][kChunks];
  int done[kWarpgroups];  // chunks of the layers before

  __device__ __forceinline__ void init() {
    for (int i = 0; i < kWarpgroups; i++) {
      for (int j = 0; j < kChunks; j++) {
        mbarrier_init(shared_address(&full[i][j]), 32);
        mbarrier_init(shared_address(&empty[i][j]), 4);
      }
      done[i] = 0;
    }
  }
};

// One warp's copies of the chunks of one warpgroup.
template <class Chunks, class Rings>
struct ChunkWriter {
  Chunks chunks;
  uint32_t data, full, empty;
  PipelineState<Rings::kChunks> place{1};

  __device__ __forceinline__ ChunkWriter(const Rings& rings, const KUnits& units, uint32_t data, int warpgroup)
      : chunks(units),
        data(data + warpgroup * Rings::kChunks * kChunkBytes),
        full(shared_address(rings.full[warpgroup])),
        empty(shared_address(rings.empty[warpgroup])) {
    place.advance(rings.done[warpgroup]);
  }

  template <class Stream, class List>
  __device__ __forceinline__ void copy_next(const Stream& stream, const List& list) {
    if (chunks.first == chunks.end) return;
    const ExpertEntry entry = list.entries[chunks.first / Chunks::kOfEntry];
    const int lane = threadIdx.x % 32, column = chunks.first % Chunks::kOfEntry * kChunkColumns + lane * 8;
    const bool exists = kMlp % kChunkColumns == 0 || column < kMlp;
    const uint16_t* from = stream.args.gated + static_cast<int64_t>(entry.first_slot()) * kMlp + column;
    const uint32_t to = data + place.index * kChunkBytes + lane / 8 * 128;
    stream.wait_for_release(empty + place.index * 8, place.parity);
#pragma unroll 1
    for (int row = 0; row < entry.count(); row++, from += kMlp) {
      copy16_async(to + row * kChunkRowBytes + (lane % 8 ^ row) * 16, from, exists);
    }
    mbarrier_arrive_after_copies(full + place.index * 8);
    place.advance(), chunks.first++;
  }
};

// One warp's view of its warpgroup's ring. It has a chunk at a time, the first from the beginning on.
template <class Chunks, class Compute, class Rings>
class ChunkReader {
 public:
  __device__ __forceinline__ ChunkReader(const Compute& c, const Rings& rings, const KUnits& units)
      : c_(c),
        chunks_(units),
        held_(chunks_.first),
        data_(c.activations_data + c.warpgroup * Rings::kChunks * kChunkBytes),
        full_(shared_address(rings.full[c.warpgroup])),
        empty_(shared_address(rings.empty[c.warpgroup])) {
    place_.advance(rings.done[c.warpgroup]);
    if (chunks_.first < chunks_.end) wait();
  }

  // Release the chunks before a block's, and wait for that: also for one of which the warp reads nothing, since before
  // it is there the ring's last turn is not over. Blocks ascend.
  __device__ __forceinline__ void move_to(int block) { hold(min(Chunks::of_block(block), chunks_.end - 1)); }
  // The address of the lane's row of a block's columns.
  __device__ __forceinline__ uint32_t row_of(int block) const {
    return data_ + place_.index * kChunkBytes + threadIdx.x % 8 * kChunkRowBytes + Chunks::offset_of(block);
  }
  // Release what is left; return how many chunks there were.
  __device__ __forceinline__ int finish() {
    hold(chunks_.end - 1);
    if (chunks_.first < chunks_.end) release();
    return chunks_.end - chunks_.first;
  }

 private:
  __device__ __forceinline__ void wait() { mbarrier_wait(full_ + place_.index * 8, place_.parity); }
  __device__ __forceinline__ void hold(int chunk) {
#pragma unroll 1
    while (held_ < chunk) {
      release();
      wait();
    }
  }
  __device__ __forceinline__ void release() {
    __syncwarp();
    if (c_.lane() == 0) mbarrier_arrive(empty_ + place_.index * 8);
    place_.advance(), held_++;
  }

  const Compute& c_;
  const Chunks chunks_;
  int held_;
  const uint32_t data_, full_, empty_;
  PipelineState<Rings::kChunks> place_{0};
};
