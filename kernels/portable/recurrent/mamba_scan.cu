// mamba_scan.cu: Mamba-2 of prompts, in chunks of 64 tokens: with L the running sum of the decays' logarithms in a
// chunk and E_ij = e^(L_i - L_j) t_j for j <= i, Y = diag(e^L) C S^T + (C B^T o E + diag(D)) X, and then S <- e^L_last
// S + X^T diag(e^(L_last - L) t) B.
//
//   xbc : [N, H Dh + 2 G S] bf16, convolved, rows apart: x, B, C     steps : [N, H] bf16, rows apart
//   rates, step_biases, skips : [H] float32: A_log, dt_bias, D
//   states : [slots, H, Dh, S] float32, slots apart     out : [N, H Dh] bf16
//   starts : [B + 1], positions : [N], slots : [B] int32; a sequence at position 0 begins with zeros; a slot of -1, or
//            fewer tokens than `min_tokens`, is left out
//   math : a warp has 16 channels of S and Y, as rows, in registers. Matmuls of bf16 operands with float32 sums; S, the
//          scores C B^T o E and x times its factor are split in two bf16; x, B and C are bf16 as they come
//   grid : (H, B, ceil(Dh / 16 / warps))    block : (32 (warps + 1), 1, 1), warps <= 7; the last warp copies
//   shared : 18,432 B, and of each stage `Stage` and 128 (16 warps + 8) B
//   needs: Dh % 8 == 0, Dh <= 128; S % 8 == 0, S <= 128, 256 (_256); one or two stages; 16-byte aligned arrays, rows
//          and slots (ops/cuda/recurrent/selective_scan.py checks). States are read before the kernel ahead has ended:
//          nothing between a step's inputs and this kernel may write them
//   check: tests/gpu/recurrent/test_mamba.py against ops/reference/mamba.py, states within 1e-4
//
// Source: Dao & Gu 2024, arXiv:2405.21060, section 6.
#include "chunks/decay_sum.cuh"
#include "chunks/rows.cuh"
#include "chunks/stages.cuh"
#include "mamba_shape.cuh"
#include "math/reduce.cuh"
#include "mma/split_bf16.cuh"
#include "mma/warp_mma.cuh"
#include "sync/pdl.cuh"

constexpr int kThreads = 256;             // at most: with a ninth warp each has 168 registers
constexpr int kScoreStride = kChunk + 8;  // ldmatrix meets every bank once

using Scores = bf16[2 * kChunk][kScoreStride];  // upper parts above lower ones

// A chunk in shared memory; behind it x, [64][16 warps + 8].
template <int kStates>
struct Stage {
  bf16 b[kChunk][kStates + 8], c[kChunk][kStates + 8];
  Sum sums[kChunk];     // L
  float steps[kChunk];  // t; zero past the sequence's end
  float read[kChunk];   // e^L
  float write[kChunk];  // e^(L_last - L) t
  float decay[4];       // e^L_last, four times
};
static_assert(sizeof(Stage<128>) == 36112 && sizeof(Stage<256>) == 68880, "mamba_arguments.py has these sizes");

// Time steps and decays of a chunk, by one warp: two tokens a lane.
template <int kStates>
__device__ __forceinline__ void sum_decays(Stage<kStates>& stage, const MambaHead& weights, const bf16* steps,
                                           int64_t token, int tokens, int head, const MambaShape& shape) {
  const int lane = threadIdx.x % 32;
  float step[2];
  Sum own[2];
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const int place = 2 * lane + i;
    step[i] = place < tokens ? weights.step(steps, token + place, head, shape) : 0.f;
    own[i] = {-weights.rate * step[i], 0.f};
  }
  Sum sum = own[0].plus(own[1]);  // of the lanes up to this one
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const Sum before = {__shfl_up_sync(kWholeWarp, sum.high, distance), __shfl_up_sync(kWholeWarp, sum.low, distance)};
    if (lane >= distance) sum = sum.plus(before);
  }
  const Sum last = {__shfl_sync(kWholeWarp, sum.high, 31), __shfl_sync(kWholeWarp, sum.low, 31)};
  const Sum before = {__shfl_up_sync(kWholeWarp, sum.high, 1), __shfl_up_sync(kWholeWarp, sum.low, 1)};
  const Sum sums[2] = {lane > 0 ? before.plus(own[0]) : own[0], sum};
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const int place = 2 * lane + i;
    stage.sums[place] = sums[i], stage.steps[place] = step[i];
    stage.read[place] = expf(sums[i].high), stage.write[place] = expf(last.minus(sums[i])) * step[i];
  }
  if (lane < 4) stage.decay[lane] = expf(last.high);
}

// C B^T o E + diag(D) in blocks of 16 x 16 on and below the diagonal, shared by the warps.
template <int kStates>
__device__ __forceinline__ void multiply_scores(Scores& scores, const Stage<kStates>& stage, float skip, int warp,
                                                int warps, int lane) {
  for (int index = warp; index < 10; index += warps) {
    const int row = index < 1 ? 0 : index < 3 ? 1 : index < 6 ? 2 : 3, column = index - row * (row + 1) / 2;
    float sums[2][4] = {};
#pragma unroll
    for (int k = 0; k < kStates; k += 16) {
      uint32_t a[4], b[4];
      load_matrices(a, shared_address(&stage.c[row * 16 + lane % 16][k + lane / 16 * 8]));
      load_matrices(b, shared_address(&stage.b[column * 16 + lane / 16 * 8 + lane % 8][k + lane / 8 % 2 * 8]));
      add_product(sums, 0, a, b);
    }
#pragma unroll
    for (int tile = 0; tile < 2; tile++) {
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const int i = row * 16 + lane / 4 + half * 8, first = column * 16 + tile * 8 + lane % 4 * 2;
        float pair[2];
#pragma unroll
        for (int each = 0; each < 2; each++) {
          const int j = first + each;
          const float factor = j <= i ? expf(stage.sums[i].minus(stage.sums[j])) * stage.steps[j] : 0.f;
          pair[each] = sums[tile][2 * half + each] * factor + (i == j ? skip : 0.f);
        }
        uint32_t high, low;
        split_bf16(pair[0], pair[1], high, low);
        *reinterpret_cast<uint32_t*>(&scores[i][first]) = high;
        *reinterpret_cast<uint32_t*>(&scores[kChunk + i][first]) = low;
      }
    }
  }
}

// y <- diag(e^L) C S^T, transposed.
template <int kStates>
__device__ __forceinline__ void read_state(Rows& y, const float (&s)[kStates / 8][4], const Stage<kStates>& stage,
                                           int lane) {
  const int row = lane / 16 * 8 + lane % 8, column = lane / 8 % 2 * 8;
#pragma unroll
  for (int k = 0; k < kStates / 16; k++) {
    const SplitOperand a(s[2 * k], s[2 * k + 1]);
#pragma unroll
    for (int tile = 0; tile < kChunk / 8; tile += 2) {
      uint32_t b[4];
      load_matrices(b, shared_address(&stage.c[tile * 8 + row][k * 16 + column]));
      add_product(y, tile, a.high, b);
      add_product(y, tile, a.low, b);
    }
  }
#pragma unroll
  for (int tile = 0; tile < kChunk / 8; tile++) {
    const float2 factor = *reinterpret_cast<const float2*>(&stage.read[tile * 8 + lane % 4 * 2]);
    y[tile][0] *= factor.x, y[tile][1] *= factor.y, y[tile][2] *= factor.x, y[tile][3] *= factor.y;
  }
}

// y += x^T scores^T.
__device__ __forceinline__ void add_scores(Rows& y, const uint32_t (&x)[kChunk / 16][4], const Scores& scores,
                                           int lane) {
  const int row = lane / 16 * 8 + lane % 8, column = lane / 8 % 2 * 8;
#pragma unroll
  for (int k = 0; k < kChunk / 16; k++) {
#pragma unroll
    for (int tile = 2 * k; tile < kChunk / 8; tile += 2) {
      uint32_t high[4], low[4];
      load_matrices(high, shared_address(&scores[tile * 8 + row][k * 16 + column]));
      load_matrices(low, shared_address(&scores[kChunk + tile * 8 + row][k * 16 + column]));
      add_product(y, tile, x[k], high);
      add_product(y, tile, x[k], low);
    }
  }
}

// S <- e^L_last S + (x^T diag(write)) B.
template <int kStates>
__device__ __forceinline__ void update_state(float (&s)[kStates / 8][4], const uint32_t (&x)[kChunk / 16][4],
                                             const Stage<kStates>& stage, int lane) {
  multiply_by(s, stage.decay[0]);
#pragma unroll
  for (int k = 0; k < kChunk / 16; k++) {
    uint32_t high[4], low[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const float2 write = *reinterpret_cast<const float2*>(&stage.write[k * 16 + i / 2 * 8 + lane % 4 * 2]);
      split_bf16(bf16_low(x[k][i]) * write.x, bf16_high(x[k][i]) * write.y, high[i], low[i]);
    }
#pragma unroll
    for (int tile = 0; tile < kStates / 8; tile += 2) {
      uint32_t b[4];
      load_matrices_transposed(b, shared_address(&stage.b[k * 16 + lane % 16][tile * 8 + lane / 16 * 8]));
      add_product(s, tile, high, b);
      add_product(s, tile, low, b);
    }
  }
}

// Apply `visit` to each pair of a lane's elements of the state, and its index in [Dh, S].
template <int kStates, class Visit>
__device__ __forceinline__ void for_each_pair(float (&s)[kStates / 8][4], int first, int lane, const MambaShape& shape,
                                              Visit visit) {
#pragma unroll
  for (int tile = 0; tile < kStates / 8; tile++) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int channel = first + lane / 4 + half * 8, state = tile * 8 + lane % 4 * 2;
      if (channel < shape.head_size && state < shape.state_size) {
        visit(s[tile][2 * half], s[tile][2 * half + 1], channel * shape.state_size + state);
      }
    }
  }
}

__device__ __forceinline__ void sync_computing(int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(1), "r"(threads) : "memory");
}

template <int kStates>
__device__ __forceinline__ void scan(const bf16* xbc, const bf16* steps, const float* rates, const float* step_biases,
                                     const float* skips, float* states, const int* starts, const int* positions,
                                     const int* slots, bf16* out, const MambaShape& shape, int stage_count) {
  extern __shared__ uint4 memory[];
  pdl_launch_dependents();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32 - 1;
  const int head = blockIdx.x, sequence = blockIdx.y;
  const int begin = starts[sequence], tokens = starts[sequence + 1] - begin, slot = slots[sequence];
  if (tokens < 1 || tokens < shape.min_tokens || slot < 0) {
    pdl_wait();
    return;
  }
  Scores& scores = *reinterpret_cast<Scores*>(memory);
  const Stages<Stage<kStates>> stages = {reinterpret_cast<unsigned char*>(memory) + sizeof(Scores), stage_count,
                                         16 * warps + 8};
  const int chunks = (tokens + kChunk - 1) / kChunk, block_first = blockIdx.z * warps * 16;
  const MambaHead weights(rates, step_biases, skips, head);

  if (warp == warps) {
    // 1. The last warp copies, as many chunks ahead as there are stages.
    pdl_wait();
    const auto copy = [&](int chunk) {
      Stage<kStates>& stage = stages.of(chunk);
      const int64_t token = begin + static_cast<int64_t>(chunk) * kChunk;
      const int count = min(kChunk, tokens - chunk * kChunk), stride = kStates + 8;
      copy_rows(stage.b[0], stride, shape.b(xbc, token, head), shape.conv_stride, count, shape.state_size, kStates);
      copy_rows(stage.c[0], stride, shape.c(xbc, token, head), shape.conv_stride, count, shape.state_size, kStates);
      copy_rows(stages.value(stage, 0, 0), stages.stride, shape.x(xbc, token, head) + block_first, shape.conv_stride,
                count, shape.head_size - block_first, 16 * warps);
      copies_commit();
      sum_decays(stage, weights, steps, token, count, head, shape);
    };
    stages.fill(chunks, copy);
    return;
  }

  // 2. The others compute 16 channels each. The old state, while the kernel before still runs.
  float s[kStates / 8][4] = {};
  const int first = block_first + warp * 16;
  float* state = states + slot * shape.slot_stride + shape.head_state(head);
  if (positions[begin] != 0) {
    for_each_pair<kStates>(s, first, lane, shape, [&](float& a, float& b, int at) {
      const float2 pair = *reinterpret_cast<const float2*>(state + at);
      a = pair.x, b = pair.y;
    });
  }
  pdl_wait();
  bf16* to = out + static_cast<int64_t>(begin) * shape.inner() + head * shape.head_size + first;

  for (int chunk = 0; chunk < chunks; chunk++) {
    __syncthreads();
    Stage<kStates>& stage = stages.of(chunk);
    multiply_scores(scores, stage, weights.skip, warp, warps, lane);
    uint32_t x[kChunk / 16][4];
#pragma unroll
    for (int k = 0; k < kChunk / 16; k++) {
      const int row = k * 16 + lane / 16 * 8 + lane % 8;
      load_matrices_transposed(x[k], shared_address(stages.value(stage, row, warp * 16 + lane / 8 % 2 * 8)));
    }
    Rows y = {};
    read_state<kStates>(y, s, stage, lane);
    sync_computing(32 * warps);
    add_scores(y, x, scores, lane);
    store_rows(y, to + static_cast<int64_t>(chunk) * kChunk * shape.inner(), shape.inner(), tokens - chunk * kChunk,
               shape.head_size - first, lane);
    update_state<kStates>(s, x, stage, lane);
    if (stages.count == 1) __syncthreads();
  }

  // 3. The new state.
  for_each_pair<kStates>(s, first, lane, shape, [&](float& a, float& b, int at) {
    *reinterpret_cast<float2*>(state + at) = make_float2(a, b);
  });
}

#define MAMBA_SCAN(name, states_)                                                                                    \
  extern "C" __global__ void __launch_bounds__(kThreads)                                                             \
      name(const bf16* xbc, const bf16* steps, const float* rates, const float* step_biases, const float* skips,     \
           float* states, const int* starts, const int* positions, const int* slots, bf16* out, MambaShape shape,    \
           int stage_count) {                                                                                        \
    scan<states_>(xbc, steps, rates, step_biases, skips, states, starts, positions, slots, out, shape, stage_count); \
  }

MAMBA_SCAN(mamba_scan, 128)
MAMBA_SCAN(mamba_scan_256, 256)
