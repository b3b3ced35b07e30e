// wide_experts.cuh: the GEMM of a mixture of experts in block FP8 on wgmma; the kernel that
// ../quantized/experts_fp8_block.cu instantiates.
//
//   1. A thread gives out tiles (tile_queue.cuh). Two others fill pipelines: tokens, 64 columns or more a stage, and
//      weights as they are packed, 128 columns of two row tiles a stage, with their block scales.
//   2. A warpgroup multiplies a row tile by a tile's tokens. Each warp turns its slice's E4M3 into bf16, exactly, in A
//      fragments; while the tensor cores multiply 64 columns, it makes those of the next 64.
//   3. Sums are in units of the current block's scale: before a block of 128 columns is added they are multiplied by
//      the last scale over its own, in float32, and at the end by the last scale and the row's.
//   4. Results leave through shared memory (staged_output.cuh).
//
// A tile has up to 256 tokens and is multiplied by as many as it has, in steps of 64: an instruction a step of K.
#pragma once

#include <cuda.h>

#include "../gemm/pipeline_state.cuh"
#include "copy/tma.cuh"
#include "mma/wgmma.cuh"
#include "quantized/bits.cuh"
#include "staged_output.cuh"
#include "sync/pdl.cuh"

constexpr int kBoxBytes = kBoxTokens * 128;
constexpr int kCodeBytes = 8192, kScaleBytes = 32, kSlotBytes = kCodeBytes + 128;  // of a row tile in a stage
constexpr int kTokenStageBytes = kTileTokens * 128, kWeightStageBytes = kRowTiles * kSlotBytes;
constexpr int kExpertThreads = kRowTiles * 128 + 128;
constexpr float kMinScale = 0x1p-64f;  // a block of a smaller one counts as zero; ratios are finite

template <int kStageCount>
struct Pipeline {
  static constexpr int kStages = kStageCount;

  uint32_t data, full, empty;  // shared addresses: stages, and two mbarriers a stage
  PipelineState state;

  __device__ Pipeline(uint32_t data, uint32_t barriers, bool is_producer)
      : data(data), full(barriers), empty(barriers + kStages * 8), state(is_producer) {}

  __device__ static void init(uint32_t barriers) {
    for (int i = 0; i < 2 * kStages; i++) mbarrier_init(barriers + i * 8, i < kStages ? 1 : kConsumerWarps);
  }
  __device__ __forceinline__ void wait_full() const { mbarrier_wait(full + state.stage * 8, state.parity); }
  __device__ __forceinline__ void wait_empty() const { mbarrier_wait(empty + state.stage * 8, state.parity); }
  __device__ __forceinline__ void advance() { state.advance(kStages); }
};
template <bool kGated>
using TokenPipeline = Pipeline<kGated ? 4 : 3>;  // gated results leave room
using WeightPipeline = Pipeline<4>;

__device__ __forceinline__ int boxes_of(const ExpertTile& tile) {
  return (tile.end - tile.first + kBoxTokens - 1) / kBoxTokens;
}

// Halves of a tile of weights, 64 columns, whose tokens are in a stage: more of fewer tokens.
__device__ __forceinline__ int halves_of(int boxes) {
  return kTileTokens / kBoxTokens / boxes;
}

template <class Tokens>
__device__ __forceinline__ void load_positions(const CUtensorMap* map, const ExpertArgs& args, TileQueue queue,
                                               Tokens tokens) {
#pragma unroll 1
  for (ExpertTile tile; queue.next<false>(tile);) {
    const int boxes = boxes_of(tile), halves = halves_of(boxes);
#pragma unroll 1
    for (int half = 0; half < args.column_tiles * 2; half += halves) {
      const int copies = min(halves, args.column_tiles * 2 - half) * boxes;
      const uint32_t full = tokens.full + tokens.state.stage * 8;
      const uint32_t to = tokens.data + tokens.state.stage * kTokenStageBytes;
      tokens.wait_empty();
      mbarrier_arrive_expect(full, copies * kBoxBytes);
      int column = half * 64, box = 0;
#pragma unroll 1
      for (int i = 0; i < copies; i++) {
        tma_load_2d(to + i * kBoxBytes, map, column, tile.first + box * kBoxTokens, full, kEvictNormal);
        if (++box == boxes) box = 0, column += 64;
      }
      tokens.advance();
    }
  }
}

// Past the last row tile a warpgroup multiplies stale memory and stores nothing.
__device__ __forceinline__ void load_codes(const ExpertArgs& args, TileQueue queue, WeightPipeline weights) {
#pragma unroll 1
  for (ExpertTile tile; queue.next<false>(tile);) {
    const int first = tile.row_block * kRowTiles, there = min(kRowTiles, (args.rows + 63) / 64 - first);
    const unsigned char *codes = args.matrix(tile.expert), *scales = codes + args.block_scales;
#pragma unroll 1
    for (int k = 0; k < args.column_tiles; k++) {
      const uint32_t full = weights.full + weights.state.stage * 8;
      const uint32_t to = weights.data + weights.state.stage * kWeightStageBytes;
      weights.wait_empty();
      mbarrier_arrive_expect(full, there * (kCodeBytes + kScaleBytes));
#pragma unroll 1
      for (int i = 0; i < there; i++) {
        const size_t at = static_cast<size_t>(first + i) * args.column_tiles + k;
        bulk_load(to + i * kSlotBytes, codes + at * kCodeBytes, kCodeBytes, full, kEvictNormal);
        bulk_load(to + i * kSlotBytes + kCodeBytes, scales + at * kScaleBytes, kScaleBytes, full, kEvictNormal);
      }
      weights.advance();
    }
  }
}

// What a thread's sums are counted in: the scales of its upper and lower rows.
struct Units {
  float scales[2] = {1.f, 1.f};
  uint32_t widen[2];  // 2^120 in both halves, or zero for a block that counts as zero

  // Take a block's scales; return what sums in the units before are multiplied by.
  __device__ __forceinline__ float2 change(uint32_t from) {
    float next[2], factors[2];
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(next[0]), "=f"(next[1]) : "r"(from) : "memory");
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const bool is_zero = fabsf(next[i]) < kMinScale;  // a NaN is not
      widen[i] = is_zero ? 0u : 0x7B807B80u;
      factors[i] = is_zero ? 1.f : __fdividef(scales[i], next[i]);
      scales[i] = is_zero ? scales[i] : next[i];
    }
    return make_float2(factors[0], factors[1]);
  }
};

// A fragments of 64 columns, half `half` of a warp's slice of codes: made here, not past the next wait.
__device__ __forceinline__ void make_fragments(uint32_t (&a)[4][4], uint32_t slice, int half, const Units& units) {
#pragma unroll
  for (int quarter = 0; quarter < 2; quarter++) {
    const uint4 q = load_shared16(slice + (half * 2 + quarter) * 512 + threadIdx.x % 32 * 16);
    const uint32_t words[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
    for (int i = 0; i < 8; i++) {  // two steps of left and right columns, upper and lower rows
      const uint32_t bits = permute_bytes(words[i / 2], 0, i % 2 ? 0xB3A2 : 0x9180) << 4 & 0x87F087F0;
      a[quarter * 2 + i / 4][i % 4] = fma_bf16x2(bits, units.widen[i % 2], 0x80008000);
    }
  }
#pragma unroll
  for (int i = 0; i < 16; i++) asm volatile("" : "+r"(a[i / 4][i % 4])::"memory");
}

// Multiply 64 columns by the first kTokens tokens; at most one other group of wgmmas stays in flight.
template <int kTokens>
__device__ __forceinline__ void multiply_tokens(float (&all)[kTileTokens / 2], const uint32_t (&a)[4][4],
                                                uint32_t box) {
  float (&sums)[kTokens / 2] = reinterpret_cast<float (&)[kTokens / 2]>(all);
  wgmma_registers(sums);
  wgmma_fence();
#pragma unroll
  for (int i = 0; i < 4; i++) wgmma_rs<kTokens>(sums, a[i], wgmma_descriptor(box + i * 32));
  wgmma_commit();
  wgmma_wait<1>();
}

__device__ __forceinline__ void multiply_boxes(float (&sums)[kTileTokens / 2], const uint32_t (&a)[4][4], uint32_t box,
                                               int boxes) {
  switch (boxes) {
    case 1:
      multiply_tokens<64>(sums, a, box);
      break;
    case 2:
      multiply_tokens<128>(sums, a, box);
      break;
    case 3:
      multiply_tokens<192>(sums, a, box);
      break;
    default:
      multiply_tokens<256>(sums, a, box);
  }
}

// Multiply sums of boxes [kFirst, kEnd) of tokens by a factor of their row.
template <int kFirst, int kEnd>
__device__ __forceinline__ void scale_rows(float (&sums)[kTileTokens / 2], float2 factors) {
#pragma unroll
  for (int i = kFirst * kBoxTokens / 2; i < kEnd * kBoxTokens / 2; i++) sums[i] *= i / 2 % 2 ? factors.y : factors.x;
}

// Multiply a row tile by the tile's tokens: sums in `units`.
template <class Tokens>
__device__ __forceinline__ void multiply(float (&sums)[kTileTokens / 2], Units& units, int boxes, int column_tiles,
                                         Tokens& tokens, WeightPipeline& weights, int warpgroup) {
  const int warp = threadIdx.x / 32 % 4, halves = halves_of(boxes);
  const bool releases = threadIdx.x % 32 == 0;
  uint32_t left[4][4], right[4][4], slot = 0, offset = 0;  // of the next half in its stage
  float2 factors = make_float2(1.f, 1.f);
  // Multiply; return the barrier that is due when it is done, or 0 while the stage has more.
  auto multiply_half = [&](uint32_t (&a)[4][4], bool ends_stage) {
    tokens.wait_full();
    const uint32_t box = tokens.data + tokens.state.stage * kTokenStageBytes + offset;
    const uint32_t barrier = ends_stage ? tokens.empty + tokens.state.stage * 8 : 0;
    multiply_boxes(sums, a, box, boxes);
    offset = ends_stage ? 0 : offset + boxes * kBoxBytes;
    if (ends_stage) tokens.advance();
    return barrier;
  };
  auto begin_tile = [&] {
    weights.wait_full();
    slot = weights.data + weights.state.stage * kWeightStageBytes + warpgroup * kSlotBytes;
    factors = units.change(slot + kCodeBytes + warp * 8);
    make_fragments(left, slot + warp * 2048, 0, units);
  };
  uint32_t before = 0;
#pragma unroll
  for (int i = 0; i < kTileTokens / 2; i++) sums[i] = 0.f;
  begin_tile();
#pragma unroll 1
  for (int k = 0; k < column_tiles; k++) {
    wgmma_wait<0>();
    if (releases && before) mbarrier_arrive(before);
    wgmma_registers(sums);
    scale_rows<0, 2>(sums, factors);
    if (boxes > 2) scale_rows<2, 4>(sums, factors);
    const uint32_t first = multiply_half(left, halves == 1);
    make_fragments(right, slot + warp * 2048, 1, units);
    __syncwarp();
    if (releases) mbarrier_arrive_after(weights.empty + weights.state.stage * 8, right[3][0]);
    weights.advance();
    before = multiply_half(right, halves < 4 || k % 2 || k + 1 == column_tiles);
    if (releases && first) mbarrier_arrive(first);
    if (k + 1 < column_tiles) begin_tile();
  }
  wgmma_wait<0>();
  wgmma_registers(sums);
  if (releases) mbarrier_arrive(before);
}

// Load the scales of a thread's rows of a row tile, upper and lower, and their biases.
__device__ __forceinline__ void load_rows(float (&scales)[2], float (&bias)[2], const ExpertArgs& args,
                                          const ExpertTile& tile, int warpgroup) {
  const float* of_rows = reinterpret_cast<const float*>(args.matrix(tile.expert) + args.row_scales);
  const int first = (tile.row_block * kRowTiles + warpgroup) * 64 + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const int row = first + 8 * i;
    scales[i] = bias[i] = 0.f;
    if (row >= args.rows) continue;
    scales[i] = of_rows[row];
    if (args.bias != nullptr) bias[i] = __bfloat162float(args.bias[static_cast<size_t>(tile.expert) * args.rows + row]);
  }
}

template <bool kGated>
__device__ __forceinline__ void consume_experts(const ExpertArgs& args, TileQueue queue, TokenPipeline<kGated> tokens,
                                                WeightPipeline weights, StagedOutput<kGated> output, int warpgroup) {
  ExpertTile tile;
#pragma unroll 1
  while (queue.next<true>(tile)) {
    float sums[kTileTokens / 2], scales[2], bias[2];
    Units units;
    load_rows(scales, bias, args, tile, warpgroup);
    multiply(sums, units, boxes_of(tile), args.column_tiles, tokens, weights, warpgroup);
    scales[0] *= units.scales[0], scales[1] *= units.scales[1];
    output.stage(sums, boxes_of(tile), scales, bias, warpgroup);
  }
}

template <bool kGated>
__device__ __forceinline__ void expert_linear(const CUtensorMap* map, const ExpertArgs& args) {
  extern __shared__ __align__(1024) unsigned char shared[];
  using Tokens = TokenPipeline<kGated>;
  using Output = StagedOutput<kGated>;
  const uint32_t tokens = shared_address(shared), weights = tokens + Tokens::kStages * kTokenStageBytes;
  const uint32_t results = weights + WeightPipeline::kStages * kWeightStageBytes, barriers = results + Output::kBytes;
  const uint32_t weight_barriers = barriers + Tokens::kStages * 16,
                 more = weight_barriers + WeightPipeline::kStages * 16;
  TileQueue queue(more);
  Output output(results, more + TileQueue::kBytes);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  pdl_launch_dependents();
  if (threadIdx.x == 0) {
    tma_prefetch_map(map);
    Tokens::init(barriers);
    WeightPipeline::init(weight_barriers);
    queue.init(kConsumerWarps + 3);
    output.init();
    mbarrier_init_fence();
  }
  __syncthreads();
  pdl_wait();  // the list of tiles
  if (warp >= kConsumerWarps) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    const int role = warp - kConsumerWarps;
    if (role == 0 && lane == 0) load_positions(map, args, queue, Tokens(tokens, barriers, true));
    if (role == 1 && lane == 0) load_codes(args, queue, WeightPipeline(weights, weight_barriers, true));
    if (role == 2 && lane == 0) queue.fill(args);
    if (role == 3) {
      for (ExpertTile tile; queue.next<true>(tile);) output.store(args, tile);
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    consume_experts<kGated>(args, queue, Tokens(tokens, barriers, false),
                            WeightPipeline(weights, weight_barriers, false), output, warp / 4);
  }
}
