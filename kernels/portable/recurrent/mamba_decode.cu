// mamba_decode.cu: Mamba-2 of sequences with one token: S <- e^(-rate t) S + (t x) B^T; y = S C + D x, with
// t = softplus(step + bias).
//
//   xbc : [N, H Dh + 2 G S] bf16, convolved, rows apart: x, B, C     steps : [N, H] bf16, rows apart
//   rates, step_biases, skips : [H] float32: A_log, dt_bias, D
//   states : [slots, H, Dh, S] float32, slots apart     out : [N, H Dh] bf16
//   starts : [B + 1], positions : [N], slots : [B] int32; a sequence at position 0 begins with zeros; a slot of -1, or
//            `min_tokens` tokens or more, is left out
//   math : float32, y rounded once on store; S is read and written once
//   grid : (H, B, 1)    block : (256, 1, 1): a warp has eight rows of S at a time    shared : none
//   needs: Dh % 8 == 0, S % 8 == 0, S <= 128, 256 (_256); 16-byte aligned arrays, rows and slots
//          (ops/cuda/recurrent/selective_scan.py checks). States are read before the kernel ahead has ended: nothing
//          between a step's inputs and this kernel may write them
//   check: tests/gpu/recurrent/test_mamba.py against ops/reference/mamba.py, states within 1e-5
#include "decode/decoded_sequence.cuh"
#include "mamba_shape.cuh"
#include "math/reduce.cuh"
#include "sync/pdl.cuh"

constexpr int kThreads = WISP_MAMBA_DECODE_THREADS, kWarps = kThreads / 32;
constexpr int kRows = 8;  // of S, that a warp holds at once

// Four states of each 128 that a lane holds.
template <int kQuads>
struct Quads {
  float4 at[kQuads];

  // bf16, or zeros past `size`.
  __device__ __forceinline__ Quads(const bf16* row, int lane, int size) {
#pragma unroll
    for (int i = 0; i < kQuads; i++) {
      at[i] = make_float4(0.f, 0.f, 0.f, 0.f);
      if (4 * lane + 128 * i >= size) continue;
      const uint2 packed = reinterpret_cast<const uint2*>(row)[lane + 32 * i];
      at[i] = make_float4(bf16_low(packed.x), bf16_high(packed.x), bf16_low(packed.y), bf16_high(packed.y));
    }
  }
};

// Rows of S from `first` on.
template <int kQuads>
struct Rows {
  float4 at[kRows][kQuads];

  __device__ __forceinline__ void load(const float* state, int first, int lane, bool is_zero, const MambaShape& shape) {
#pragma unroll
    for (int row = 0; row < kRows; row++) {
#pragma unroll
      for (int i = 0; i < kQuads; i++) {
        at[row][i] = make_float4(0.f, 0.f, 0.f, 0.f);
        const int column = 4 * lane + 128 * i;
        if (is_zero || first + row >= shape.head_size || column >= shape.state_size) continue;
        at[row][i] = *reinterpret_cast<const float4*>(state + (first + row) * shape.state_size + column);
      }
    }
  }
};

// S <- factor S + scale b in a row, and its sum with c.
template <int kQuads>
__device__ __forceinline__ float update(float4 (&s)[kQuads], float factor, float scale, const Quads<kQuads>& b,
                                        const Quads<kQuads>& c) {
  float sum = 0.f;
#pragma unroll
  for (int i = 0; i < kQuads; i++) {
    s[i].x = fmaf(scale, b.at[i].x, factor * s[i].x), sum = fmaf(s[i].x, c.at[i].x, sum);
    s[i].y = fmaf(scale, b.at[i].y, factor * s[i].y), sum = fmaf(s[i].y, c.at[i].y, sum);
    s[i].z = fmaf(scale, b.at[i].z, factor * s[i].z), sum = fmaf(s[i].z, c.at[i].z, sum);
    s[i].w = fmaf(scale, b.at[i].w, factor * s[i].w), sum = fmaf(s[i].w, c.at[i].w, sum);
  }
  return warp_sum(sum);
}

template <int kQuads>
__device__ __forceinline__ void decode(const bf16* xbc, const bf16* steps, const float* rates, const float* step_biases,
                                       const float* skips, float* states, const int* starts, const int* positions,
                                       const int* slots, bf16* out, const MambaShape& shape) {
  const int head = blockIdx.x, sequence = blockIdx.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  pdl_launch_dependents();

  // 1. The first rows of the old state, while the kernel before still runs.
  const DecodedSequence decoded(starts, slots, sequence);
  if (decoded.is_left_out(shape.min_tokens)) {
    pdl_wait();
    return;
  }
  const int token = decoded.token;
  const bool is_first = positions[token] == 0;
  float* state = states + decoded.slot * shape.slot_stride + shape.head_state(head);
  Rows<kQuads> s;
  int first = warp * kRows;
  s.load(state, first, lane, is_first, shape);
  const MambaHead weights(rates, step_biases, skips, head);
  pdl_wait();

  // 2. The token's time step, decay, B and C.
  const float step = weights.step(steps, token, head, shape), factor = expf(-weights.rate * step);
  const Quads<kQuads> b(shape.b(xbc, token, head), lane, shape.state_size);
  const Quads<kQuads> c(shape.c(xbc, token, head), lane, shape.state_size);
  const bf16* x = shape.x(xbc, token, head);
  bf16* y = out + static_cast<int64_t>(token) * shape.inner() + head * shape.head_size;

  // 3. Rows of the state, and their channels of the result: lane i stores that of row i.
  while (first < shape.head_size) {
    const bool has_channel = lane < kRows && first + lane < shape.head_size;
    const float own = has_channel ? __bfloat162float(x[first + lane]) : 0.f;
    float result = 0.f;
#pragma unroll
    for (int row = 0; row < kRows; row++) {
      const float sum = update(s.at[row], factor, step * __shfl_sync(kWholeWarp, own, row), b, c);
      if (lane == row) result = sum;
#pragma unroll
      for (int i = 0; i < kQuads; i++) {
        const int column = 4 * lane + 128 * i;
        if (first + row >= shape.head_size || column >= shape.state_size) continue;
        *reinterpret_cast<float4*>(state + (first + row) * shape.state_size + column) = s.at[row][i];
      }
    }
    if (has_channel) y[first + lane] = __float2bfloat16_rn(fmaf(weights.skip, own, result));
    first += kWarps * kRows;
    s.load(state, first, lane, is_first, shape);
  }
}

#define MAMBA_DECODE(name, quads)                                                                                   \
  extern "C" __global__ void __launch_bounds__(kThreads)                                                            \
      name(const bf16* xbc, const bf16* steps, const float* rates, const float* step_biases, const float* skips,    \
           float* states, const int* starts, const int* positions, const int* slots, bf16* out, MambaShape shape) { \
    decode<quads>(xbc, steps, rates, step_biases, skips, states, starts, positions, slots, out, shape);             \
  }

MAMBA_DECODE(mamba_decode, 1)
MAMBA_DECODE(mamba_decode_256, 2)
