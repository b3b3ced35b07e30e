// quantize_rows.cu: rows of a checkpoint rounded to nearest: codes, and scales of rows and groups.
//
//   rows   : [R, in] bf16, float16 or float32 (by entry), row-major     in : columns
//   codes  : [R, in] bytes, or [R, in / 2] of codes of 4 bits, the even column low
//   scales : [R] float32 of rows; [R, in / group] f16 (int4) or bytes of groups; zero points 8, block scales 1
//   math   : float32, an operation at a time: ops/reference/quantizers.py has the formulas
//   report : not_finite becomes 1 where a number of a row is NaN or infinite, if it is given
//   grid   : (R, 1, 1)    block : (256, 1, 1)    shared : in / 16 floats, dynamic
//   needs  : in % 16 == 0, in % group == 0, 16-byte aligned rows (ops/cuda/weights/quantized.py checks)
//   check  : tests/gpu/gemm/test_pack_quantized.py against ops/reference/quantizers.py, exact
#include <cuda_fp16.h>

#include "math/bf16.cuh"
#include "math/reduce.cuh"
#include "sync/pdl.cuh"

constexpr int kThreads = 256;
constexpr int kStep = 16;  // columns that a thread has at once
constexpr float kE4m3Max = 448.f, kE2m1Max = 6.f, kInt8Max = 127.f, kInt4Reach = 7.5f;
constexpr int kMaxExponentByte = 26;
constexpr uint32_t kMagnitude = 0x7fffffff, kInfinity = 0x7f800000;  // bits of a float; NaN's are larger

// Pointers and sizes of a launch: ops/cuda/weights/quantized_arguments.py has the same fields.
struct QuantizeArgs {
  const void* rows;
  uint8_t* codes;
  float* row_scales;
  void* group_scales;  // null: the format has none, as of the next two
  uint8_t* zero_points;
  float* block_scales;
  int* not_finite;  // null: it is not reported
  int columns, group, column_tiles;
};

__device__ __forceinline__ void load8(const __half* address, float (&values)[8]) {
  const uint4 packed = load16(address);
  const __half2* pairs = reinterpret_cast<const __half2*>(&packed);
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const float2 pair = __half22float2(pairs[i]);
    values[2 * i] = pair.x;
    values[2 * i + 1] = pair.y;
  }
}

__device__ __forceinline__ float divided(float value, float scale) {
  return scale > 0.f ? __fdiv_rn(value, scale) : 0.f;
}

__device__ __forceinline__ uint32_t to_e4m3(float x) {
  const float magnitude = fminf(fabsf(x), kE4m3Max);
  const uint32_t bits = __float_as_uint(magnitude);
  uint32_t code = ((bits + 0x7ffffu + (bits >> 20 & 1u)) >> 20) - ((127 - 7) << 3);
  if (magnitude < 0.015625f) code = static_cast<uint32_t>(rintf(__fmul_rn(magnitude, 512.f)));
  return code | (__float_as_uint(x) & 0x80000000u) >> 24;
}

__device__ __forceinline__ float from_e4m3(uint32_t code) {
  return code < 8 ? __fmul_rn(static_cast<float>(code), 0.001953125f)
                  : __uint_as_float((code + ((127 - 7) << 3)) << 20);
}

__device__ __forceinline__ uint32_t to_e2m1(float x) {
  const float magnitude = fminf(fabsf(x), kE2m1Max);
  const float code = magnitude < 2.f   ? rintf(__fmul_rn(magnitude, 2.f))
                     : magnitude < 4.f ? rintf(magnitude) + 2.f
                                       : rintf(__fmul_rn(magnitude, 0.5f)) + 4.f;
  return static_cast<uint32_t>(code) | (__float_as_uint(x) >> 31) << 3;
}

__device__ __forceinline__ int exponent_of(float value) {
  return static_cast<int>(__float_as_uint(value) >> 23) - 127;
}

struct Fp8 {
  static constexpr int kBits = 8;
  float scale;

  __device__ Fp8(const QuantizeArgs& args, float largest) : scale(__fdiv_rn(largest, kE4m3Max)) {}
  __device__ float row_scale() const { return scale; }
  __device__ float group(const QuantizeArgs&, float, size_t, bool) const { return scale; }
  __device__ static uint32_t code(float x, float scale) { return to_e4m3(divided(x, scale)); }
};

struct Int8 {
  static constexpr int kBits = 8;
  float scale;

  __device__ Int8(const QuantizeArgs& args, float largest) : scale(__fdiv_rn(largest, kInt8Max)) {}
  __device__ float row_scale() const { return scale; }
  __device__ float group(const QuantizeArgs&, float, size_t, bool) const { return scale; }
  __device__ static uint32_t code(float x, float scale) {
    return static_cast<uint32_t>(static_cast<int>(rintf(divided(x, scale))) + 128);
  }
};

struct Int4 {
  static constexpr int kBits = 4;
  float power;  // of two; group scales are in its units

  __device__ static float rounded(float largest) {
    return __bfloat162float(__float2bfloat16_rn(__fdiv_rn(largest, kInt4Reach)));
  }
  __device__ Int4(const QuantizeArgs& args, float largest) : power(ldexpf(1.f, exponent_of(rounded(largest)))) {}
  __device__ float row_scale() const { return power; }
  __device__ float group(const QuantizeArgs& args, float largest, size_t at, bool is_first) const {
    const __half stored = __float2half_rn(__fdiv_rn(rounded(largest), power));
    if (is_first) {
      static_cast<__half*>(args.group_scales)[at] = stored;
      if (args.zero_points) args.zero_points[at] = 8;
    }
    return __fmul_rn(__half2float(stored), power);
  }
  __device__ static uint32_t code(float x, float scale) {
    return static_cast<uint32_t>(static_cast<int>(fminf(fmaxf(rintf(divided(x, scale)), -8.f), 7.f)) + 8);
  }
};

struct Nvfp4 {
  static constexpr int kBits = 4;
  float scale;

  __device__ Nvfp4(const QuantizeArgs& args, float largest) : scale(__fdiv_rn(largest, kE4m3Max * kE2m1Max)) {}
  __device__ float row_scale() const { return __fmul_rn(scale, 128.f); }
  __device__ float group(const QuantizeArgs& args, float largest, size_t at, bool is_first) const {
    const float value = from_e4m3(to_e4m3(divided(__fdiv_rn(largest, kE2m1Max), scale)));
    const __half stored = __float2half_rn(__fmul_rn(value, 128.f));
    if (is_first) static_cast<uint8_t*>(args.group_scales)[at] = static_cast<uint8_t>(__half_as_ushort(stored) >> 7);
    return __fmul_rn(value, scale);
  }
  __device__ static uint32_t code(float x, float scale) { return to_e2m1(divided(x, scale)); }
};

struct Mxfp4 {
  static constexpr int kBits = 4;
  int largest_exponent;

  __device__ Mxfp4(const QuantizeArgs& args, float largest) : largest_exponent(exponent_of(largest) - 2) {}
  __device__ float row_scale() const { return ldexpf(1.f, largest_exponent - kMaxExponentByte / 2); }
  __device__ float group(const QuantizeArgs& args, float largest, size_t at, bool is_first) const {
    const int octet = max(exponent_of(largest) - 2 - largest_exponent + kMaxExponentByte, 0);
    if (is_first) static_cast<uint8_t*>(args.group_scales)[at] = static_cast<uint8_t>(octet);
    return ldexpf(1.f, octet + largest_exponent - kMaxExponentByte);
  }
  __device__ static uint32_t code(float x, float scale) { return to_e2m1(divided(x, scale)); }
};

template <class Source>
__device__ __forceinline__ void load_step(const Source* from, float (&values)[kStep]) {
  float (&left)[8] = *reinterpret_cast<float (*)[8]>(values);
  float (&right)[8] = *reinterpret_cast<float (*)[8]>(values + 8);
  load8(from, left);
  load8(from + 8, right);
}

template <class Format, class Source>
__device__ __forceinline__ void quantize(const QuantizeArgs& args) {
  extern __shared__ float largest_of_step[];
  __shared__ float scratch[kThreads / 32];
  const int steps = args.columns / kStep;
  const size_t row = blockIdx.x;
  const Source* rows = static_cast<const Source*>(args.rows) + row * args.columns;
  float values[kStep];
  pdl_wait();

  // 1. Largest magnitudes of each step and of the row.
  float largest = 0.f;
  for (int step = threadIdx.x; step < steps; step += kThreads) {
    load_step(rows + step * kStep, values);
    uint32_t bits = 0;
#pragma unroll
    for (int i = 0; i < kStep; i++) bits = max(bits, __float_as_uint(values[i]) & kMagnitude);
    if (bits >= kInfinity && args.not_finite) *args.not_finite = 1;
    const float most = __uint_as_float(bits);
    largest_of_step[step] = most;
    largest = fmaxf(largest, most);
  }
  largest = warp_max(largest);
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = largest;
  __syncthreads();
  largest = warp_max(scratch[threadIdx.x % (kThreads / 32)]);

  // 2. Scales and codes.
  const Format format(args, largest);
  if (threadIdx.x == 0) args.row_scales[row] = format.row_scale();
  if (args.block_scales) {
    for (int i = threadIdx.x; i < args.column_tiles; i += kThreads)
      args.block_scales[row * args.column_tiles + i] = 1.f;
  }
  const int group_steps = max(args.group / kStep, 1);
  const size_t first_group = args.group ? row * (args.columns / args.group) : 0;
  for (int step = threadIdx.x; step < steps; step += kThreads) {
    const int first = step / group_steps * group_steps;
    float most = 0.f;
    for (int i = first; i < first + group_steps; i++) most = fmaxf(most, largest_of_step[i]);
    const float scale = format.group(args, most, first_group + step / group_steps, step == first);
    load_step(rows + step * kStep, values);
    uint32_t words[kStep * Format::kBits / 32] = {};
#pragma unroll
    for (int i = 0; i < kStep; i++) {
      words[i * Format::kBits / 32] |= Format::code(values[i], scale) << (i * Format::kBits % 32);
    }
    uint32_t* to = reinterpret_cast<uint32_t*>(args.codes) + (row * steps + step) * (kStep * Format::kBits / 32);
#pragma unroll
    for (int i = 0; i < kStep * Format::kBits / 32; i++) to[i] = words[i];
  }
}

#define QUANTIZE_ENTRY(name, Format, Source)                                                               \
  extern "C" __global__ void __launch_bounds__(kThreads) name(const __grid_constant__ QuantizeArgs args) { \
    pdl_launch_dependents();                                                                               \
    quantize<Format, Source>(args);                                                                        \
  }
#define QUANTIZE_ENTRIES(name, Format)       \
  QUANTIZE_ENTRY(name##_bf16, Format, bf16)  \
  QUANTIZE_ENTRY(name##_f16, Format, __half) \
  QUANTIZE_ENTRY(name##_f32, Format, float)

QUANTIZE_ENTRIES(quantize_fp8, Fp8)
QUANTIZE_ENTRIES(quantize_int8, Int8)
QUANTIZE_ENTRIES(quantize_int4, Int4)
QUANTIZE_ENTRIES(quantize_nvfp4, Nvfp4)
QUANTIZE_ENTRIES(quantize_mxfp4, Mxfp4)
