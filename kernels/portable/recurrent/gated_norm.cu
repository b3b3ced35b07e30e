// gated_norm.cu: y = x / rms(x) * weight * silu(z) in every head; row i of y is that of row rows[i] of x and z.
//
//   x : [N, H Dv] bf16     z : [N, H Dv] bf16, rows `z_stride` apart     weight : [Dv] float32     y : [R, H Dv] bf16
//   rows : [R] int64 or null (R = N)
//   math : float32, rounded once on store; rms(x) = sqrt(mean of squares + eps) over Dv
//   grid : (ceil(R H lanes / 256), 1, 1)    block : (256, 1, 1)    shared : none
//          `lanes` threads of one warp hold a head, eight columns each
//   needs: Dv % 8 == 0, Dv <= 256; `lanes` is the power of two that holds Dv; 16-byte aligned arrays and rows, y apart
//          from x (ops/cuda/recurrent/gated_norm.py checks)
//   check: tests/gpu/recurrent/test_gated_norm.py against ops/reference/recurrent.py, 1 bf16 ulp
#include "math/activation.cuh"
#include "math/bf16.cuh"
#include "math/reduce.cuh"
#include "sync/pdl.cuh"

constexpr int kThreads = WISP_GATED_NORM_THREADS;

// By value, as ops/cuda/recurrent/arguments.py fills it.
struct Shape {
  int64_t z_stride;  // elements
  int rows, heads, head_size, lanes;
  float eps;
};

extern "C" __global__ void __launch_bounds__(kThreads)
    gated_norm(const bf16* x, const bf16* z, const float* weight, const int64_t* rows, bf16* y, Shape shape) {
  // 1. The head of this thread.
  pdl_launch_dependents();
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x, group = index / shape.lanes;
  const int row = static_cast<int>(group / shape.heads), head = static_cast<int>(group % shape.heads);
  const int column = static_cast<int>(index % shape.lanes) * kBf16Vec;
  const bool exists = row < shape.rows && column < shape.head_size;
  float scales[8] = {};
  if (exists) load8(weight + column, scales);
  pdl_wait();

  // 2. Its columns; lanes of other heads take part in the shuffles.
  const int64_t width = static_cast<int64_t>(shape.heads) * shape.head_size, at = head * shape.head_size + column;
  float values[8] = {}, gates[8] = {};
  if (exists) {
    const int64_t source = rows == nullptr ? row : rows[row];
    load8(x + source * width + at, values);
    load8(z + source * shape.z_stride + at, gates);
  }
  float squares = 0.f;
#pragma unroll
  for (int i = 0; i < 8; i++) squares = fmaf(values[i], values[i], squares);
  for (int distance = shape.lanes / 2; distance > 0; distance /= 2) {
    squares += __shfl_xor_sync(kWholeWarp, squares, distance);
  }

  // 3. The norm, and the gate.
  if (!exists) return;
  const float inverse = rsqrtf(squares / static_cast<float>(shape.head_size) + shape.eps);
#pragma unroll
  for (int i = 0; i < 8; i++) values[i] *= inverse * scales[i] * silu(gates[i]);
  store8(y + row * width + at, values);
}
