// sample_token.cu: find each row's top-k and top-p threshold, and sample one of the tokens that are kept.
//
//   in   : argmax rank, counts, masses and totals of each task, adjusted logits
//   out  : tokens of sampled rows; top_ids and top_logprobs of reports
//   math : the threshold is exact on sums of weights in units of 2^-44; Gumbel-max keys float32, within 3e-6 of float64
//   grid : (C, R, 1), or (C, 2 R, 1) with reports    block : (512, 1, 1)    shared : 33 KB
//   needs: sample_histogram before it
//   check: tests/gpu/sampling/test_sampling.py against ops/reference/sampling.py, equal unless keys or sums are within
//          1e-6
//
// Tokens in bins nearer than the threshold are sampled from at once; those in its own bins become candidates, which the
// row's last block sorts. Where they are too many to sort, that block finds the threshold over the whole row.
#include "sampling/gumbel_max.cuh"
#include "sampling/threshold.cuh"

// Offer the tokens of one group whose bits are set in `offered`.
__device__ __forceinline__ void sample_four(GumbelMax& gumbel, int group, const Four& four, uint32_t offered) {
  if (!offered) return;
  const uint4 words = token_words(group, gumbel.seed, gumbel.step);
#pragma unroll
  for (int j = 0; j < 4; j++)
    if (offered >> j & 1) gumbel.offer(four.x[j], 4 * group + j, word_at(words, j));
}

// Offer this block's tokens above the threshold's bins, and store its candidates.
__device__ __forceinline__ void visit_slice(const Arena& arena, const Task& task, const Threshold& threshold,
                                            GroupIterator& groups_of_slice, GumbelMax& gumbel) {
  u64* candidates = arena.candidates + int64_t(task.task) * kCandidates;
  groups_of_slice.for_each([&](int group, const Four& four) {
    uint32_t offered = 0;
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const float x = four.x[j];
      const int bin = bin_of(gumbel.top - x), token = 4 * group + j;
      if (bin < threshold.first) {
        offered |= uint32_t(gumbel.may_win(x)) << j;
      } else if (bin <= threshold.last && task.includes(x, token)) {
        const uint32_t index = atomicAdd(arena.candidate_count + task.task, 1u);
        if (index < kCandidates) candidates[index] = rank_of(order_bits(x), token);
      }
    }
    sample_four(gumbel, group, four, offered);
  });
}

// Slow path: find the threshold over the whole row and offer the candidates that are kept; a report lists them in
// `sorted` instead. Returns the best. Arguments by value, so that the fast path keeps its state in registers.
__device__ __noinline__ u64 sample_row(const Arena arena, const Task task, const Threshold threshold, GumbelMax gumbel,
                                       u64* sorted) {
  u64 lowest = 0;
  if (threshold.stop != kNoStop) lowest = lowest_kept(arena, task, gumbel.top, false, 0, sorted);
  if (task.by_mass()) lowest = lowest_kept(arena, task, gumbel.top, true, lowest, sorted);
  __shared__ uint32_t listed;
  if (threadIdx.x == 0) listed = 0;
  __syncthreads();
  const Slice all{0, (task.vocab + 3) / 4};
  GroupIterator(task.source(arena), all, task.vocab).for_each([&](int group, const Four& four) {
    uint32_t offered = 0;
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const float x = four.x[j];
      const u64 rank = rank_of(order_bits(x), 4 * group + j);
      if (rank < lowest || bin_of(gumbel.top - x) < threshold.first || !task.includes(x, 4 * group + j)) continue;
      if (task.is_report)
        sorted[atomicAdd(&listed, 1u)] = rank;
      else
        offered |= uint32_t(gumbel.may_win(x)) << j;
    }
    sample_four(gumbel, group, four, offered);
  });
  __syncthreads();
  return gumbel.best;
}

// Write the best tokens of a report, and their log-probabilities.
__device__ __forceinline__ void write_report(const Arena& arena, const Task& task, float top, const u64* sorted) {
  const int index = threadIdx.x, out = task.index * task.row.top_k + index;
  if (index >= task.row.top_k) return;
  const double log_sum = log_of_weights(__ldcg(arena.totals + task.task));
  arena.top_ids[out] = token_of(sorted[index]);
  arena.top_logprobs[out] = float(double(logit_of(sorted[index])) - top - log_sum);
}

extern "C" __global__ void __launch_bounds__(kThreads, 2)
    sample_token(const Arena arena, const float* logits, const uint8_t* parameters, int report) {
  __shared__ u64 sorted[kCandidates];
  pdl_launch_dependents();
  pdl_wait();
  Task task;
  u64 best;
  if (!read_task(task, best, arena, logits, parameters, report)) return;
  if (!task.samples() || (task.is_report && !task.by_count()) || !is_finite(best)) return;

  // 1. The bins of the threshold, and this slice's tokens before it.
  GroupIterator groups_of_slice(task.source(arena), slice_of(task.vocab), task.vocab);
  const Threshold threshold = find_threshold_bins(arena, task);
  GumbelMax gumbel(task.row.temperature, task.row.min_p, task.row.seed, task.row.step, logit_of(best));
  visit_slice(arena, task, threshold, groups_of_slice, gumbel);
  if (!is_last_block(arena, task, block_max(gumbel.best))) return;

  // 2. The last block of the row: sort the candidates, apply the exact threshold, offer those that are kept.
  const int count = __ldcg(arena.candidate_count + task.task);
  if (count > kCandidates) {
    gumbel.best = sample_row(arena, task, threshold, gumbel, sorted);
    if (task.is_report) sort_ranks(sorted, task.row.top_k);
  } else if (count > 0) {
    const u64* candidates = arena.candidates + int64_t(task.task) * kCandidates;
    for (int i = threadIdx.x; i < count; i += kThreads) sorted[i] = __ldcg(candidates + i);
    sort_ranks(sorted, count);
    const int kept = count_kept(task, threshold, gumbel.inverse, gumbel.top, sorted, count);
    for (int i = threadIdx.x; i < kept && !task.is_report; i += kThreads) {
      const int token = token_of(sorted[i]);
      const float x = logit_of(sorted[i]);
      if (gumbel.may_win(x))
        gumbel.offer(x, token, word_at(token_words(token / 4, gumbel.seed, gumbel.step), token % 4));
    }
  }
  if (task.is_report) return write_report(arena, task, gumbel.top, sorted);

  // 3. The maximum over all blocks.
  const u64 mine = block_max(gumbel.best), others = max_partial(arena), winner = mine > others ? mine : others;
  if (threadIdx.x == 0 && winner) arena.tokens[task.index] = int(~uint32_t(winner));
}
