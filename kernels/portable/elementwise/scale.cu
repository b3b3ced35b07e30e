// scale.cu: x *= factor in place: embeddings and logits in float32 (scale_f32), a block's results in bf16 (scale_bf16).
//
//   x : [count] float32 or bf16
//   math : float32, bf16 rounded once on store
//   grid : (ceil(count / 1024), 1, 1)    block : (128, 1, 1)    shared : none
//   needs: 16-byte aligned x (ops/cuda/elementwise/scaling.py checks)
//   check: tests/gpu/elementwise/test_scaling.py against ops/cpu/elementwise.py, float32 equal to the bit, bf16 1 ulp
#include "math/bf16.cuh"
#include "sync/pdl.cuh"

constexpr int kThreads = WISP_ROW_THREADS;

__device__ __forceinline__ float scaled(float x, float factor) {
  return x * factor;
}
__device__ __forceinline__ bf16 scaled(bf16 x, float factor) {
  return __float2bfloat16_rn(__bfloat162float(x) * factor);
}

template <class Element>
__device__ __forceinline__ void scale(Element* x, int64_t count, float factor) {
  pdl_launch_dependents();
  const int64_t at = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kBf16Vec;
  pdl_wait();
  if (at + kBf16Vec <= count) {
    float values[8];
    load8(x + at, values);
#pragma unroll
    for (int i = 0; i < 8; i++) values[i] *= factor;
    store8(x + at, values);
    return;
  }
  for (int64_t i = at; i < count; i++) x[i] = scaled(x[i], factor);
}

extern "C" __global__ void __launch_bounds__(kThreads) scale_f32(float* x, int64_t count, float factor) {
  scale(x, count, factor);
}

extern "C" __global__ void __launch_bounds__(kThreads) scale_bf16(bf16* x, int64_t count, float factor) {
  scale(x, count, factor);
}
