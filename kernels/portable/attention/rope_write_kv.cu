// rope_write_kv.cu: optional QK-norm and RoPE on q and k; k and v to the paged cache.
//
//   qkv : [N, (Hq + 2 Hkv) * Dh] bf16, rows `row_stride` elements apart: q, k, v; q is overwritten
//   q_norm, k_norm : [Dh] bf16 or null     cosines, sines : [S, R / 2] float32     positions : [N] int32
//   slots : [N] int64, block * Tb + offset; -1 writes nothing     keys, values : [P, Hkv, Tb, Dh] bf16
//   math : float32, rounded once on store; RoPE pairs channel i of the first R with channel i + R / 2; R may be 0
//   grid : (ceil(N * (Hq + 2 Hkv) * lanes / 128), 1, 1)    block : (128, 1, 1)    shared : none
//          `lanes` threads of one warp hold a head, each two chunks: a RoPE pair, or two past R
//   needs: Dh % 8 == 0, Dh <= 256, R <= Dh; R % 16 == 0 (rope_write_kv, 16-byte accesses) or R % 8 == 0
//          (rope_write_kv_narrow, 8-byte); `lanes` divides 32; 16-byte aligned arrays, fewer than 2^31 slots
//          (ops/cuda/attention/rope.py checks). Positions are clamped to the table
//   check: tests/gpu/attention/test_rope_write_kv.py against ops/reference, max |err| 1 bf16 ulp, v equal to the bit
#include "math/bf16.cuh"
#include "math/reduce.cuh"
#include "sync/pdl.cuh"

constexpr int kThreads = WISP_ROPE_THREADS;

// By value, as ops/cuda/attention/rope.py fills it.
struct Shape {
  int64_t row_stride;
  int tokens, query_heads, kv_heads, head_size;
  int rotary_size;   // R
  int positions;     // S
  int block_tokens;  // Tb
  int lanes;         // threads a head: the power of two that holds half of its chunks, rounded up
  int interleaved;   // whether a head's channels are interleaved as rope_interleaved_<Dh>; then R = Dh, Dh % 64 == 0
  float eps;
  float norm_offset;  // added to the weights of the norms: 1 where they are zero-centred, else 0
};

template <int kVec>
__device__ __forceinline__ void load(const bf16* from, float (&to)[kVec]) {
  if constexpr (kVec == 8) {
    load8(from, to);
  } else {
    const uint2 packed = *reinterpret_cast<const uint2*>(from);
    to[0] = bf16_low(packed.x), to[1] = bf16_high(packed.x), to[2] = bf16_low(packed.y), to[3] = bf16_high(packed.y);
  }
}

template <int kVec>
__device__ __forceinline__ void store(bf16* to, const float (&from)[kVec]) {
  if constexpr (kVec == 8) {
    store8(to, from);
  } else {
    *reinterpret_cast<uint2*>(to) = make_uint2(pack_bf16(from[0], from[1]), pack_bf16(from[2], from[3]));
  }
}

// Two chunks of one head, in registers.
template <int kVec>
struct Pair {
  int first, second;  // channels at which they start
  bool has_first, has_second, is_rotary;
  float a[kVec] = {}, b[kVec] = {};

  __device__ __forceinline__ Pair(int unit, const Shape& shape, bool exists) {
    const int pairs = shape.rotary_size / (2 * kVec);
    is_rotary = unit < pairs;
    first = (is_rotary ? unit : 2 * unit) * kVec;  // past the pairs: chunks 2 pairs + 2 (unit - pairs), and the next
    second = (is_rotary ? unit + pairs : 2 * unit + 1) * kVec;
    has_first = exists && first < shape.head_size;
    has_second = exists && second < shape.head_size;
  }

  __device__ __forceinline__ void load_from(const bf16* head) {
    if (has_first) load<kVec>(head + first, a);
    if (has_second) load<kVec>(head + second, b);
  }

  // Load from a row of the QKV GEMM, in which the head's halves may be interleaved by 32 channels.
  __device__ __forceinline__ void load_interleaved(const bf16* head, bool interleaved) {
    const int from = interleaved ? first / 32 * 64 + first % 32 : first;
    if (has_first) load<kVec>(head + from, a);
    if (has_second) load<kVec>(head + (interleaved ? from + 32 : second), b);
  }

  __device__ __forceinline__ void store_to(bf16* head) const {
    if (has_first) store<kVec>(head + first, a);
    if (has_second) store<kVec>(head + second, b);
  }

  __device__ __forceinline__ float squares() const {
    float sum = 0.f;
#pragma unroll
    for (int i = 0; i < kVec; i++) sum = fmaf(a[i], a[i], fmaf(b[i], b[i], sum));
    return sum;
  }

  __device__ __forceinline__ void scale(const Pair& weights, float inverse, float offset) {
#pragma unroll
    for (int i = 0; i < kVec; i++) {
      a[i] *= inverse * (offset + weights.a[i]);
      b[i] *= inverse * (offset + weights.b[i]);
    }
  }

  __device__ __forceinline__ void rotate(const float* cosines, const float* sines) {
#pragma unroll
    for (int i = 0; i < kVec; i += 4) {
      const float4 c = *reinterpret_cast<const float4*>(cosines + first + i);
      const float4 s = *reinterpret_cast<const float4*>(sines + first + i);
      rotate_one(i, c.x, s.x), rotate_one(i + 1, c.y, s.y), rotate_one(i + 2, c.z, s.z), rotate_one(i + 3, c.w, s.w);
    }
  }

  __device__ __forceinline__ void rotate_one(int i, float c, float s) {
    const float x = a[i], y = b[i];
    a[i] = x * c - y * s;
    b[i] = y * c + x * s;
  }
};

template <int kVec>
__device__ __forceinline__ void rope(bf16* qkv, const bf16* q_norm, const bf16* k_norm, const float* cosines,
                                     const float* sines, const int* positions, const int64_t* slots, bf16* keys,
                                     bf16* values, const Shape& shape) {
  // 1. The head of this thread.
  pdl_launch_dependents();
  const int heads = shape.query_heads + 2 * shape.kv_heads, rotary_heads = heads - shape.kv_heads;
  const int index = blockIdx.x * kThreads + threadIdx.x, row = index / shape.lanes, unit = index % shape.lanes;
  const int token = row / heads, head = row - token * heads;
  const bool is_query = head < shape.query_heads, is_value = head >= rotary_heads;
  const bf16* norm = is_value ? nullptr : is_query ? q_norm : k_norm;
  Pair<kVec> mine(unit, shape, token < shape.tokens), weights(unit, shape, norm != nullptr);
  weights.load_from(norm);
  const float share = 1.f / static_cast<float>(shape.head_size);
  pdl_wait();

  // 2. Load the head, its position and its slot.
  bf16* source = qkv + token * shape.row_stride + head * shape.head_size;
  int position = 0, slot = -1;
  if (mine.has_first) {
    position = min(max(positions[token], 0), shape.positions - 1);
    slot = static_cast<int>(slots[token]);
  }
  mine.load_interleaved(source, shape.interleaved);
  __syncwarp();  // q is stored where other lanes of its head have loaded

  // 3. QK-norm; lanes of other heads take part in the shuffles.
  if (q_norm != nullptr || k_norm != nullptr) {
    float sum = mine.squares();
    for (int distance = shape.lanes / 2; distance > 0; distance /= 2) {
      sum += __shfl_xor_sync(kWholeWarp, sum, distance);
    }
    const float inverse = rsqrtf(sum * share + shape.eps);
    if (norm != nullptr) mine.scale(weights, inverse, shape.norm_offset);
  }

  // 4. RoPE, then store q in row_index, k and v in the cache.
  if (mine.is_rotary && mine.has_first && !is_value) {
    const int64_t row = static_cast<int64_t>(position) * (shape.rotary_size / 2);
    mine.rotate(cosines + row, sines + row);
  }
  if (is_query) {
    mine.store_to(source);
  } else if (slot >= 0) {
    const int block = slot / shape.block_tokens, offset = slot - block * shape.block_tokens;
    const int kv_head = head - (is_value ? rotary_heads : shape.query_heads);
    const int64_t row_index = (static_cast<int64_t>(block) * shape.kv_heads + kv_head) * shape.block_tokens + offset;
    mine.store_to((is_value ? values : keys) + row_index * shape.head_size);
  }
}

#define ROPE_WRITE_KV(name, vec)                                                                        \
  extern "C" __global__ void __launch_bounds__(kThreads)                                                \
      name(bf16* qkv, const bf16* q_norm, const bf16* k_norm, const float* cosines, const float* sines, \
           const int* positions, const int64_t* slots, bf16* keys, bf16* values, Shape shape) {         \
    rope<vec>(qkv, q_norm, k_norm, cosines, sines, positions, slots, keys, values, shape);              \
  }

ROPE_WRITE_KV(rope_write_kv, 8)
ROPE_WRITE_KV(rope_write_kv_narrow, 4)
