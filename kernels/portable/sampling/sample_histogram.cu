// sample_histogram.cu: histogram of each row's tokens and probabilities, by distance to the best logit.
//
//   in   : argmax rank of each task, adjusted logits     out : counts, masses, totals
//   math : weights exp(-distance / T) in units of 2^-44 (relative error 3e-7), sums exact and so in any order the same
//   grid : (C, R, 1), or (C, 2 R, 1) with reports    block : (512, 1, 1)    shared : 43 KB
//   needs: sample_argmax before it. Rows with neither top-k nor top-p, and greedy ones, cost nothing
//   check: tests/gpu/sampling/test_sampling.py, through the tokens of sample_token
#include "sampling/sampling.cuh"

// Return a weight such that tokens of at most this weight can be ignored: the others reach top-p without them.
// The best alone weighs 1, so half of (1 - p) / V each is half of what may be missing at most.
__device__ __forceinline__ u64 negligible_weight(const Task& task) {
  if (task.by_count() || !task.by_mass()) return 0;
  return u64(0.5 * (1.0 - fmax(double(task.row.top_p), 0.0)) / task.vocab * double(1ull << kWeightBits));
}

extern "C" __global__ void __launch_bounds__(kThreads, 2)
    sample_histogram(const Arena arena, const float* logits, const uint8_t* parameters, int report) {
  __shared__ u64 masses[kBins];
  __shared__ uint32_t counts[kBins];
  pdl_launch_dependents();
  pdl_wait();
  Task task;
  u64 best;
  if (!read_task(task, best, arena, logits, parameters, report)) return;
  const bool by_count = task.by_count(), by_mass = task.by_mass();
  if (!task.samples() || !(by_count || by_mass || task.is_report) || !is_finite(best)) return;

  // 1. Sums of this slice in shared memory; negligible weights in `rest`.
  GroupIterator groups_of_slice(task.source(arena), slice_of(task.vocab), task.vocab);
  for (int bin = threadIdx.x; bin < kBins; bin += kThreads) masses[bin] = 0, counts[bin] = 0;
  __syncthreads();
  const float top = logit_of(best);
  const Inverse inverse = inverse_of(task.row.temperature);
  const u64 negligible = negligible_weight(task);
  u64 rest = 0;
  groups_of_slice.for_each([&](int group, const Four& four) {
#pragma unroll
    for (int j = 0; j < 4; j++) {
      if (!task.includes(four.x[j], 4 * group + j)) continue;
      const float distance = top - four.x[j];
      const int bin = bin_of(distance);
      if (by_count) atomicAdd(counts + bin, 1u);
      if (!by_mass && !task.is_report) continue;
      const u64 weight = weight_of(distance, inverse);
      if (by_mass && weight > negligible)
        add_shared(masses + bin, weight);
      else
        rest += weight;
    }
  });
  __syncthreads();

  // 2. Add to the row's sums. The rest is a report's total, or goes to the farthest bin, where top-p never ends.
  const int64_t first = int64_t(task.task) * kBins;
  for (int bin = threadIdx.x; bin < kBins; bin += kThreads) {
    if (counts[bin]) atomicAdd(arena.counts + first + bin, counts[bin]);
    if (masses[bin]) atomicAdd(arena.masses + first + bin, masses[bin]);
  }
  rest = warp_sum(rest);
  if (threadIdx.x % 32 == 0 && rest)
    atomicAdd(task.is_report ? arena.totals + task.task : arena.masses + first + kBins - 1, rest);
}
