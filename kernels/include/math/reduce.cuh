// reduce.cuh: sums and maxima over a warp or a thread block, in a fixed order: the same bits every run.
#pragma once

constexpr unsigned kWholeWarp = 0xffffffffu;

// Every lane gets the sum over its group of kLanes neighbours (a power of two).
template <int kLanes = 32>
__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(kWholeWarp, value, distance);
  }
  return value;
}

template <int kLanes = 32>
__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    value = fmaxf(value, __shfl_xor_sync(kWholeWarp, value, distance));
  }
  return value;
}

// Every thread gets the sum over the block. `scratch` holds 32 floats of shared memory, free until the next
// barrier; the block is a multiple of 32 threads. One barrier.
__device__ __forceinline__ float block_sum(float value, float* scratch) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  value = warp_sum(value);
  if (lane == 0) scratch[warp] = value;
  __syncthreads();
  return warp_sum(lane < warps ? scratch[lane] : 0.f);
}
