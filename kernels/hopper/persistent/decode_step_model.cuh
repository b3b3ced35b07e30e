// decode_step_model.cuh: the model that decode_step.cu is compiled for, what the host passes it, and its shared memory.
//
// The shape comes from a manifest as -D options (docs/decode-step.md); everything else is known when it runs.
#pragma once

#include "math/bf16.cuh"

#if !defined(WISP_HIDDEN) || !defined(WISP_MLP) || !defined(WISP_HEADS) || !defined(WISP_KV_HEADS) || \
    !defined(WISP_HEAD_SIZE)
#error "decode_step.cu is compiled for one model: [model] of a manifest says which (docs/decode-step.md)"
#endif
#ifndef WISP_ROWS_BY_HEADS  // Q, K and V lie in the order heads_<Dh>
#define WISP_ROWS_BY_HEADS 0
#endif
#ifndef WISP_QK_NORM
#define WISP_QK_NORM 0
#endif
#ifndef WISP_QKV_BIAS
#define WISP_QKV_BIAS 0
#endif
#ifndef WISP_OUTPUT_BIAS
#define WISP_OUTPUT_BIAS 0
#endif
#ifndef WISP_MLP_BIAS
#define WISP_MLP_BIAS 0
#endif

constexpr int kHidden = WISP_HIDDEN, kMlp = WISP_MLP;
constexpr int kHeads = WISP_HEADS, kKvHeads = WISP_KV_HEADS, kHeadSize = WISP_HEAD_SIZE, kGroup = kHeads / kKvHeads;
constexpr int kQueryRows = kHeads * kHeadSize, kQkvRows = kQueryRows + 2 * kKvHeads * kHeadSize;
constexpr bool kLiesByHeads = WISP_ROWS_BY_HEADS, kHasQkNorm = WISP_QK_NORM;
constexpr bool kHasQkvBias = WISP_QKV_BIAS, kHasOutputBias = WISP_OUTPUT_BIAS, kHasMlpBias = WISP_MLP_BIAS;
static_assert(kHeadSize == 64 || kHeadSize == 128, "a head has 64 or 128 channels");
static_assert(kHeads % kKvHeads == 0 && kGroup <= 8, "at most 8 query heads read a KV head");
static_assert(kHidden % 8 == 0 && kMlp % 8 == 0, "rows of 16 bytes");

constexpr int kWarpgroups = 2, kConsumers = kWarpgroups * 128, kThreads = kConsumers + 128;
constexpr int kMostBlocks = 160;  // thread blocks, one a multiprocessor
constexpr int kPartTiles = 64;    // tiles of 16 tokens that one block attends to at a time
constexpr int kMostParts = 16;    // of a sequence: longer ones have longer parts
constexpr int kSlotBytes = 8192;  // of a ring: 64 rows of 64 columns
constexpr int kSharedBytes = 232448;

// Of one layer, in device memory; ops/cuda/persistent/decode_step.py writes them.
struct Layer {
  const bf16 *qkv, *output, *gate_up, *down;  // packed
  const bf16 *qkv_bias, *output_bias, *gate_up_bias, *down_bias;
  const bf16 *input_norm, *mlp_norm, *q_norm, *k_norm;
};

// What is found when the step gives up waiting, in memory of the host: a trap leaves nothing readable on the device.
struct Report {
  int what, block, warp, phase;
};

struct Args {
  const Layer* layers;
  const bf16 *embeddings, *head, *final_norm;
  float* raw;         // [2, N, kQkvRows]: Q, K and V before norm and rotation, rows in packed order; two layers in turn
  bf16* y;            // [64, D]: the stream times the next norm's weight
  bf16* attended;     // [64, Hq Dh]
  bf16* gated;        // [64, F]
  float* squares;     // [64, kMostBlocks]: each worker's part of the sum of squares of a row of the stream
  float* parts;       // [64 * kMostParts * Hkv, G, Dh] sums of V
  float2* stats;      // [64 * kMostParts * Hkv, G] (maximum, weight)
  unsigned* arrived;  // [64 * Hkv], zero before and after
  float* logits;      // [B, V]
  const int *tokens, *drawn, *positions, *contexts, *tables;
  const int64_t* slots;
  const float *cosines, *sines;  // [S, Dh / 2]
  bf16 *keys, *values;           // [L, P, Hkv, Tb, Dh]
  unsigned* counters;            // [3] phases' arrivals, blocks that have left, who gave up; zero before and after
  Report* report;
  long long* trace;  // [blocks, kMarks], or null
  long long patience_clocks;
  int layer_count, vocab, sequences, drawn_rows, table_width, kv_blocks, block_tokens, known_positions;
  int window;   // tokens that a query sees, its own included
  float scale;  // of the scores, times log2(e)
  float eps;
};
constexpr unsigned kNotYet = 0xffffffffu;  // where a float of `raw` is not written yet: no arithmetic gives this NaN
constexpr int kMarks = 2048;               // of a block in a trace

// Sizes and places in shared memory, for batches of up to N.
template <int N>
struct Room {
  static constexpr int kColumns = N * 128;                           // bytes of 64 columns of the batch
  static constexpr int kStages = N == 8 ? 16 : N == 64 ? 7 : 8;      // of these, a ring
  static constexpr int kCopyWarps = N == 64 ? 2 : 1;                 // that bring them
  static constexpr bool kHasScaleWarp = N < 32;                      // else those who compute gather scales: sooner
  static constexpr int kRoundUnits = N == 8 ? 4 : N == 64 ? 1 : 2;   // units that twins exchange at once
  static constexpr int kCell = N / 4;                                // floats that a thread sends its twin of a unit
  static constexpr int kRoundBytes = kRoundUnits * 128 * kCell * 4;  // of a warpgroup
  static constexpr int kJointGroups = N / 8 < 4 ? N / 8 : 4;         // groups of 8 tokens that four add at once
  static constexpr int kPartBytes = 128 * kJointGroups * 4;          // that a warpgroup gets from each other one
  static constexpr int kBufferBytes = kRoundBytes > 3 * kPartBytes ? kRoundBytes : 3 * kPartBytes;
  static constexpr int kExchangeBytes = (kWarpgroups * 2 * kBufferBytes + 1023) / 1024 * 1024;  // two in turn
  static constexpr int kJoinBytes = 8 * kGroup * ((kHeadSize + 4) * 4 + 8);
  static constexpr int kHeadsBytes = 2 * (kGroup + 2) * (kHeadSize + 8) * 2;  // q, k and v of an item, and of the next
  static constexpr int kAttentionBytes = (kJoinBytes + kHeadsBytes + 1023) / 1024 * 1024;
  static constexpr int kStreamBytes = kStages * kColumns + kExchangeBytes;
  static constexpr int kRegionBytes = kStreamBytes > kAttentionBytes ? kStreamBytes : kAttentionBytes;
  static constexpr int kSmallBytes = N <= 16 ? 2048 : N == 32 ? 3072 : 4096;
  static constexpr int kSlots = (kSharedBytes - kSmallBytes - kRegionBytes) / (kWarpgroups * kSlotBytes);  // of a ring
  // Places: the two rings, the region, the small things.
  static constexpr int kRegion = kWarpgroups * kSlots * kSlotBytes;
  static constexpr int kExchange = kRegion + kStages * kColumns;
  static constexpr int kSmall = kRegion + kRegionBytes;
  static constexpr int kTotal = kSmall + kSmallBytes;
};

template <int N>
struct Small {
  uint64_t ring_full[kWarpgroups][Room<N>::kSlots], ring_empty[kWarpgroups][Room<N>::kSlots];
  uint64_t columns_full[Room<N>::kStages], columns_empty[Room<N>::kStages];
  uint64_t exchanged[kWarpgroups][2], joined[kWarpgroups][2];
  uint64_t planned, scaled;
  unsigned passed;  // phases whose barrier this block has passed
  int is_last;      // the block's part of a sequence is the last to arrive
  int contexts[N], parts_before[N + 1];
  float scales[N];  // 1 / rms of each row of the stream
  float squares[kWarpgroups][4][N];
};

constexpr int kSliceRows = 16, kUnitSlices = 4, kSliceBytes = kSliceRows * 128;  // of a block of 64 columns

// A product Y = X W^T: rows in slices of 16, four slices a unit, up to kUnits units side by side; K in blocks of 64
// columns, half of them for each block of a cluster. With kSplitsK the four warpgroups of a cluster have the same rows,
// and a block's two take its blocks of K in turn; else each has rows of its own, and its twin in the other block the
// same.
template <int kRowCount, int kInputCount, int kUnitCount, bool kIsSplit>
struct Product {
  static constexpr int kRows = kRowCount, kInputs = kInputCount;
  static constexpr int kSlices = (kRows + kSliceRows - 1) / kSliceRows, kBlocks = (kInputs + 63) / 64;
  static constexpr int kUnits = kUnitCount;
  static constexpr bool kSplitsK = kIsSplit;
};
using QkvProduct = Product<kQkvRows, kHidden, 2, true>;
using OutputProduct = Product<kHidden, kQueryRows, kHidden <= 4096 ? 1 : 2, true>;
using GateUpProduct = Product<2 * kMlp, kHidden, 4, false>;
using DownProduct = Product<kHidden, kMlp, OutputProduct::kUnits, true>;
using HeadProduct = Product<0, kHidden, 4, false>;  // as many rows as the vocabulary

template <class P>
__device__ __forceinline__ int slices_of(const Args& args) {
  return P::kRows > 0 ? P::kSlices : (args.vocab + kSliceRows - 1) / kSliceRows;
}

// The slices of a product that a warpgroup has, with its twin or with all four of its cluster.
struct Share {
  int first, count;

  __device__ __forceinline__ Share(int slices, int worker, int workers) {
    first = slices * worker / workers;
    count = slices * (worker + 1) / workers - first;
  }
};
template <class P>
__device__ __forceinline__ Share share_of(const Args& args, int warpgroup) {
  const int cluster = blockIdx.x / 2, clusters = gridDim.x / 2, slices = slices_of<P>(args);
  return P::kSplitsK ? Share(slices, cluster, clusters) : Share(slices, 2 * cluster + warpgroup, 2 * clusters);
}

// How often a warpgroup with most slices goes over K.
template <class P>
__device__ __forceinline__ int passes_of(const Args& args) {
  const int workers = P::kSplitsK ? gridDim.x / 2 : gridDim.x, most = (slices_of<P>(args) + workers - 1) / workers;
  return P::kSplitsK ? 1 : (most + P::kUnits * kUnitSlices - 1) / (P::kUnits * kUnitSlices);
}

// Half of K: blocks [begin, end). Where two warpgroups take them in turn there are as many for each: past `last` come
// columns of zeros.
template <class P>
struct Half {
  int begin, end, last;
  __device__ __forceinline__ explicit Half(int rank) {
    constexpr int kFirst = (P::kBlocks + 1) / 2;
    begin = rank ? kFirst : 0, last = (rank ? P::kBlocks : kFirst) - 1;
    end = P::kSplitsK ? begin + (last - begin + 2) / 2 * 2 : last + 1;
  }
};
