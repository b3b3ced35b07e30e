// threshold.cuh: top-k and top-p threshold of a row, as a rank: tokens of at least that rank are kept.
#pragma once
#include "sampling/sampling.cuh"

constexpr int kNoStop = 0x7fffffff;

// Bins before `first` are kept completely, those after `last` dropped completely; the threshold lies between.
struct Threshold {
  int first, last;
  int stop;         // candidates that top-k keeps; kNoStop without top-k
  u64 mass_before;  // of the bins before `first`
  u64 mass;         // of the row
};

// Return the smallest sum of weights that top-p must reach, of those that add up to `mass`. The best is always kept.
__device__ __forceinline__ u64 target_mass(const Task& task, u64 mass) {
  return max(1ull, u64(ceil(fmax(double(task.row.top_p), 0.0) * double(mass))));
}

// Find the bins that contain the threshold. Every thread of every block of the row gets the same result.
__device__ __forceinline__ Threshold find_threshold_bins(const Arena& arena, const Task& task) {
  constexpr int kOwn = kBins / kThreads;
  static_assert(kBins % kThreads == 0, "each thread owns the same number of bins");
  __shared__ Threshold threshold;
  const bool by_count = task.by_count(), by_mass = task.by_mass();
  if (!by_count && !by_mass) return {kBins, kBins - 1, kNoStop, 0, 0};
  const int first = threadIdx.x * kOwn;
  const int64_t from = int64_t(task.task) * kBins + first;
  uint32_t counts[kOwn];
  u64 masses[kOwn], before[2] = {0, 0}, all[2];  // of counts, of masses
#pragma unroll
  for (int i = 0; i < kOwn; i++) {
    counts[i] = by_count ? __ldcg(arena.counts + from + i) : 0;
    masses[i] = by_mass ? __ldcg(arena.masses + from + i) : 0;
  }
#pragma unroll
  for (int i = 0; i < kOwn; i++) {
    before[0] += counts[i];
    before[1] += masses[i];
  }
  block_sums_before(before, all);

  // 1. Top-k ends in the bin whose last token is the k-th or a later one. Rows with fewer tokens keep them all.
  const u64 k = task.row.top_k;
  const bool is_counted = by_count && k <= all[0];
  if (threadIdx.x == 0) threshold = {is_counted ? 0 : kBins, kBins - 1, is_counted ? int(k) : kNoStop, 0, all[1]};
  __syncthreads();
  u64 better = before[0], heavier = before[1];
#pragma unroll
  for (int i = 0; i < kOwn; i++) {
    if (is_counted && better < k && k <= better + counts[i]) threshold.last = first + i, threshold.mass = heavier;
    better += counts[i];
    heavier += masses[i];
  }
  __syncthreads();
  const Threshold by_k = threshold;
  if (task.is_report || !(is_counted || by_mass)) return by_k;

  // 2. Top-p ends no earlier than it would if top-k kept nothing of its own last bin.
  const u64 target = target_mass(task, by_k.mass);
  __syncthreads();
  better = before[0], heavier = before[1];
#pragma unroll
  for (int i = 0; i < kOwn; i++) {
    const bool is_first = by_mass && target > 1 ? heavier < target && target <= heavier + masses[i]
                                                : first + i == (by_mass ? 0 : by_k.last);
    if (is_first)
      threshold = {first + i, is_counted ? by_k.last : first + i, is_counted ? int(k - better) : kNoStop, heavier,
                   by_k.mass};
    better += counts[i];
    heavier += masses[i];
  }
  __syncthreads();
  return threshold;
}

// Sort ranks in shared memory, best first. `sorted` has room up to the next power of two.
__device__ __forceinline__ void sort_ranks(u64* sorted, int count) {
  int size = 2;
  while (size < count) size *= 2;
  for (int i = count + threadIdx.x; i < size; i += kThreads) sorted[i] = 0;
  __syncthreads();
  for (int run = 2; run <= size; run *= 2)
    for (int stride = run / 2; stride; stride /= 2) {
      for (int pair = threadIdx.x; pair < size / 2; pair += kThreads) {
        const int low = 2 * pair - (pair & (stride - 1)), high = low + stride;
        const u64 a = sorted[low], b = sorted[high];
        if ((a < b) == !(low & run)) sorted[low] = b, sorted[high] = a;
      }
      __syncthreads();
    }
}

// Return how many of the sorted candidates are kept.
__device__ __forceinline__ int count_kept(const Task& task, const Threshold& threshold, Inverse inverse, float top,
                                          const u64* sorted, int count) {
  __shared__ int kept;
  const int stop = min(threshold.stop, count);
  if (!task.by_mass()) return stop;

  // 1. The sum of weights before each candidate that top-k keeps: before this thread's first, then one by one.
  const int own = (stop + kThreads - 1) / kThreads, first = min(int(threadIdx.x) * own, stop);
  const int last = min(first + own, stop);
  u64 before[1] = {0}, all[1];
  for (int i = first; i < last; i++) before[0] += weight_of(top - logit_of(sorted[i]), inverse);
  block_sums_before(before, all);
  if (threadIdx.x == 0) kept = 0;
  __syncthreads();

  // 2. A candidate is kept if the sum before it is below top-p of the weights that top-k keeps.
  const u64 target = target_mass(task, threshold.stop == kNoStop ? threshold.mass : threshold.mass_before + all[0]);
  u64 mass = threshold.mass_before + before[0];
  int kept_here = 0;
  for (int i = first; i < last && mass < target; i++) {
    kept_here = i + 1;
    mass += weight_of(top - logit_of(sorted[i]), inverse);
  }
  if (kept_here) atomicMax(&kept, kept_here);
  __syncthreads();
  return kept;
}

// Return the rank of the last token that top-k (or, by_mass, top-p among ranks of at least `lowest`) keeps, by ten bits
// of the rank a pass over the whole row. For one block; `bins` has room for 1,024 sums.
__device__ __noinline__ u64 lowest_kept(const Arena& arena, const Task& task, float top, bool by_mass, u64 lowest,
                                        u64* bins) {
  constexpr int kBits = 10, kBest = (1 << kBits) - 1;
  static_assert(kRankBits % kBits == 0 && 2 * kThreads == kBest + 1, "each thread owns two bins");
  __shared__ u64 shared_prefix, shared_skipped;
  const float* source = task.source(arena);
  const Inverse inverse = inverse_of(task.row.temperature);
  const int groups = (task.vocab + 3) / 4;
  u64 prefix = 0, skipped = 0, target = task.row.top_k;
  for (int shift = kRankBits - kBits; shift >= 0; shift -= kBits) {
    for (int bin = threadIdx.x; bin <= kBest; bin += kThreads) bins[bin] = 0;
    __syncthreads();
    for (int start = 0; start < groups; start += kThreads) {
      const int group = start + threadIdx.x;
      const Four four = load_four(source, min(group, groups - 1), task.vocab);
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const u64 rank = rank_of(order_bits(four.x[j]), 4 * group + j);
        const bool is_here = group < groups && task.includes(four.x[j], 4 * group + j) && rank >= lowest &&
                             rank >> shift >> kBits == prefix;
        const int bin = is_here ? int(rank >> shift) & kBest : -1;
        const u64 value = is_here ? (by_mass ? weight_of(top - four.x[j], inverse) : 1) : 0;
        // Equal logits would contend for one bin: a warp of them adds once.
        int all_equal;
        __match_all_sync(~0u, bin, &all_equal);
        const u64 sum = all_equal ? warp_sum(value) : value;
        if (bin >= 0 && (!all_equal || threadIdx.x % 32 == 0)) add_shared(bins + bin, sum);
      }
    }
    __syncthreads();
    const int bin = kBest - 2 * threadIdx.x;
    const u64 better = bins[bin], worse = bins[bin - 1];
    u64 before[1] = {better + worse}, all[1];
    block_sums_before(before, all);
    if (by_mass && shift == kRankBits - kBits) target = target_mass(task, all[0]);
    const u64 start = skipped + before[0];
    if (start < target && target <= start + better + worse) {
      const bool is_better = target <= start + better;
      shared_prefix = prefix << kBits | (is_better ? bin : bin - 1);
      shared_skipped = is_better ? start : start + better;
    }
    __syncthreads();
    prefix = shared_prefix;
    skipped = shared_skipped;
    __syncthreads();
  }
  return prefix;
}
