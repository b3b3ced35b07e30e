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
#ifndef WISP_SHARED_EXPERT  // one more expert, of all tokens, its weight the sigmoid of a gate's logit
#define WISP_SHARED_EXPERT 0
#endif
#ifndef WISP_ROUTER_BIAS  // of the logits, before experts are chosen
#define WISP_ROUTER_BIAS 0
#endif
#ifndef WISP_CLAMPED_SWIGLU  // of experts: the function between their projections is gpt-oss's
#define WISP_CLAMPED_SWIGLU 0
#endif
#ifndef WISP_SINKS  // one more logit of each head in the softmax, without a value
#define WISP_SINKS 0
#endif
#ifndef WISP_WINDOW_PERIOD  // the last layer of each so many sees all tokens, the others a window; 1: all see alike
#define WISP_WINDOW_PERIOD 1
#endif
#ifndef WISP_ROTARY_SIZE  // channels of a head that RoPE is applied to
#define WISP_ROTARY_SIZE WISP_HEAD_SIZE
#endif
#ifndef WISP_OUTPUT_GATE  // of each channel of the heads' results; its rows are below those of V
#define WISP_OUTPUT_GATE 0
#endif
#ifndef WISP_ZERO_CENTRED  // the factor of a norm is one more than its weight
#define WISP_ZERO_CENTRED 0
#endif
#ifndef WISP_ATTENTION_PERIOD  // the last layer of each so many has attention, the others Gated DeltaNet
#define WISP_ATTENTION_PERIOD 1
#endif
#ifndef WISP_DELTA_KEY_HEADS
#define WISP_DELTA_KEY_HEADS 1
#endif
#ifndef WISP_DELTA_VALUE_HEADS
#define WISP_DELTA_VALUE_HEADS 1
#endif

constexpr int kHidden = WISP_HIDDEN, kMlp = WISP_MLP;
constexpr int kHeads = WISP_HEADS, kKvHeads = WISP_KV_HEADS, kHeadSize = WISP_HEAD_SIZE, kGroup = kHeads / kKvHeads;
constexpr bool kHasOutputGate = WISP_OUTPUT_GATE;
constexpr int kQueryRows = kHeads * kHeadSize, kGateFirst = kQueryRows + 2 * kKvHeads * kHeadSize;
constexpr int kQkvRows = kGateFirst + kHasOutputGate * kQueryRows, kRotarySize = WISP_ROTARY_SIZE;
constexpr bool kOrderedByHeads = WISP_ROWS_BY_HEADS, kHasQkNorm = WISP_QK_NORM;
constexpr bool kHasQkvBias = WISP_QKV_BIAS, kHasOutputBias = WISP_OUTPUT_BIAS, kHasMlpBias = WISP_MLP_BIAS;
constexpr int kExperts = WISP_EXPERTS, kChosenExperts = WISP_CHOSEN_EXPERTS;
constexpr bool kHasExperts = kExperts > 0, kNormalizesExperts = WISP_NORMALIZED_EXPERTS;
// With the shared expert, which is the last one: number kExperts.
constexpr bool kHasSharedExpert = WISP_SHARED_EXPERT;
constexpr int kAllExperts = kExperts + kHasSharedExpert, kExpertsOfToken = kChosenExperts + kHasSharedExpert;
constexpr bool kHasRouterBias = WISP_ROUTER_BIAS, kIsClamped = WISP_CLAMPED_SWIGLU, kHasSinks = WISP_SINKS;
constexpr float kNormOffset = WISP_ZERO_CENTRED;
static_assert(kHeadSize == 64 || kHeadSize == 128 || kHeadSize == 256, "a head has 64, 128 or 256 channels");
static_assert(kRotarySize % 64 == 0 && kRotarySize <= kHeadSize, "a warp has both channels of a pair in one lane");
static_assert(!kOrderedByHeads || kRotarySize == kHeadSize, "rows are permuted only where RoPE covers the head");
static_assert(kHeads % kKvHeads == 0 && kGroup <= 8, "at most 8 query heads read a KV head");
static_assert(kHidden % 8 == 0 && kMlp % 8 == 0, "rows of 16 bytes");

// Gated DeltaNet: rows of Q, K and V, which are convolved, then of Z; of b and a in a matrix of their own.
constexpr int kPeriod = WISP_ATTENTION_PERIOD, kDeltaSize = 128, kConvInputs = 4;
constexpr int kDeltaKeyHeads = WISP_DELTA_KEY_HEADS, kDeltaHeads = WISP_DELTA_VALUE_HEADS;
constexpr int kDeltaKeyRows = kDeltaKeyHeads * kDeltaSize, kDeltaRows = kDeltaHeads * kDeltaSize;
constexpr int kConvRows = 2 * kDeltaKeyRows + kDeltaRows, kQkvzRows = kConvRows + kDeltaRows;
constexpr int kBetaFirst = kQkvzRows, kProjectedRows = kQkvzRows + 2 * kDeltaHeads;
static_assert(kPeriod == 1 || kDeltaRows == kQueryRows, "both kinds of layers have one output GEMM");
static_assert(kDeltaHeads % kDeltaKeyHeads == 0, "each key head serves equally many value heads");

// The kind of a layer, and its number among those of its kind.
__device__ __forceinline__ bool is_delta_net(int layer) {
  return kPeriod > 1 && layer % kPeriod != kPeriod - 1;
}
__device__ __forceinline__ int index_of_kind(int layer) {
  if constexpr (kPeriod == 1) return layer;
  return is_delta_net(layer) ? layer - layer / kPeriod : layer / kPeriod;
}

// Layers that see all tokens have keys and values, block tables and slots of their own.
constexpr int kWindowPeriod = WISP_WINDOW_PERIOD;
constexpr bool kHasWindows = kWindowPeriod > 1;
static_assert(!kHasWindows || kPeriod == 1, "layers are Gated DeltaNet, or have windows");
__device__ __forceinline__ bool sees_all(int layer) {
  return kHasWindows && layer % kWindowPeriod == kWindowPeriod - 1;
}
// The number of a layer, counted among those that attend, among those with keys and values in the same arrays.
__device__ __forceinline__ int index_in_cache(int layer) {
  if constexpr (!kHasWindows) return layer;
  return sees_all(layer) ? layer / kWindowPeriod : layer - layer / kWindowPeriod;
}

constexpr int kWarpgroups = 2, kComputeThreads = kWarpgroups * 128, kThreads = kComputeThreads + 128;
constexpr int kMaxBlocks = 160;    // thread blocks, one per SM
constexpr int kMaxSequences = 64;  // of a step
constexpr int kMaxSplits = 16;     // of a sequence's keys and values
constexpr int kSharedBytes = 232448;
constexpr int kResidualMBlocks = kHidden <= 4096 ? 1 : 2;  // 64-row blocks of the residual that a cluster has

// The weights of a Gated DeltaNet beside its projections.
struct DeltaWeights {
  const void* gates;               // packed bf16, [2 Hv, D]: b, then a
  const bf16* conv;                // [kConvRows, kConvInputs], the newest input's last
  const float *decay, *step_bias;  // [Hv]
  const float* norm;               // [kDeltaSize]
};

// The weights of one layer, in device memory; ops/cuda/persistent/ writes the table.
struct LayerWeights {
  const void *qkv, *output, *gate_up, *down;  // packed, in the layer's format; of Gated DeltaNet qkv is Q, K, V and Z
  const bf16 *qkv_bias, *output_bias, *gate_up_bias, *down_bias;
  const bf16 *input_norm, *mlp_norm, *q_norm, *k_norm;
  float k_scale, v_scale;     // of a quantized cache's layer
  const bf16* router;         // [E, D]; gate_up, down and their biases are then the first expert's
  const DeltaWeights* delta;  // of Gated DeltaNet
#if WISP_SHARED_EXPERT
  const bf16* shared_gate;  // [D]
#endif
#if WISP_SINKS
  const float* sinks;  // [Hq]
#endif
#if WISP_ROUTER_BIAS
  const bf16* router_bias;  // [E]
#endif
};

// What a wait that timed out was for, in memory of the host: a trap leaves nothing readable on the device. `seen`:
// arrivals at the grid's barrier until then, if it was that.
struct HangReport {
  int reason, block, phase, seen;
};

struct Args {
  const LayerWeights* layers;
  const bf16* embeddings;
  const void* head;  // packed
  const bf16* final_norm;
  float* pre_rope_qkv;  // [2, N, kQkvRows]: Q, K and V before norm and RoPE, rows permuted as the weights; even and odd
                        // layers
  float* projected;     // [2, N, kProjectedRows]: of Gated DeltaNet, convolved; as pre_rope_qkv
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
  void *keys, *values;           // [L, P, Hkv, Tb, Dh], in the cache's format; L: layers of attention
  const int* state_slots;        // [B], below 0 of padding
  float* states;                 // [slots, L, Hv, Dk, Dv]; L: layers of Gated DeltaNet
  bf16* conv_inputs;             // [slots, L, kConvInputs - 1, kConvRows], the newest last
  unsigned* counters;  // [3] timeouts, arrivals at the grid's barrier, blocks that have left; zero before and after
  HangReport* hang_report;
  long long* trace;                   // [blocks, kMaxMarks], or null
  float* router_logits;               // [2, N, E], with a shared expert its gate's behind: before the norm's scale, as
                                      // pre_rope_qkv; even and odd layers
  unsigned long long* expert_counts;  // [L, 2, E]: sequences that chose each, steps that read it; or null
  long long gate_up_stride, down_stride;  // bytes from an expert's packed matrix to the next one's
  int layer_count, vocab, sequences, sampled_rows, table_width, kv_blocks, block_tokens, known_positions;
  int state_layers;     // of Gated DeltaNet: layer_count may be less than the model's
  int window;           // tokens that a query sees, its own included
  int parallel_splits;  // splits of a sequence that blocks are there for; 1: its context alone decides
  unsigned timeout_clocks;
  unsigned cluster_reciprocal;  // 2^32 / clusters, whole, + 1
  float scale;                  // of the scores, times log2(e)
  float eps;
  float routed_scale;       // factor of the experts' weights
#if WISP_WINDOW_PERIOD > 1  // of layers that see all tokens; tables, slots, keys and values are then the others'
  const int* full_tables;
  const int64_t* full_slots;
  void *full_keys, *full_values;
  int full_table_width, full_kv_blocks;
#endif
};
// a / clusters, for a < 2^32 / clusters: a division by a number of the run takes twenty instructions.
__device__ __forceinline__ int over_clusters(const Args& args, int a) {
  return static_cast<int>(__umulhi(a, args.cluster_reciprocal));
}
constexpr unsigned kNotYet = 0xffffffffu;  // a float that is polled and not written yet: no arithmetic gives this NaN
constexpr int kSeesAll = 1 << 30;          // a window
constexpr int kMaxMarks = 2048;            // of a block in a trace

#if WISP_WINDOW_PERIOD > 1
// What a layer attends to: fields as of Args.
struct CacheView {
  const int* tables;
  const int64_t* slots;
  void *keys, *values;
  int table_width, kv_blocks, window;
};
__device__ __forceinline__ CacheView cache_view(const Args& args, int layer) {
  if (sees_all(layer)) {
    return {args.full_tables,      args.full_slots,     args.full_keys, args.full_values,
            args.full_table_width, args.full_kv_blocks, kSeesAll};
  }
  return {args.tables, args.slots, args.keys, args.values, args.table_width, args.kv_blocks, args.window};
}
#else
using CacheView = Args;
__device__ __forceinline__ const CacheView& cache_view(const Args& args, int layer) {
  return args;
}
#endif

__device__ __forceinline__ float load_row(const bf16* vector, int row, int rows) {
  return row < rows ? __bfloat162float(vector[row]) : 0.f;
}
// As load_row, the factor of a norm.
__device__ __forceinline__ float load_norm(const bf16* vector, int row, int rows) {
  return row < rows ? __bfloat162float(vector[row]) + kNormOffset : 0.f;
}
