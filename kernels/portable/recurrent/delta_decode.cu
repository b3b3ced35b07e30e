// delta_decode.cu: Gated DeltaNet of sequences with one token: S <- e^g S, then S <- S + k (beta (v - S^T k))^T, and
// o = S^T q; then, with a norm's weight, o <- weight * o / rms(o) * silu(z).
//
//   qkv : [N, 2 Hk Dk + Hv Dv] bf16, convolved, rows apart: q, k, v     gates : [N, 2 Hv] bf16, rows apart: b, a
//   z : [N, Hv Dv] bf16, rows apart     rates, step_biases : [Hv] float32: A_log, dt_bias
//   norm : [Dv] float32 or null     states : [slots, Hv, Dk, Dv] float32, slots apart     out : [N, Hv Dv] bf16
//   starts : [B + 1], positions : [N], slots : [B] int32; a sequence at position 0 begins with zeros; a slot of -1, or
//            `min_tokens` tokens or more, is left out
//   math : float32, o rounded once on store; S is read and written once, in registers between: S^T q follows from sums
//          over the old S, as S^T q = e^g S_old^T q + (k q) delta
//   grid : (Hv, B, 1)    block : (256, 1, 1)    shared : 8,720 B
//   needs: Dk % 8 == 0, Dv % 8 == 0, both up to 128; 16-byte aligned arrays, rows and slots
//          (ops/cuda/recurrent/delta_rule.py checks). States are read before the kernel ahead has ended: nothing
//          between a step's inputs and this kernel may write them
//   check: tests/gpu/recurrent/test_delta_decode.py against ops/reference/recurrent.py, states within 1e-5
#include "delta_gates.cuh"
#include "math/reduce.cuh"
#include "sync/pdl.cuh"

constexpr int kThreads = WISP_DELTA_DECODE_THREADS, kWarps = kThreads / 32;
constexpr int kSize = WISP_DELTA_MAX_SIZE;  // Dk and Dv, at most: a lane holds four columns
constexpr int kRows = kSize / kWarps;       // of S, that a warp holds

struct Shared {
  float sums[kWarps][2][kSize];  // S^T k and S^T q of each warp's rows
  float delta[kSize];
  float squares[kSize / 32];
};
static_assert(sizeof(Shared) == 8720, "arguments.py has this size");

// Four bf16 of a lane's channels; zeros past `size`.
__device__ __forceinline__ float4 load4(const bf16* row, int lane, int size) {
  if (4 * lane >= size) return make_float4(0.f, 0.f, 0.f, 0.f);
  const uint2 packed = reinterpret_cast<const uint2*>(row)[lane];
  return make_float4(bf16_low(packed.x), bf16_high(packed.x), bf16_low(packed.y), bf16_high(packed.y));
}

__device__ __forceinline__ float dot(const float4& a, const float4& b) {
  return warp_sum(fmaf(a.x, b.x, fmaf(a.y, b.y, fmaf(a.z, b.z, a.w * b.w))));
}

// Q or K of the warp's row i, which is row kWarps i + warp: another lane has it.
struct Rows {
  float own;

  __device__ __forceinline__ Rows(const float4& values, float factor, int warp) {
    const int which = warp % 4;
    own = (which == 0 ? values.x : which == 1 ? values.y : which == 2 ? values.z : values.w) * factor;
  }
  __device__ __forceinline__ float of(int i, int warp) const {
    return __shfl_sync(kWholeWarp, own, (kWarps * i + warp) / 4);
  }
};

extern "C" __global__ void __launch_bounds__(kThreads, 2)
    delta_decode(const bf16* qkv, const bf16* gates, const bf16* z, const float* rates, const float* step_biases,
                 const float* norm, float* states, const int* starts, const int* positions, const int* slots, bf16* out,
                 DeltaShape shape) {
  extern __shared__ float memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  const int head = blockIdx.x, sequence = blockIdx.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  pdl_launch_dependents();

  // 1. The old state, while the kernel before still runs.
  const int token = starts[sequence], tokens = starts[sequence + 1] - token, slot = slots[sequence];
  if (slot < 0 || tokens < 1 || tokens >= shape.min_tokens) {
    pdl_wait();
    return;
  }
  const bool has_columns = 4 * lane < shape.value_size, is_first = positions[token] == 0;
  float* state = states + slot * shape.slot_stride + head * shape.state_size() + 4 * lane;
  float4 s[kRows];
#pragma unroll
  for (int i = 0; i < kRows; i++) {
    const int row = kWarps * i + warp;
    s[i] = make_float4(0.f, 0.f, 0.f, 0.f);
    if (row < shape.key_size && has_columns && !is_first) {
      s[i] = *reinterpret_cast<const float4*>(state + static_cast<int64_t>(row) * shape.value_size);
    }
  }
  const float rate = expf(rates[head]), step_bias = step_biases[head];
  pdl_wait();

  // 2. Gates, and the factors that normalise q and k.
  const DeltaGate gate(gates, token, head, rate, step_bias, shape);
  const float factor = expf(gate.decay);
  const int key_head = shape.key_head(head);
  const float4 q = load4(shape.query(qkv, token, key_head), lane, shape.key_size);
  const float4 k = load4(shape.key(qkv, token, key_head), lane, shape.key_size);
  const float q_factor = rsqrtf(dot(q, q) + kL2Eps) * shape.scale, k_factor = rsqrtf(dot(k, k) + kL2Eps);
  const float overlap = dot(q, k) * q_factor * k_factor;
  const Rows queries(q, q_factor, warp), keys(k, k_factor, warp);

  // 3. S^T k and S^T q of the warp's rows.
  float4 of_key = make_float4(0.f, 0.f, 0.f, 0.f), of_query = of_key;
#pragma unroll
  for (int i = 0; i < kRows; i++) {
    const float a = keys.of(i, warp), b = queries.of(i, warp);
    of_key.x = fmaf(s[i].x, a, of_key.x), of_query.x = fmaf(s[i].x, b, of_query.x);
    of_key.y = fmaf(s[i].y, a, of_key.y), of_query.y = fmaf(s[i].y, b, of_query.y);
    of_key.z = fmaf(s[i].z, a, of_key.z), of_query.z = fmaf(s[i].z, b, of_query.z);
    of_key.w = fmaf(s[i].w, a, of_key.w), of_query.w = fmaf(s[i].w, b, of_query.w);
  }
  reinterpret_cast<float4*>(shared.sums[warp][0])[lane] = of_key;
  reinterpret_cast<float4*>(shared.sums[warp][1])[lane] = of_query;
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
      const float v = __bfloat162float(shape.value(qkv, token, head)[column]);
      delta = gate.beta * (v - factor * key_sum);
      o = fmaf(factor, query_sum, delta * overlap);
    }
    shared.delta[column] = delta;
    const float squares = warp_sum(o * o);
    if (lane == 0) shared.squares[warp] = squares;
  }
  __syncthreads();

  // 5. The new state.
  const float4 delta = reinterpret_cast<const float4*>(shared.delta)[lane];
#pragma unroll
  for (int i = 0; i < kRows; i++) {
    const int row = kWarps * i + warp;
    const float a = keys.of(i, warp);
    const float4 updated = make_float4(fmaf(a, delta.x, factor * s[i].x), fmaf(a, delta.y, factor * s[i].y),
                                       fmaf(a, delta.z, factor * s[i].z), fmaf(a, delta.w, factor * s[i].w));
    if (row < shape.key_size && has_columns) {
      *reinterpret_cast<float4*>(state + static_cast<int64_t>(row) * shape.value_size) = updated;
    }
  }

  // 6. The gated norm.
  if (column >= shape.value_size) return;
  const int64_t at = static_cast<int64_t>(head) * shape.value_size + column;
  if (norm != nullptr) {
    float squares = 0.f;
#pragma unroll
    for (int i = 0; i < kSize / 32; i++) squares += shared.squares[i];
    const float inverse = rsqrtf(squares / static_cast<float>(shape.value_size) + shape.eps);
    o *= inverse * norm[column] * silu(__bfloat162float(z[token * shape.z_stride + at]));
  }
  out[token * static_cast<int64_t>(shape.value_heads) * shape.value_size + at] = __float2bfloat16_rn(o);
}
