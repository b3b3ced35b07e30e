// mamba_norm.cu: gate of a Mamba-2's result, and RMS norm of groups of channels: norm(y silu(z)), norm(y) silu(z), or
// without a weight y silu(z); row i of the result is that of row rows[i].
//
//   y : [N, C] bf16     z : [N, C] bf16, rows `z_stride` apart, times z_scale     weight : [C] float32 or null
//   rows : [R] int64 or null (R = N)     out : [R, C] bf16
//   math : float32, rounded once on store; a norm divides by sqrt(mean of squares of the group + eps)
//   grid : (R, C / group, 1)    block : (group / 8 / 4, up to a multiple of 32, at most 512)    shared : 128 B
//   needs: group % 8 == 0, group <= 16384; 16-byte aligned arrays and rows, out apart from y
//          (ops/cuda/recurrent/mamba_norm.py checks)
//   check: tests/gpu/recurrent/test_mamba.py against ops/reference/mamba.py, 1 bf16 ulp
#include "math/activation.cuh"
#include "math/bf16.cuh"
#include "math/reduce.cuh"
#include "sync/pdl.cuh"

constexpr int kThreads = WISP_NORM_THREADS, kChunks = 4;  // of eight columns, that a thread holds

// By value, as ops/cuda/recurrent/mamba_arguments.py fills it.
struct Shape {
  int64_t z_stride;  // elements
  int columns, group, gates_first;
  float z_scale, eps;
};

extern "C" __global__ void __launch_bounds__(kThreads)
    mamba_norm(const bf16* y, const bf16* z, const float* weight, const int64_t* rows, bf16* out, Shape shape) {
  extern __shared__ float scratch[];
  pdl_launch_dependents();
  const int64_t index = blockIdx.x;
  const int first = blockIdx.y * shape.group;
  const auto column = [](int i) { return static_cast<int>(i * blockDim.x + threadIdx.x) * kBf16Vec; };
  pdl_wait();

  // 1. The row's group, gated if the gate is before the norm.
  const int64_t row = rows == nullptr ? index : rows[index];
  const bf16 *from = y + row * shape.columns + first, *gate = z + row * shape.z_stride + first;
  float values[kChunks][8] = {}, gates[kChunks][8] = {}, squares = 0.f;
#pragma unroll
  for (int i = 0; i < kChunks; i++) {
    if (column(i) >= shape.group) continue;
    load8(from + column(i), values[i]);
    load8(gate + column(i), gates[i]);
#pragma unroll
    for (int j = 0; j < 8; j++) {
      gates[i][j] = silu(shape.z_scale * gates[i][j]);
      if (shape.gates_first) values[i][j] *= gates[i][j];
      squares = fmaf(values[i][j], values[i][j], squares);
    }
  }

  // 2. The norm, and the gate if it is behind.
  float inverse = 1.f;
  if (weight != nullptr) inverse = rsqrtf(block_sum(squares, scratch) / static_cast<float>(shape.group) + shape.eps);
#pragma unroll
  for (int i = 0; i < kChunks; i++) {
    if (column(i) >= shape.group) continue;
    float scales[8];
#pragma unroll
    for (int j = 0; j < 8; j++) scales[j] = 1.f;
    if (weight != nullptr) load8(weight + first + column(i), scales);
#pragma unroll
    for (int j = 0; j < 8; j++) {
      values[i][j] *= inverse * scales[j];
      if (!shape.gates_first) values[i][j] *= gates[i][j];
    }
    store8(out + index * shape.columns + first + column(i), values[i]);
  }
}
