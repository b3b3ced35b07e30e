// model.cuh: the sizes and switches that the kernel is compiled for, and the arguments that the host passes.
//
// The shape comes from a manifest as -D options (docs/decode-step.md); everything else is known at run time.
#pragma once

#include "math/bf16.cuh"

#if !defined(WISP_HIDDEN) || !defined(WISP_MLP) || !defined(WISP_HEADS) || !defined(WISP_KV_HEADS) || \
    !defined(WISP_HEAD_SIZE)
#error \
    "the persistent decode kernel is compiled for one model: [model] of a manifest has its sizes (docs/decode-step.md)"
#endif
#ifndef WISP_ROWS_BY_HEADS  // Q, K and V are in the order heads_<Dh>
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
#ifndef WISP_EXPERTS  // of each layer, each with an MLP of WISP_MLP; 0: layers are dense
#define WISP_EXPERTS 0
#endif
#ifndef WISP_CHOSEN_EXPERTS  // of a token
#define WISP_CHOSEN_EXPERTS 1
#endif
#ifndef WISP_NORMALIZED_EXPERTS  // weights are the softmax over the chosen logits, not over all
#define WISP_NORMALIZED_EXPERTS 0
#endif

constexpr int kHidden = WISP_HIDDEN, kMlp = WISP_MLP;
constexpr int kHeads = WISP_HEADS, kKvHeads = WISP_KV_HEADS, kHeadSize = WISP_HEAD_SIZE, kGroup = kHeads / kKvHeads;
constexpr int kQueryRows = kHeads * kHeadSize, kQkvRows = kQueryRows + 2 * kKvHeads * kHeadSize;
constexpr bool kOrderedByHeads = WISP_ROWS_BY_HEADS, kHasQkNorm = WISP_QK_NORM;
constexpr bool kHasQkvBias = WISP_QKV_BIAS, kHasOutputBias = WISP_OUTPUT_BIAS, kHasMlpBias = WISP_MLP_BIAS;
constexpr int kExperts = WISP_EXPERTS, kChosenExperts = WISP_CHOSEN_EXPERTS;
constexpr bool kHasExperts = kExperts > 0, kNormalizesExperts = WISP_NORMALIZED_EXPERTS;
static_assert(kHeadSize == 64 || kHeadSize == 128, "a head has 64 or 128 channels");
static_assert(kHeads % kKvHeads == 0 && kGroup <= 8, "at most 8 query heads read a KV head");
static_assert(kHidden % 8 == 0 && kMlp % 8 == 0, "rows of 16 bytes");

constexpr int kWarpgroups = 2, kComputeThreads = kWarpgroups * 128, kThreads = kComputeThreads + 128;
constexpr int kMaxBlocks = 160;    // thread blocks, one per SM
constexpr int kMaxSequences = 64;  // of a step
constexpr int kMaxSplits = 16;     // of a sequence's keys and values
constexpr int kSharedBytes = 232448;
constexpr int kResidualMBlocks = kHidden <= 4096 ? 1 : 2;  // 64-row blocks of the residual that a cluster has

// The weights of one layer, in device memory; ops/cuda/persistent/ writes the table.
struct LayerWeights {
  const void *qkv, *output, *gate_up, *down;  // packed, in the layer's format
  const bf16 *qkv_bias, *output_bias, *gate_up_bias, *down_bias;
  const bf16 *input_norm, *mlp_norm, *q_norm, *k_norm;
  float k_scale, v_scale;  // of a quantized cache's layer
  const bf16* router;      // [E, D]; gate_up and down are then the first expert's
};

// What a wait that timed out was for, in memory of the host: a trap leaves nothing readable on the device.
struct HangReport {
  int reason, block, warp, phase;
};

struct Args {
  const LayerWeights* layers;
  const bf16* embeddings;
  const void* head;  // packed
  const bf16* final_norm;
  float* pre_rope_qkv;  // [2, N, kQkvRows]: Q, K and V before norm and RoPE, rows permuted as the weights; even and odd
                        // layers
  uint16_t* normed;     // [64, D]: the residual times the next norm's weight, bf16 or f16 as the next GEMM reads it;
                        // of f16 times the row's unit
  uint16_t* attended;   // [64, Hq Dh], as normed
  uint16_t* gated;      // [64, F], as normed; of f16 times kGatedUnit. Of experts a row for each sequence and expert
  float* square_sums;   // [64, kMaxBlocks]: each warpgroup pair's part of the sum of squares of a residual row
  float* partials;      // [64 * kMaxSplits * Hkv, G, Dh] partial sums of V
  float2* partial_stats;  // [64 * kMaxSplits * Hkv, G] (maximum, weight)
  unsigned* splits_done;  // [64 * Hkv], zero before and after
  float* logits;          // [B, V]
  const int *tokens, *sampled, *positions, *contexts, *tables;
  const int64_t* slots;
  const float *cosines, *sines;  // [S, Dh / 2]
  void *keys, *values;           // [L, P, Hkv, Tb, Dh], in the cache's format
  unsigned* counters;  // [3] timeouts, arrivals at the grid's barrier, blocks that have left; zero before and after
  HangReport* hang_report;
  long long* trace;                   // [blocks, kMaxMarks], or null
  float* router_logits;               // [2, N, E]: before the norm's scale, as pre_rope_qkv; even and odd layers
  unsigned long long* expert_counts;  // [L, 2, E]: sequences that chose each, steps that read it; or null
  long long timeout_clocks;
  long long gate_up_stride, down_stride;  // bytes from an expert's packed matrix to the next one's
  int layer_count, vocab, sequences, sampled_rows, table_width, kv_blocks, block_tokens, known_positions;
  int window;           // tokens that a query sees, its own included
  int parallel_splits;  // splits of a sequence that blocks are there for; 1: its context alone decides
  float scale;          // of the scores, times log2(e)
  float eps;
  float routed_scale;  // factor of the experts' weights
};
constexpr unsigned kNotYet = 0xffffffffu;  // a float that is polled and not written yet: no arithmetic gives this NaN
constexpr int kMaxMarks = 2048;            // of a block in a trace

__device__ __forceinline__ float load_row(const bf16* vector, int row, int rows) {
  return row < rows ? __bfloat162float(vector[row]) : 0.f;
}
