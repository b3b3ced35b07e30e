// causal_conv.cu: depthwise causal convolution of each sequence's tokens, then SiLU: y_t = silu(bias + f sum of
// w_j x_{t - 3 + j}), f a factor of the channel's part; what lies before the step's first token is the sequence's
// state, which is replaced.
//
//   x : [N, C] bf16, rows `stride` apart     weight : [C, 4] bf16, the newest input's tap last
//   bias : [C] bf16 or null     y : [N, C] bf16
//   inputs : [slots, 3, C] bf16, slots `slot_stride` apart; row 2 is the newest
//   starts : [B + 1] int32     positions : [N] int32; the state of a sequence that begins at 0 is zeros, not read
//   slots : [B] int32; -1, or fewer tokens than `min_tokens`: the sequence's rows and state stay as they are
//   math : float32, rounded once on store
//   grid : (ceil(C / 1024), ceil(N / tile_tokens), 1)    block : (128, 1, 1)    shared : none
//   needs: C % 8 == 0; 16-byte aligned arrays, rows and slots; y apart from x (ops/cuda/recurrent/conv.py checks)
//   check: tests/gpu/recurrent/test_causal_conv.py against ops/reference/recurrent.py, 1 bf16 ulp, states to the bit
#include "math/activation.cuh"
#include "math/bf16.cuh"
#include "math/reduce.cuh"
#include "sync/pdl.cuh"

constexpr int kThreads = WISP_CONV_THREADS;
constexpr int kTaps = 4, kPast = kTaps - 1;

// By value, as ops/cuda/recurrent/arguments.py fills it.
struct Shape {
  int64_t stride, slot_stride;  // elements
  int tokens, sequences, channels;
  int tile_tokens;  // 1: every sequence has one token
  int min_tokens;   // of a sequence that is convolved, at least 1
  int ends[2];      // of the first two parts of the channels, multiples of 8
  float factors[3];

  __device__ __forceinline__ float factor(int channel) const {
    return channel < ends[0] ? factors[0] : channel < ends[1] ? factors[1] : factors[2];
  }
};

// The sequence that owns a token: the last that begins at or before it. Each lane counts some; there is no other use.
__device__ __forceinline__ int sequence_of(const int* starts, int sequences, int token) {
  int count = 0;
  for (int i = threadIdx.x % 32; i < sequences; i += 32) count += starts[i] <= token;
  return warp_sum(count) - 1;
}

struct Channels {
  float taps[kTaps][kBf16Vec], bias[kBf16Vec];

  __device__ __forceinline__ Channels(const bf16* weight, const bf16* biases, int first, float factor) : bias{} {
#pragma unroll
    for (int i = 0; i < kTaps; i++) {
      float values[8];  // two channels' taps
      load8(weight + static_cast<int64_t>(first) * kTaps + 8 * i, values);
#pragma unroll
      for (int tap = 0; tap < kTaps; tap++) {
        taps[tap][2 * i] = factor * values[tap];
        taps[tap][2 * i + 1] = factor * values[kTaps + tap];
      }
    }
    if (biases != nullptr) load8(biases + first, bias);
  }

  __device__ __forceinline__ void convolve(const uint4 (&past)[kPast], const uint4& newest, bf16* y) const {
    float sums[8];
#pragma unroll
    for (int c = 0; c < 8; c++) sums[c] = bias[c];
#pragma unroll
    for (int tap = 0; tap < kTaps; tap++) {
      float values[8];
      unpack8(tap < kPast ? past[tap] : newest, values);
#pragma unroll
      for (int c = 0; c < 8; c++) sums[c] = fmaf(taps[tap][c], values[c], sums[c]);
    }
#pragma unroll
    for (int c = 0; c < 8; c++) sums[c] = silu(sums[c]);
    store8(y, sums);
  }
};

// Load the state of a sequence of `tokens` that begins with this step's row `x`, and replace it by its last inputs.
__device__ __forceinline__ void exchange_state(uint4 (&past)[kPast], bf16* state, const bf16* x, bool is_first,
                                               int tokens, const Shape& shape) {
#pragma unroll
  for (int i = 0; i < kPast; i++) {
    past[i] = is_first ? make_uint4(0, 0, 0, 0) : load16(state + static_cast<int64_t>(i) * shape.channels);
  }
#pragma unroll
  for (int i = 0; i < kPast; i++) {
    const int from = tokens + i;  // among the old state's rows and then the tokens
    uint4 row = past[kPast - 1];
    if (from >= kPast) {
      row = load16(x + (from - kPast) * shape.stride);
    } else if (from == 1) {
      row = past[1];
    }
    store16(state + static_cast<int64_t>(i) * shape.channels, row);
  }
}

extern "C" __global__ void __launch_bounds__(kThreads)
    causal_conv(const bf16* __restrict__ x, const bf16* __restrict__ weight, const bf16* __restrict__ bias,
                bf16* inputs, const int* starts, const int* positions, const int* slots, bf16* __restrict__ y,
                Shape shape) {
  // 1. The sequence of the tile's first token.
  pdl_launch_dependents();
  const int channel = (blockIdx.x * kThreads + threadIdx.x) * kBf16Vec;
  const int first = blockIdx.y * shape.tile_tokens, last = min(first + shape.tile_tokens, shape.tokens);
  int sequence = shape.tile_tokens == 1 ? first : sequence_of(starts, shape.sequences, first);
  if (channel >= shape.channels) {
    pdl_wait();
    return;
  }
  const Channels channels(weight, bias, channel, shape.factor(channel));
  pdl_wait();

  // 2. Sequences of the tile. The tile in which a sequence begins has its first kPast tokens, wherever they are, so
  //    that one thread reads and then replaces the state.
  for (int begin, end, token = first; token < last; token = end, sequence++) {
    begin = starts[sequence], end = starts[sequence + 1];
    const int slot = slots[sequence];
    if (slot < 0 || end - begin < shape.min_tokens) continue;
    const bf16* row = x + begin * shape.stride + channel;
    uint4 past[kPast];
    int from = begin, to = min(end, max(last, begin + kPast));
    if (begin >= first) {
      bf16* state = inputs + slot * shape.slot_stride + channel;
      exchange_state(past, state, row, positions[begin] == 0, end - begin, shape);
    } else {
      from = max(first, begin + kPast), to = min(end, last);
      if (from < to) {
#pragma unroll
        for (int i = 0; i < kPast; i++) past[i] = load16(row + (from - begin - kPast + i) * shape.stride);
      }
    }
#pragma unroll 4
    for (int t = from; t < to; t++) {
      const uint4 newest = load16(row + (t - begin) * shape.stride);
      channels.convolve(past, newest, y + static_cast<int64_t>(t) * shape.channels + channel);
      past[0] = past[1], past[1] = past[2], past[2] = newest;
    }
  }
}
