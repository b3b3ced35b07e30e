// delta_decode.cu: Gated DeltaNet of sequences with one token, from its projections on: the convolution of Q, K and V;
// S <- e^g S, then S <- S + k (beta (v - S^T k))^T, and o = S^T q; then, with a norm's weight,
// o <- weight * o / rms(o) * silu(z).
//
//   projected : [N, 2 Hk Dk + 2 Hv Dv] bf16, rows apart: q, k, v, z     conv : [2 Hk Dk + Hv Dv, 4] bf16
//   gates : [N, 2 Hv] bf16, rows apart: b, a; or, with gate_weight, [2 Hv, D] bf16 tiled, the layer's input [N, D],
//           whose GEMM with it gives them
//   rates, step_biases : [Hv] float32: A_log, dt_bias     norm : [Dv] float32 or null
//   states : [slots, Hv, Dk, Dv] float32, slots apart     inputs : [slots, 3, C] bf16, slots apart; row 2 is the newest
//   arrivals : [B, Hk, 2] uint32, zeros before and after     out : [N, Hv Dv] bf16
//   starts : [B + 1], positions : [N], slots : [B] int32; a sequence at position 0 begins with zeros; a slot of -1, or
//            `min_tokens` tokens or more, is left out
//   math : float32, convolved channels and o rounded once; S is read and written once, in registers between: S^T q
//          follows from sums over the old S, as S^T q = e^g S_old^T q + (k q) delta. The value heads of a key head each
//          convolve its q and k; the last of them that has read their old inputs replaces these
//   grid : (Hv, B, 1)    block : (256, 1, 1)    shared : 10,296 B
//   needs: Dk % 8 == 0, Dv % 8 == 0, both up to 128; D % 8 == 0; 16-byte aligned arrays, rows and slots
//          (ops/cuda/recurrent/delta_decode.py checks). States and inputs are read before the kernel ahead has ended:
//          nothing between a step's inputs and this kernel may write them
//   check: tests/gpu/recurrent/test_delta_decode.py against ops/reference/recurrent.py, states within 1e-5
#include "decode/decoded_sequence.cuh"
#include "decode/gate_logits.cuh"
#include "decode/token_conv.cuh"
#include "delta_gates.cuh"
#include "math/reduce.cuh"
#include "sync/count_up_to.cuh"
#include "sync/pdl.cuh"

constexpr int kThreads = WISP_DELTA_DECODE_THREADS, kWarps = kThreads / 32;
constexpr int kSize = WISP_DELTA_MAX_SIZE;  // Dk and Dv, at most: a lane holds four columns
constexpr int kRows = kSize / kWarps;       // of S, that a warp holds
constexpr int kConvWarps = 3, kGateWarps = kWarps - kConvWarps;

// By value, as ops/cuda/recurrent/arguments.py fills it.
struct DecodeShape {
  DeltaShape delta;
  int64_t input_stride;  // elements between slots of inputs
  int columns;           // D
};

struct Shared {
  float sums[kWarps][2][kSize];      // S^T k and S^T q of each warp's rows
  float vectors[kConvWarps][kSize];  // q, k, v
  float delta[kSize];
  float2 gates[kGateWarps];  // parts of b and a
  float squares[kSize / 32];
};
static_assert(sizeof(Shared) == 10296, "arguments.py has this size");

// A warp's rows of S, from kRows warp on; four columns a lane.
struct Rows {
  float4 s[kRows];
  int count;

  __device__ __forceinline__ Rows(const DeltaShape& shape, int warp, int lane)
      : count(4 * lane < shape.value_size ? max(0, min(kRows, shape.key_size - kRows * warp)) : 0) {}

  __device__ __forceinline__ void load(const float* state, int stride, bool is_first) {
#pragma unroll
    for (int i = 0; i < kRows; i++) {
      s[i] = make_float4(0.f, 0.f, 0.f, 0.f);
      if (i < count && !is_first) s[i] = __ldcs(reinterpret_cast<const float4*>(state + i * stride));
    }
  }

  __device__ __forceinline__ static void add(float4& sum, const float4& row, float factor) {
    sum.x = fmaf(row.x, factor, sum.x), sum.y = fmaf(row.y, factor, sum.y);
    sum.z = fmaf(row.z, factor, sum.z), sum.w = fmaf(row.w, factor, sum.w);
  }

  // Sums of s times the rows' elements of a vector.
  __device__ __forceinline__ float4 times(const float* vector) const {
    float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
    for (int i = 0; i < kRows; i += 4) {
      const float4 four = *reinterpret_cast<const float4*>(vector + i);
      add(sum, s[i], four.x), add(sum, s[i + 1], four.y), add(sum, s[i + 2], four.z), add(sum, s[i + 3], four.w);
    }
    return sum;
  }

  // factor s + vector delta^T.
  __device__ __forceinline__ void store_updated(float* state, int stride, float factor, const float* vector,
                                                const float4& delta) const {
#pragma unroll
    for (int i = 0; i < kRows; i++) {
      float4 updated = make_float4(factor * s[i].x, factor * s[i].y, factor * s[i].z, factor * s[i].w);
      add(updated, delta, vector[i]);
      if (i < count) __stcs(reinterpret_cast<float4*>(state + i * stride), updated);
    }
  }
};

__device__ __forceinline__ float dot(const float4& a, const float4& b) {
  return warp_sum(fmaf(a.x, b.x, fmaf(a.y, b.y, fmaf(a.z, b.z, a.w * b.w))));
}

extern "C" __global__ void __launch_bounds__(kThreads, 2)
    delta_decode(const bf16* projected, const bf16* conv, const bf16* gates, const bf16* gate_weight,
                 const float* rates, const float* step_biases, const float* norm, float* states, bf16* inputs,
                 unsigned* arrivals, const int* starts, const int* positions, const int* slots, bf16* out,
                 DecodeShape decode) {
  extern __shared__ float memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  const DeltaShape& shape = decode.delta;
  const int head = blockIdx.x, sequence = blockIdx.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  pdl_launch_dependents();

  // 1. The old state, old inputs and weights, while the kernel before still runs. Three warps convolve.
  const DecodedSequence decoded(starts, slots, sequence);
  if (decoded.is_left_out(shape.min_tokens)) {
    pdl_wait();
    return;
  }
  const int token = decoded.token;
  const bool is_first = positions[token] == 0;
  float* state = states + decoded.slot * shape.slot_stride + head * shape.state_size() +
                 kRows * warp * shape.value_size + 4 * lane;
  Rows rows(shape, warp, lane);
  rows.load(state, shape.value_size, is_first);
  const int key_head = shape.key_head(head), key_columns = shape.key_heads * shape.key_size;
  const int channels = 2 * key_columns + shape.value_heads * shape.value_size;
  const int channel = 4 * lane + (warp < 2 ? warp * key_columns + key_head * shape.key_size
                                           : 2 * key_columns + head * shape.value_size);
  const bool convolves = warp < kConvWarps && 4 * lane < (warp < 2 ? shape.key_size : shape.value_size);
  bf16* old_inputs = inputs + decoded.slot * decode.input_stride + channel;
  TokenConv convolution;
  if (convolves) convolution.load(conv + static_cast<int64_t>(channel) * 4, old_inputs, channels, is_first);
  const GateLogits<32 * kGateWarps> logits(gate_weight, head, shape.value_heads, decode.columns);
  if (warp >= kConvWarps && gate_weight != nullptr) logits.prefetch(threadIdx.x - 32 * kConvWarps);
  const float rate = expf(rates[head]), step_bias = step_biases[head];
  pdl_wait();

  // 2. q, k and v by these warps, b and a by the others.
  const bf16* row = projected + token * shape.qkv_stride;
  if (warp < kConvWarps) {
    float4 convolved = make_float4(0.f, 0.f, 0.f, 0.f);
    if (convolves) convolved = convolution.of(row + channel);
    reinterpret_cast<float4*>(shared.vectors[warp])[lane] = convolved;
  } else {
    float2 parts = make_float2(0.f, 0.f);
    const bf16* own = gates + token * shape.gate_stride;
    if (gate_weight != nullptr) {
      parts = logits.multiply(own, threadIdx.x - 32 * kConvWarps);
    } else if (warp == kConvWarps) {
      parts = make_float2(__bfloat162float(own[head]), __bfloat162float(own[shape.value_heads + head]));
    }
    if (lane == 0) shared.gates[warp - kConvWarps] = parts;
  }
  __syncthreads();
  unsigned before = 0;
  const unsigned sharers = shape.value_heads / shape.key_heads;
  if (warp < 2 && lane == 0) {
    before = count_up_to(sharers - 1, arrivals + (sequence * shape.key_heads + key_head) * 2 + warp);
  }

  // 3. S^T k and S^T q of the warp's rows; gates, and the factors that normalise q and k.
  const float *queries = shared.vectors[0] + kRows * warp, *keys = shared.vectors[1] + kRows * warp;
  reinterpret_cast<float4*>(shared.sums[warp][0])[lane] = rows.times(keys);
  reinterpret_cast<float4*>(shared.sums[warp][1])[lane] = rows.times(queries);
  float2 ba = shared.gates[0];
#pragma unroll
  for (int i = 1; i < kGateWarps; i++) ba.x += shared.gates[i].x, ba.y += shared.gates[i].y;
  const DeltaGate gate(ba.x, ba.y, rate, step_bias);
  const float factor = expf(gate.decay);
  float q_factor = 0.f, k_factor = 0.f, overlap = 0.f;
  if (warp < kSize / 32) {
    const float4 q = reinterpret_cast<const float4*>(shared.vectors[0])[lane];
    const float4 k = reinterpret_cast<const float4*>(shared.vectors[1])[lane];
    q_factor = rsqrtf(dot(q, q) + kL2Eps) * shape.scale, k_factor = rsqrtf(dot(k, k) + kL2Eps);
    overlap = dot(q, k) * q_factor * k_factor;
  }
  __syncthreads();

  // 4. A column a thread: delta and o.
  const int column = threadIdx.x;
  float o = 0.f;
  if (column < kSize) {
    float key_sum = 0.f, query_sum = 0.f;
#pragma unroll
    for (int i = 0; i < kWarps; i++) {
      key_sum += shared.sums[i][0][column];
      query_sum += shared.sums[i][1][column];
    }
    float delta = 0.f;
    if (column < shape.value_size) {
      delta = gate.beta * (shared.vectors[2][column] - factor * (key_sum * k_factor));
      o = fmaf(factor, query_sum * q_factor, delta * overlap);
    }
    shared.delta[column] = delta * k_factor;
    const float squares = warp_sum(o * o);
    if (lane == 0) shared.squares[warp] = squares;
  }
  __syncthreads();

  // 5. The new state, and the inputs of v; of q and k, by the block that was the last to read them.
  const float4 delta = reinterpret_cast<const float4*>(shared.delta)[lane];
  rows.store_updated(state, shape.value_size, factor, keys, delta);
  const bool is_last = warp == 2 || __shfl_sync(kWholeWarp, before, 0) == sharers - 1;
  if (convolves && is_last) convolution.store(old_inputs, channels);

  // 6. The gated norm.
  if (column >= shape.value_size) return;
  const int64_t at = static_cast<int64_t>(head) * shape.value_size + column;
  if (norm != nullptr) {
    float squares = 0.f;
#pragma unroll
    for (int i = 0; i < kSize / 32; i++) squares += shared.squares[i];
    const float inverse = rsqrtf(squares / static_cast<float>(shape.value_size) + shape.eps);
    o *= inverse * norm[column] * silu(__bfloat162float(row[channels + at]));
  }
  out[token * static_cast<int64_t>(shape.value_heads) * shape.value_size + at] = __float2bfloat16_rn(o);
}
