// delta_scan.cu: Gated DeltaNet of prompts, chunk after chunk: X = V - diag(read) K S; V' = T diag(beta) X;
// O = diag(query) Q S + scores V'; S <- decay S + K^T diag(write) V', with what delta_chunks.cu computed.
//
//   qkv : [N, 2 Hk Dk + Hv Dv] bf16, convolved, rows apart: q, k, v     out : [N, Hv Dv] bf16
//   matrices : [chunks, Hv] ChunkMatrices     factors : [chunks, Hv] ChunkFactors
//   states : [slots, Hv, Dk, Dv] float32, slots apart; a sequence at position 0 begins with zeros
//   starts : [B + 1], positions : [N], slots : [B] int32; a slot of -1 is left out
//   math : all transposed, so that sums stay in registers: a warp has 16 columns of S, X, V' and O, as rows. Matmuls
//          of bf16 operands with float32 sums; S, X and V' are split in two bf16, T and scores come so; q, k, v are
//          bf16 as they come. So factors have 16 bits, and O is rounded once
//   grid : (ceil(Dv / 16 / warps), Hv, last - first)    block : (32 (warps + 1), 1, 1), the last warp copies
//   shared : stages * (72,464 + 128 (16 warps + 8)) B
//   needs: Dk % 8 == 0, Dv % 8 == 0, both up to 128; `warps` of the entry's name; one or two stages; 16-byte aligned
//          arrays, rows and slots (ops/cuda/recurrent/delta_prefill.py checks). States are read before the kernel ahead
//          has ended: nothing between a step's inputs and this kernel may write them
//   check: tests/gpu/recurrent/test_delta_prefill.py against ops/reference/recurrent.py, states within 1e-4
#include "chunks/delta_chunk.cuh"
#include "chunks/rows.cuh"
#include "chunks/stages.cuh"
#include "delta_gates.cuh"
#include "mma/split_bf16.cuh"
#include "mma/warp_mma.cuh"
#include "sync/pdl.cuh"

constexpr int kRowStride = kMaxSize + 8, kMatrixStride = kChunk + 8;  // ldmatrix meets every bank once

// A chunk in shared memory; behind it V, [64][16 warps + 8].
struct Stage {
  bf16 keys[kChunk][kRowStride], queries[kChunk][kRowStride];
  bf16 solved[2 * kChunk][kMatrixStride], scores[2 * kChunk][kMatrixStride];
  ChunkFactors factors;
};
static_assert(sizeof(Stage) == 72464, "arguments.py has this size");

template <int kWarps>
using WarpStages = Stages<Stage, Fixed<16 * kWarps + 8>>;

__device__ __forceinline__ void copy_matrix(bf16* to, const bf16* from) {
  copy_rows<2 * kChunk>(to, kMatrixStride, from, kChunk, 2 * kChunk, kChunk, kChunk);
}

// The copying warp brings one chunk.
template <int kWarps>
__device__ __forceinline__ void copy_chunk(const WarpStages<kWarps>& stages, Stage& stage, const bf16* qkv,
                                           int64_t token, int tokens, int head, int first_value,
                                           const ChunkMatrices& matrices, const ChunkFactors& factors,
                                           const DeltaShape& shape) {
  const int key_head = shape.key_head(head);
  const bf16 *keys = shape.key(qkv, token, key_head), *queries = shape.query(qkv, token, key_head);
  copy_rows(stage.keys[0], kRowStride, keys, shape.qkv_stride, tokens, shape.key_size, kMaxSize);
  copy_rows(stage.queries[0], kRowStride, queries, shape.qkv_stride, tokens, shape.key_size, kMaxSize);
  copy_matrix(stage.solved[0], matrices.solved[0][0]);
  copy_matrix(stage.scores[0], matrices.scores[0][0]);
  const bf16* values = shape.value(qkv, token, head) + first_value;
  copy_rows(stages.value(stage, 0, 0), stages.stride, values, shape.qkv_stride, tokens, shape.value_size - first_value,
            16 * kWarps);
  for (int i = threadIdx.x % 32; i < static_cast<int>(sizeof(ChunkFactors) / 16); i += 32) {
    const char* from = reinterpret_cast<const char*>(&factors) + 16 * i;
    copy16_async(shared_address(reinterpret_cast<char*>(&stage.factors) + 16 * i), from, true);
  }
  copies_commit();
}

using State = float[kMaxSize / 8][4];  // 16 columns of S, as rows

// Sums of S^T K^T and S^T Q^T.
__device__ __forceinline__ void read_state(const State& s, const Stage& stage, int lane, Rows& of_keys,
                                           Rows& of_queries) {
  const int row = lane / 16 * 8 + lane % 8, column = lane / 8 % 2 * 8;
#pragma unroll
  for (int k = 0; k < kMaxSize / 16; k++) {
    const SplitOperand a(s[2 * k], s[2 * k + 1]);
#pragma unroll
    for (int tile = 0; tile < kChunk / 8; tile += 2) {
      uint32_t keys[4], queries[4];
      load_matrices(keys, shared_address(&stage.keys[tile * 8 + row][k * 16 + column]));
      load_matrices(queries, shared_address(&stage.queries[tile * 8 + row][k * 16 + column]));
      add_product(of_keys, tile, a.high, keys);
      add_product(of_queries, tile, a.high, queries);
      add_product(of_keys, tile, a.low, keys);
      add_product(of_queries, tile, a.low, queries);
    }
  }
}

// x <- v - read x, o <- query o, column by column.
__device__ __forceinline__ void subtract_from_values(Rows& x, Rows& o, const bf16* values, int stride,
                                                     const ChunkFactors& factors, int lane) {
#pragma unroll
  for (int tile = 0; tile < kChunk / 8; tile += 2) {
    uint32_t v[4];
    load_matrices_transposed(
        v, shared_address(values + (tile * 8 + lane / 16 * 8 + lane % 8) * stride + lane / 8 % 2 * 8));
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const int token = (tile + i) * 8 + lane % 4 * 2;
      const float2 read = *reinterpret_cast<const float2*>(&factors.read[token]);
      const float2 query = *reinterpret_cast<const float2*>(&factors.query[token]);
#pragma unroll
      for (int half = 0; half < 2; half++) {
        float* const to = &x[tile + i][2 * half];
        to[0] = fmaf(-read.x, to[0], bf16_low(v[2 * i + half]));
        to[1] = fmaf(-read.y, to[1], bf16_high(v[2 * i + half]));
        o[tile + i][2 * half] *= query.x;
        o[tile + i][2 * half + 1] *= query.y;
      }
    }
  }
}

// sums += a M^T for a lower triangular M, split in two parts.
__device__ __forceinline__ void multiply_lower(Rows& sums, const Rows& a, const bf16 (*matrix)[kMatrixStride],
                                               int lane) {
  const int row = lane / 16 * 8 + lane % 8, column = lane / 8 % 2 * 8;
#pragma unroll
  for (int k = 0; k < kChunk / 16; k++) {
    const SplitOperand split(a[2 * k], a[2 * k + 1]);
#pragma unroll
    for (int tile = 2 * k; tile < kChunk / 8; tile += 2) {
      uint32_t high[4], low[4];
      load_matrices(high, shared_address(&matrix[tile * 8 + row][k * 16 + column]));
      load_matrices(low, shared_address(&matrix[kChunk + tile * 8 + row][k * 16 + column]));
      add_product(sums, tile, split.high, high);
      add_product(sums, tile, split.low, high);
      add_product(sums, tile, split.high, low);
    }
  }
}

// S^T <- decay S^T + (V'^T diag(write)) K.
__device__ __forceinline__ void update_state(State& s, Rows& v, const Stage& stage, int lane) {
  multiply_by(s, stage.factors.decay[0]);
#pragma unroll
  for (int k = 0; k < kChunk / 16; k++) {
#pragma unroll
    for (int i = 2 * k; i < 2 * k + 2; i++) {
      const float2 write = *reinterpret_cast<const float2*>(&stage.factors.write[i * 8 + lane % 4 * 2]);
      v[i][0] *= write.x, v[i][1] *= write.y, v[i][2] *= write.x, v[i][3] *= write.y;
    }
    const SplitOperand a(v[2 * k], v[2 * k + 1]);
#pragma unroll
    for (int tile = 0; tile < kMaxSize / 8; tile += 2) {
      uint32_t b[4];
      load_matrices_transposed(b, shared_address(&stage.keys[k * 16 + lane % 16][tile * 8 + lane / 16 * 8]));
      add_product(s, tile, a.high, b);
      add_product(s, tile, a.low, b);
    }
  }
}

// Apply `visit` to each of a lane's elements of the state, and its index in [Dk, Dv].
template <class Visit>
__device__ __forceinline__ void for_each(State& s, int first_value, int lane, const DeltaShape& shape, Visit visit) {
#pragma unroll
  for (int tile = 0; tile < kMaxSize / 8; tile++) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int key = tile * 8 + lane % 4 * 2 + i % 2, value = first_value + lane / 4 + i / 2 * 8;
      if (key < shape.key_size && value < shape.value_size) visit(s[tile][i], key * shape.value_size + value);
    }
  }
}

template <int kWarps>
constexpr int kThreads = 32 * (kWarps + 1);

template <int kWarps>
__device__ __forceinline__ void scan(const bf16* qkv, const int* starts, const int* positions, const int* slots,
                                     const ChunkMatrices* matrices, const ChunkFactors* factors, float* states,
                                     bf16* out, const DeltaShape& shape, int first, int last, int stage_count) {
  extern __shared__ uint4 memory[];
  pdl_launch_dependents();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int head = blockIdx.y, sequence = first + blockIdx.z;
  const Sequences sequences = {starts, first, last, shape.min_tokens};
  const int chunks = sequences.chunks(sequence), slot = slots[sequence];
  if (chunks == 0 || slot < 0) {
    pdl_wait();
    return;
  }
  const WarpStages<kWarps> stages = {reinterpret_cast<unsigned char*>(memory), stage_count, {}};
  const int begin = starts[sequence], tokens = starts[sequence + 1] - begin, block_value = blockIdx.x * kWarps * 16;
  const int64_t index = static_cast<int64_t>(sequences.chunks_before(sequence)) * shape.value_heads + head;

  if (warp == kWarps) {
    // 1. The last warp copies, as many chunks ahead as there are stages.
    pdl_wait();
    stages.fill(chunks, [&](int chunk) {
      const int64_t at = index + static_cast<int64_t>(chunk) * shape.value_heads;
      copy_chunk<kWarps>(stages, stages.of(chunk), qkv, begin + static_cast<int64_t>(chunk) * kChunk,
                         tokens - chunk * kChunk, head, block_value, matrices[at], factors[at], shape);
    });
    return;
  }

  // 2. The others compute 16 columns each. The old state, while the kernel before still runs.
  State s;
  const int first_value = block_value + warp * 16;
  float* state = states + slot * shape.slot_stride + head * shape.state_size();
  const bool is_first = positions[begin] == 0;
#pragma unroll
  for (int tile = 0; tile < kMaxSize / 8; tile++) {
#pragma unroll
    for (int i = 0; i < 4; i++) s[tile][i] = 0.f;
  }
  if (!is_first) for_each(s, first_value, lane, shape, [&](float& element, int at) { element = state[at]; });
  pdl_wait();
  const int64_t stride = static_cast<int64_t>(shape.value_heads) * shape.value_size;
  bf16* to = out + begin * stride + head * shape.value_size + first_value;

  for (int chunk = 0; chunk < chunks; chunk++) {
    __syncthreads();
    Stage& stage = stages.of(chunk);
    Rows x = {}, o = {}, v = {};
    read_state(s, stage, lane, x, o);
    subtract_from_values(x, o, stages.value(stage, 0, warp * 16), stages.stride, stage.factors, lane);
    multiply_lower(v, x, stage.solved, lane);
    multiply_lower(o, v, stage.scores, lane);
    store_rows(o, to + chunk * kChunk * stride, stride, tokens - chunk * kChunk, shape.value_size - first_value, lane);
    update_state(s, v, stage, lane);
    if (stages.count == 1) __syncthreads();
  }

  // 3. The new state.
  for_each(s, first_value, lane, shape, [&](float& element, int at) { state[at] = element; });
}

#define DELTA_SCAN(warps)                                                                                              \
  extern "C" __global__ void __launch_bounds__(kThreads<warps>) delta_scan_##warps(                                    \
      const bf16* qkv, const int* starts, const int* positions, const int* slots, const ChunkMatrices* matrices,       \
      const ChunkFactors* factors, float* states, bf16* out, DeltaShape shape, int first, int last, int stage_count) { \
    scan<warps>(qkv, starts, positions, slots, matrices, factors, states, out, shape, first, last, stage_count);       \
  }

DELTA_SCAN(2)
DELTA_SCAN(4)
DELTA_SCAN(8)
