// stream_experts.cuh: both GEMMs of a mixture's experts by one kernel where each has few tokens; stream_experts.cu
// instantiates it.
//
// An item is 64 weight rows of one expert and up to eight of its tokens, over all of K. Blocks take items round-robin,
// the second GEMM's after the first's. Each has four warps of 16 rows, a warp that streams weights by bulk copies and
// one that streams tokens into a ring of stages; both run ahead into the next items, so that memory is busy while sums
// are stored. A token's sums are those of the portable kernels, bit by bit.
//
// The second GEMM reads what the first has written. Its weights are streamed before that, its tokens once all of their
// tile's rows are stored: all blocks of the grid must be resident.
//
// For one to eight tokens, in MXFP4 up to 64: there it saves a launch, and the time in which a launch's first bytes are
// on their way (kernels/README.md has figures). Beyond, more bytes in flight than the portable kernels' gain nothing.
// In MXFP4 a warp has 134 instructions of the ALUs, two cycles each, for 2,176 B: 7.5 TB/s of an H200 at 1.755 GHz.
// Items of block FP8 are short, 32 KB of Qwen3.6's second GEMM.
#pragma once

#include "stream_weights.cuh"
#include "sync/mbarrier.cuh"

namespace stream {

struct StreamGemm {
  const bf16* x;                   // rows apart by any multiple of 16 bytes
  const int* rows;                 // row of x of each position, or null: the position itself
  long long matrix_bytes;          // from an expert's matrix to the next one's
  portable::QuantizedArgs matrix;  // of expert 0
};

// By value, as ops/cuda/moe/stream_experts.py fills it.
struct StreamArgs {
  StreamGemm gemms[2];    // of one format
  const int4* tiles;      // [tile_count]: expert, first position, last + 1
  const int* tile_count;  // [1]
  unsigned* progress;     // [tiles]: warps that have stored their rows of both GEMMs, zero before and after
  int stages;

  // Warps that store a tile's rows.
  __device__ __forceinline__ unsigned warps(int gemm) const { return gemms[gemm].matrix.gemm.rows / 16; }
};

constexpr int kConsumers = 4, kThreads = (kConsumers + 2) * 32, kTokens = 8, kMaxStages = 16, kMaxBlocksPerSm = 4;
constexpr uint32_t kBarrierBytes = 2 * 8 * kMaxStages;

struct Item {
  int gemm, tile, row_tile;
  int expert, first, end;  // positions
};

// The items of this block; a tile's record is loaded an item ahead.
class Items {
 public:
  __device__ __forceinline__ explicit Items(const StreamArgs& args) : args_(args), index_(blockIdx.x) {
    tiles_ = *args.tile_count;
    look_up();
  }
  __device__ __forceinline__ bool next(Item& item) {
    if (ahead_.gemm == 2) return false;
    item = ahead_;
    index_ += gridDim.x;
    look_up();
    return true;
  }

 private:
  __device__ __forceinline__ void look_up() {
    for (;; ahead_.gemm++) {
      if (ahead_.gemm == 2) return;
      const int row_tiles = args_.gemms[ahead_.gemm].matrix.gemm.rows / kItemRows;
      if (index_ < tiles_ * row_tiles) {
        ahead_.tile = index_ / row_tiles, ahead_.row_tile = index_ % row_tiles;
        break;
      }
      index_ -= tiles_ * row_tiles;
    }
    const int4 tile = args_.tiles[ahead_.tile];
    ahead_.expert = tile.x, ahead_.first = tile.y, ahead_.end = tile.z;
  }

  const StreamArgs& args_;
  int index_, tiles_;
  Item ahead_ = {};
};

struct Tile {
  static constexpr int kWarpTokens = kTokens, kWarpsAcross = 1, kWarpRows = 16, kM = 1, kN = 1;
};

// A stage: a tile of weights, its block scales, its tokens.
template <class Weights>
struct Ring {
  static constexpr int kTokenBytes = Weights::kColumns * 2 + 16;  // of a token: no bank conflicts
  uint32_t data, barriers;
  int weight_bytes, token_at, stage_bytes, stages;
  int stage = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ Ring(const StreamArgs& args, uint32_t shared)
      : data(shared + kBarrierBytes), barriers(shared), stages(args.stages) {
    weight_bytes = Weights::bytes(args.gemms[0].matrix);
    token_at = weight_bytes + (Weights::kHasBlockScales ? kScaleBytes : 0);
    stage_bytes = token_at + kTokens * kTokenBytes;
  }
  __device__ __forceinline__ uint32_t full() const { return barriers + stage * 8; }
  __device__ __forceinline__ uint32_t empty() const { return barriers + (kMaxStages + stage) * 8; }
  __device__ __forceinline__ int at() const { return stage * stage_bytes; }
  __device__ __forceinline__ void advance() {
    if (++stage == stages) stage = 0, parity ^= 1;
  }
};

// One lane brings the weights.
template <class Weights>
__device__ __forceinline__ void stream_weights(const StreamArgs& args, Ring<Weights> ring) {
  Items items(args);
#pragma unroll 1
  for (Item item; items.next(item);) {
    const StreamGemm& gemm = args.gemms[item.gemm];
    const int inputs = gemm.matrix.gemm.inputs, tiles = (inputs + Weights::kColumns - 1) / Weights::kColumns;
    const unsigned char* matrix = gemm.matrix.gemm.weight + item.expert * gemm.matrix_bytes;
    const long long first = static_cast<long long>(item.row_tile) * tiles;
    const unsigned char *from = matrix + first * ring.weight_bytes,
                        *scales = matrix + gemm.matrix.block_scales + first * kScaleBytes;
#pragma unroll 1
    for (int left = inputs; left > 0; left -= Weights::kColumns) {
      const uint32_t full = ring.full(), to = ring.data + ring.at();
      mbarrier_wait(ring.empty(), ring.parity ^ 1);
      Weights::load(to, from, scales, left / portable::kChunk, ring.weight_bytes, full);
      from += ring.weight_bytes, scales += kScaleBytes;
      ring.advance();
    }
  }
}

// Wait until all rows of the first GEMM's tile are stored.
__device__ __forceinline__ void wait_for_tile(const StreamArgs& args, int tile) {
  asm volatile(
      "{\n.reg .pred done;\n.reg .u32 stored;\n"
      "AGAIN:\nld.acquire.gpu.global.u32 stored, [%0];\n"
      "setp.ge.u32 done, stored, %1;\n@!done bra AGAIN;\n}" ::"l"(args.progress + tile),
      "r"(args.warps(0))
      : "memory");
  fence_async();
}

// A warp brings the tokens, a lane each. Of those that are missing of eight the sums are not stored.
template <class Weights>
__device__ __forceinline__ void stream_tokens(const StreamArgs& args, Ring<Weights> ring) {
  const int lane = threadIdx.x % 32;
  const uint32_t own = ring.data + ring.token_at + lane * ring.kTokenBytes;
  Items items(args);
#pragma unroll 1
  for (Item item; items.next(item);) {
    const StreamGemm& gemm = args.gemms[item.gemm];
    const int position = item.first + lane, inputs = gemm.matrix.gemm.inputs;
    const bool has = position < item.end;
    const bf16* from = gemm.x;
    if (has) from += (gemm.rows ? gemm.rows[position] : position) * gemm.matrix.gemm.x_stride;
    if (item.gemm > 0) wait_for_tile(args, item.tile);
    __syncwarp();  // all lanes have seen the tile's counter, which its last item sets back
#pragma unroll 1
    for (int column = 0; column < inputs; column += Weights::kColumns) {
      const uint32_t full = ring.full(), bytes = min(Weights::kColumns, inputs - column) * 2;
      mbarrier_wait(ring.empty(), ring.parity ^ 1);
      __syncwarp();  // and the stage's parity, which changes twice before it is theirs again
      if (lane == 0) mbarrier_arrive_expect(full, (item.end - item.first) * bytes);
      if (has) bulk_load(own + ring.at(), from + column, bytes, full, kEvictNormal);
      ring.advance();
    }
  }
}

// Count a warp's rows of an item as stored; the tile's last makes the count zero. Other blocks read the first GEMM's
// rows, behind a proxy fence of theirs; the second's have no reader here, and need no fence.
__device__ __forceinline__ void report(const StreamArgs& args, const Item& item) {
  unsigned* counter = args.progress + item.tile;
  const unsigned last = args.warps(0) + args.warps(1) - 1;
  __syncwarp();
  if (threadIdx.x % 32) return;
  if (item.gemm == 0) {
    asm volatile("red.release.gpu.global.inc.u32 [%0], %1;" ::"l"(counter), "r"(last) : "memory");
  } else {
    asm volatile("red.relaxed.gpu.global.inc.u32 [%0], %1;" ::"l"(counter), "r"(last) : "memory");
  }
}

template <class Weights>
__device__ __forceinline__ void multiply_items(const StreamArgs& args, Ring<Weights> ring, const unsigned char* data) {
  const int lane = threadIdx.x % 32;
  const uint32_t tokens = ring.data + ring.token_at + lane % 8 * ring.kTokenBytes + lane / 8 * 16;
  Items items(args);
#pragma unroll 1
  for (Item item; items.next(item);) {
    const StreamGemm& gemm = args.gemms[item.gemm];
    portable::GemmArgs own = gemm.matrix.gemm;
    const unsigned char* matrix = own.weight + item.expert * gemm.matrix_bytes;
    if (own.bias) own.bias += static_cast<long long>(item.expert) * own.rows;
    portable::TileOutput<Tile> output(own, {0, item.first, item.end});
    output.warp_row += item.row_tile * kItemRows;
    portable::RowTerms terms[1];
    const long long scales = gemm.matrix.row_scales;
    output.load_terms(terms, scales ? reinterpret_cast<const float*>(matrix + scales) : nullptr);
    float sums[1][1][4] = {};
#pragma unroll 1
    for (int left = own.inputs; left > 0; left -= Weights::kColumns) {
      mbarrier_wait(ring.full(), ring.parity);
      Weights::multiply(sums, data + ring.at(), left / portable::kChunk, gemm.matrix, tokens + ring.at());
      finish_shared_loads();
      if (lane == 0) mbarrier_arrive(ring.empty());
      ring.advance();
    }
    output.store_as(static_cast<portable::Store>(gemm.matrix.store), sums, terms);
    report(args, item);
  }
}

template <class Weights>
__device__ __forceinline__ void stream_experts(const StreamArgs& args) {
  extern __shared__ __align__(128) unsigned char shared[];
  pdl_launch_dependents();
  Ring<Weights> ring(args, shared_address(shared));
  if (threadIdx.x == 0) {
    for (int i = 0; i < args.stages; i++) {
      mbarrier_init(ring.barriers + i * 8, 2);  // weights, tokens
      mbarrier_init(ring.barriers + (kMaxStages + i) * 8, kConsumers);
    }
    mbarrier_init_fence();
  }
  __syncthreads();
  pdl_wait();  // all read the list of tiles
  const int warp = threadIdx.x / 32;
  if (warp < kConsumers) {
    multiply_items(args, ring, shared + kBarrierBytes);
  } else if (warp > kConsumers) {
    stream_tokens(args, ring);
  } else if (threadIdx.x % 32 == 0) {
    stream_weights(args, ring);
  }
}

}  // namespace stream

#define STREAM_EXPERTS(name, weights)                                                     \
  extern "C" __global__ void __launch_bounds__(stream::kThreads, stream::kMaxBlocksPerSm) \
      name(const __grid_constant__ stream::StreamArgs args) {                             \
    stream::stream_experts<stream::weights>(args);                                        \
  }
