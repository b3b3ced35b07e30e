// combine_rmsnorm.cu: x = what combine_experts.cu returns, residual += x in place, y = residual / rms(residual) *
// (offset + weight): a mixture's last step and the norm behind it, with the bits of combine_experts.cu and
// add_rmsnorm.cu.
//
//   sum  : of expert_sum.cuh, of R tokens     residual : [N, D] float32     weight : [D] bf16
//   rows : [R] int64, rows of residual, or null (R = N)     y : [R, D] bf16
//   offset : 0, or 1 of zero-centred weights
//   math : float32; x rounded to bf16, the residual stored unrounded, y rounded once
//   grid : (R, 1, 1)    block : (D / 8 / chunks, up to a multiple of 32, at most 512)    shared : 128 B
//   needs: D % 8 == 0; D <= 4096 (combine_rmsnorm), 8192 (_2), 16384 (_4): chunks of 8 columns a thread; 16-byte
//          aligned arrays; rows inside of residual, none twice (ops/cuda/moe/combination.py checks)
//   check: tests/gpu/moe/test_combine.py against those two kernels, equal
#include "expert_sum.cuh"
#include "math/reduce.cuh"
#include "sync/pdl.cuh"

constexpr int kNormThreads = WISP_NORM_THREADS;

struct NormArgs {
  float* residual;
  const bf16* weight;
  const int64_t* rows;
  bf16* y;
  float eps, offset;
};

template <int kChunks>
__device__ __forceinline__ void combine_row(const SumArgs& a, const NormArgs& n) {
  extern __shared__ float scratch[];
  pdl_launch_dependents();
  auto column = [](int i) { return static_cast<int>(i * blockDim.x + threadIdx.x) * kBf16Vec; };

  // 1. The weight, while the kernel before still runs.
  uint4 scale[kChunks];
#pragma unroll
  for (int i = 0; i < kChunks; i++) {
    if (column(i) < a.columns) scale[i] = load16(n.weight + column(i));
  }
  const float share = 1.f / static_cast<float>(a.columns);
  pdl_wait();

  // 2. The row, and the sum of its squares.
  const int64_t index = blockIdx.x, row = n.rows == nullptr ? index : n.rows[index];
  float values[kChunks][8] = {}, squares = 0.f;
#pragma unroll
  for (int i = 0; i < kChunks; i++) {
    if (column(i) < a.columns) load8(n.residual + row * a.columns + column(i), values[i]);
  }
#pragma unroll
  for (int i = 0; i < kChunks; i++) {
    if (column(i) >= a.columns) continue;
    float more[8];
    unpack8(expert_sum < kChunks<4 ? 8 : 4>(a, index, column(i)), more);
#pragma unroll
    for (int j = 0; j < 8; j++) values[i][j] += more[j];
    store8(n.residual + row * a.columns + column(i), values[i]);
#pragma unroll
    for (int j = 0; j < 8; j++) squares = fmaf(values[i][j], values[i][j], squares);
  }
  const float inverse = rsqrtf(block_sum(squares, scratch) * share + n.eps);

  // 3. The norm.
#pragma unroll
  for (int i = 0; i < kChunks; i++) {
    if (column(i) >= a.columns) continue;
    float scales[8];
    unpack8(scale[i], scales);
#pragma unroll
    for (int j = 0; j < 8; j++) values[i][j] *= inverse * (n.offset + scales[j]);
    store8(n.y + index * a.columns + column(i), values[i]);
  }
}

#define COMBINE_RMSNORM(name, chunks)                                               \
  extern "C" __global__ void __launch_bounds__(kNormThreads)                        \
      name(const __grid_constant__ SumArgs a, const __grid_constant__ NormArgs n) { \
    combine_row<chunks>(a, n);                                                      \
  }

COMBINE_RMSNORM(combine_rmsnorm, 1)
COMBINE_RMSNORM(combine_rmsnorm_2, 2)
COMBINE_RMSNORM(combine_rmsnorm_4, 4)
