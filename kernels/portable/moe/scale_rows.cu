// scale_rows.cu: out[n] = x[n] sigmoid(logits[n]), the gate of a shared expert.
//
//   x, out : [N, D] bf16, row-major; out may be x     logits : [N] bf16, or float32 (_f32)
//   math : float32, rounded once on store
//   grid : (N, ceil(D / 1024), 1)     block: (128, 1, 1)     shared: none
//   needs: D % 8 == 0, 16-byte aligned x and out (ops/cuda/moe/scale_rows.py checks)
//   check: tests/gpu/moe/test_scale_rows.py against ops/reference/moe.py, max |err| 1 bf16 ulp
#include "math/bf16.cuh"
#include "sync/pdl.cuh"

constexpr int kThreads = WISP_ROW_THREADS;

__device__ __forceinline__ void scale_row(const bf16* x, float logit, bf16* out, int columns) {
  const int column = (blockIdx.y * kThreads + threadIdx.x) * kBf16Vec;
  if (column >= columns) return;
  const int64_t at = static_cast<int64_t>(blockIdx.x) * columns + column;
  const float factor = __fdividef(1.f, 1.f + __expf(-logit));
  float values[8];
  load8(x + at, values);
#pragma unroll
  for (int i = 0; i < 8; i++) values[i] *= factor;
  store8(out + at, values);
}

extern "C" __global__ void __launch_bounds__(kThreads)
    scale_rows(const bf16* x, const bf16* logits, bf16* out, int columns) {
  pdl_launch_dependents();
  pdl_wait();
  scale_row(x, __bfloat162float(logits[blockIdx.x]), out, columns);
}

extern "C" __global__ void __launch_bounds__(kThreads)
    scale_rows_f32(const bf16* x, const float* logits, bf16* out, int columns) {
  pdl_launch_dependents();
  pdl_wait();
  scale_row(x, logits[blockIdx.x], out, columns);
}
