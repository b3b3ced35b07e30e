// activate.cu: function between an MLP's projections where the GEMM has none: y = gelu(gate) * up (activate_gelu),
// silu(scale * gate) * up (activate_silu) or max(x, 0)^2 (activate_relu2).
//
//   x : [N, 2 F] bf16, gate and up interleaved by eights; of activate_relu2 [N, F], which y may be
//   y : [N, F] bf16, row-major
//   math : float32, rounded once on store; GELU in its approximation by tanh
//   grid : (N, ceil(F / 1024), 1)    block : (128, 1, 1)    shared : none
//   needs: F % 8 == 0; 16-byte aligned arrays, y apart from x but for activate_relu2
//          (ops/cuda/elementwise/activation.py checks)
//   check: tests/gpu/elementwise/test_activation.py against ops/reference/dense.py, max |err| 1 bf16 ulp
#include "math/activation.cuh"
#include "math/bf16.cuh"
#include "sync/pdl.cuh"

constexpr int kThreads = WISP_ROW_THREADS;

// Eight columns of a row: of `inputs` neighbours of x, of one of y.
template <int kInputs, class Function>
__device__ __forceinline__ void activate(const bf16* x, bf16* y, int columns, Function function) {
  pdl_launch_dependents();
  const int column = (blockIdx.y * kThreads + threadIdx.x) * kBf16Vec;
  pdl_wait();
  if (column >= columns) return;
  const int64_t at = static_cast<int64_t>(blockIdx.x) * columns + column;
  float first[8], second[8] = {};
  load8(x + at * kInputs, first);
  if constexpr (kInputs == 2) load8(x + at * kInputs + kBf16Vec, second);
#pragma unroll
  for (int i = 0; i < 8; i++) first[i] = function(first[i], second[i]);
  store8(y + at, first);
}

extern "C" __global__ void __launch_bounds__(kThreads) activate_gelu(const bf16* x, bf16* y, int columns, float) {
  activate<2>(x, y, columns, [](float gate, float up) { return gelu_tanh(gate) * up; });
}

extern "C" __global__ void __launch_bounds__(kThreads) activate_silu(const bf16* x, bf16* y, int columns, float scale) {
  activate<2>(x, y, columns, [=](float gate, float up) { return silu(scale * gate) * up; });
}

extern "C" __global__ void __launch_bounds__(kThreads) activate_relu2(const bf16* x, bf16* y, int columns, float) {
  activate<1>(x, y, columns, [](float value, float) { return squared_relu(value); });
}
