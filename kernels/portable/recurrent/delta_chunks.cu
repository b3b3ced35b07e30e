// delta_chunks.cu: Gated DeltaNet of prompts, what each chunk of 64 tokens gives without the state before it: scores
// of its queries, T diag(beta) with T = (I + strictly lower part of diag(beta) K K^T o D)^-1, and tokens' factors.
//
//   qkv : [N, 2 Hk Dk + Hv Dv] bf16, convolved, rows apart: q, k, v     gates : [N, 2 Hv] bf16, rows apart: b, a
//   rates, step_biases : [Hv] float32: A_log, dt_bias     starts : [B + 1] int32
//   matrices : [chunks, Hv] ChunkMatrices     factors : [chunks, Hv] ChunkFactors
//   math : K K^T and Q K^T of bf16 as they come, with float32 sums; norms of q and k are factors in float32.
//          D_ij = e^(G_i - G_j), G the sum of decays' logarithms in two floats: strong decays lose nothing.
//          The inverse in float32. Past a sequence's end q, k, beta and the decay's logarithm are zero
//   grid : (chunks, Hk, 1)    block : (256, 1, 1), half of them a value head    shared : 71,680 B
//   needs: Dk % 8 == 0, Dk <= 128; 16-byte aligned arrays and rows (ops/cuda/recurrent/delta_prefill.py checks)
//   check: tests/gpu/recurrent/test_delta_prefill.py against ops/reference/recurrent.py, states within 1e-4
#include "chunks/decay_sum.cuh"
#include "chunks/delta_chunk.cuh"
#include "chunks/triangular_inverse.cuh"
#include "copy/async_copy.cuh"
#include "delta_gates.cuh"
#include "mma/split_bf16.cuh"
#include "mma/warp_mma.cuh"
#include "sync/pdl.cuh"

constexpr int kHeads = 2;  // value heads at a time
constexpr int kThreads = kHeads * kInverseThreads;
constexpr int kStride = kMaxSize + 8;  // of a row of q or k in shared memory: ldmatrix meets every bank once

struct Shared {
  union {
    struct {
      bf16 keys[kChunk][kStride], queries[kChunk][kStride];
    };
    float solved[kHeads][kChunk][kInverseStride];
  };
  float key_scores[kChunk][kInverseStride], query_scores[kChunk][kInverseStride];  // k k and q k
  float key_factor[kChunk], query_factor[kChunk];                                  // 1 / |k|; Dk^-1/2 / |q|
  Sum sums[kHeads][kChunk];
  float beta[kHeads][kChunk];
};
static_assert(sizeof(Shared) == 71680, "arguments.py has this size");

__device__ __forceinline__ void load_rows(Shared& shared, const bf16* qkv, const Chunk& chunk, int key_head,
                                          const DeltaShape& shape) {
  for (int i = threadIdx.x; i < kChunk * kMaxSize / kBf16Vec; i += kThreads) {
    const int row = i / (kMaxSize / kBf16Vec), column = i % (kMaxSize / kBf16Vec) * kBf16Vec;
    const bool exists = row < chunk.tokens && column < shape.key_size;
    const int64_t token = chunk.token + (exists ? row : 0);
    const int at = exists ? column : 0;
    copy16_async(shared_address(&shared.keys[row][column]), shape.key(qkv, token, key_head) + at, exists);
    copy16_async(shared_address(&shared.queries[row][column]), shape.query(qkv, token, key_head) + at, exists);
  }
  copies_commit();
  copies_wait<0>();
}

// Scores of 16 rows by 32 columns a warp.
__device__ __forceinline__ void multiply_rows(Shared& shared) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = warp % 4 * 16, column = warp / 4 * 32;
  float of_keys[4][4] = {}, of_queries[4][4] = {};
#pragma unroll
  for (int k = 0; k < kMaxSize; k += 16) {
    uint32_t keys[4], queries[4];
    load_matrices(keys, shared_address(&shared.keys[row + lane % 16][k + lane / 16 * 8]));
    load_matrices(queries, shared_address(&shared.queries[row + lane % 16][k + lane / 16 * 8]));
#pragma unroll
    for (int tile = 0; tile < 4; tile += 2) {
      uint32_t b[4];
      load_matrices(b,
                    shared_address(&shared.keys[column + tile * 8 + lane / 16 * 8 + lane % 8][k + lane / 8 % 2 * 8]));
#pragma unroll
      for (int i = 0; i < 2; i++) {
        mma_16x8x16(of_keys[tile + i], keys, b + 2 * i);
        mma_16x8x16(of_queries[tile + i], queries, b + 2 * i);
      }
    }
  }
#pragma unroll
  for (int tile = 0; tile < 4; tile++) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int r = row + lane / 4 + half * 8, c = column + tile * 8 + lane % 4 * 2;
      const float (&k)[4] = of_keys[tile];
      const float (&q)[4] = of_queries[tile];
      *reinterpret_cast<float2*>(&shared.key_scores[r][c]) = make_float2(k[2 * half], k[2 * half + 1]);
      *reinterpret_cast<float2*>(&shared.query_scores[r][c]) = make_float2(q[2 * half], q[2 * half + 1]);
    }
  }
}

__device__ __forceinline__ void query_factors(Shared& shared, float scale) {
  const int row = threadIdx.x / 4, quarter = threadIdx.x % 4;
  float squares = 0.f;
#pragma unroll
  for (int i = 0; i < kMaxSize / 4; i += kBf16Vec) {
    float values[8];
    load8(&shared.queries[row][quarter * (kMaxSize / 4) + i], values);
#pragma unroll
    for (int j = 0; j < 8; j++) squares = fmaf(values[j], values[j], squares);
  }
  squares = warp_sum<4>(squares);
  if (quarter == 0) shared.query_factor[row] = rsqrtf(squares + kL2Eps) * scale;
}

// Sums of decays, and beta, by one warp: two tokens a lane.
__device__ __forceinline__ void sum_decays(Shared& shared, int which, int head, const bf16* gates, const float* rates,
                                           const float* step_biases, const Chunk& chunk, const DeltaShape& shape) {
  const int lane = threadIdx.x % 32;
  const float rate = expf(rates[head]), step_bias = step_biases[head];
  Sum own[2] = {};
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const int token = 2 * lane + i;
    float beta = 0.f;
    if (token < chunk.tokens) {
      const DeltaGate gate(gates, chunk.token + token, head, rate, step_bias, shape);
      beta = gate.beta, own[i].high = gate.decay;
    }
    shared.beta[which][token] = beta;
  }
  Sum sum = own[0].plus(own[1]);
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const Sum before = {__shfl_up_sync(kWholeWarp, sum.high, distance), __shfl_up_sync(kWholeWarp, sum.low, distance)};
    if (lane >= distance) sum = before.plus(sum);
  }
  const Sum before = {__shfl_up_sync(kWholeWarp, sum.high, 1), __shfl_up_sync(kWholeWarp, sum.low, 1)};
  shared.sums[which][2 * lane] = lane == 0 ? own[0] : before.plus(own[0]);
  shared.sums[which][2 * lane + 1] = sum;
}

__device__ __forceinline__ void write_factors(const Shared& shared, int which, int token, ChunkFactors& factors) {
  if (token >= kChunk) return;
  const Sum sum = shared.sums[which][token], last = shared.sums[which][kChunk - 1];
  const float decay = expf(sum.high + sum.low), key = shared.key_factor[token];
  factors.read[token] = decay * key;
  factors.query[token] = decay * shared.query_factor[token];
  factors.write[token] = expf(last.minus(sum)) * key;
  if (token < 4) factors.decay[token] = expf(last.high + last.low);
}

__device__ __forceinline__ void store_split(const float (&values)[4], bf16 (*parts)[kChunk][kChunk], int row,
                                            int column) {
  uint2 high, low;
  split_bf16(values[0], values[1], high.x, low.x);
  split_bf16(values[2], values[3], high.y, low.y);
  *reinterpret_cast<uint2*>(&parts[0][row][column]) = high;
  *reinterpret_cast<uint2*>(&parts[1][row][column]) = low;
}

// Four columns of row `row`: of the matrix to invert, and of the scores.
__device__ __forceinline__ void fill_row(Shared& shared, int which, int row, int column, ChunkMatrices& matrices) {
  const Sum own = shared.sums[which][row];
  const float key = shared.beta[which][row] * shared.key_factor[row], query = shared.query_factor[row];
  float lower[4], scores[4];
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const int other = column + i;
    const float decay = other <= row ? __expf(own.minus(shared.sums[which][other])) : 0.f;
    const float factor = decay * shared.key_factor[other];
    lower[i] = other < row ? key * factor * shared.key_scores[row][other] : 0.f;
    scores[i] = other <= row ? query * factor * shared.query_scores[row][other] : 0.f;
  }
  Tile{shared.solved[which]}.at(row, column) = make_float4(lower[0], lower[1], lower[2], lower[3]);
  store_split(scores, matrices.scores, row, column);
}

__device__ __forceinline__ void write_solved(const Shared& shared, int which, int row, int column,
                                             ChunkMatrices& matrices) {
  const float* values = &shared.solved[which][row][column];
  const float* beta = &shared.beta[which][column];
  const float scaled[4] = {values[0] * beta[0], values[1] * beta[1], values[2] * beta[2], values[3] * beta[3]};
  store_split(scaled, matrices.solved, row, column);
}

extern "C" __global__ void __launch_bounds__(kThreads, 2)
    delta_chunks(const bf16* qkv, const bf16* gates, const float* rates, const float* step_biases, const int* starts,
                 ChunkMatrices* matrices, ChunkFactors* factors, DeltaShape shape, int first, int last) {
  extern __shared__ float memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  pdl_launch_dependents();
  const Chunk chunk({starts, first, last, shape.min_tokens}, blockIdx.x);
  const int key_head = blockIdx.y, heads = shape.value_heads / shape.key_heads;
  pdl_wait();
  if (chunk.tokens == 0) return;

  // 1. K K^T and Q K^T, the same for all value heads of the key head.
  load_rows(shared, qkv, chunk, key_head, shape);
  __syncthreads();
  multiply_rows(shared);
  query_factors(shared, shape.scale);
  __syncthreads();
  if (threadIdx.x < kChunk) {
    shared.key_factor[threadIdx.x] = rsqrtf(shared.key_scores[threadIdx.x][threadIdx.x] + kL2Eps);
  }

  const int which = threadIdx.x / kInverseThreads, thread = threadIdx.x % kInverseThreads;
  const int row = thread / 16, column = thread % 16 * 4;
  for (int begin = 0; begin < heads; begin += kHeads) {
    // 2. Gates of the value head; one too many is computed and not needed where their number is odd.
    const bool exists = begin + which < heads;
    const int head = key_head * heads + min(begin + which, heads - 1);
    const int64_t index = static_cast<int64_t>(blockIdx.x) * shape.value_heads + head;
    if (thread < 32) sum_decays(shared, which, head, gates, rates, step_biases, chunk, shape);
    __syncthreads();

    // 3. The matrix, the scores, the factors.
    if (exists) {
      write_factors(shared, which, thread, factors[index]);
#pragma unroll 4
      for (int i = row; i < kChunk; i += kInverseThreads / 16) fill_row(shared, which, i, column, matrices[index]);
    }
    __syncthreads();

    // 4. Its inverse.
    invert_unit_lower({shared.solved[which]}, thread);
    if (exists) {
#pragma unroll 4
      for (int i = row; i < kChunk; i += kInverseThreads / 16) write_solved(shared, which, i, column, matrices[index]);
    }
    __syncthreads();
  }
}
