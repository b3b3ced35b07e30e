// sample_draw.cu: find where top-k and top-p cut each row, and draw one of the tokens that are left.
//
//   in   : best rank, counts, masses and totals of each task, adjusted logits
//   out  : tokens of rows that draw; top_ids and top_logprobs of reports
//   math : the cut is exact on sums of weights in units of 2^-44; race keys float32, within 3e-6 of float64's
//   grid : (C, R, 1), or (C, 2 R, 1) with reports    block : (512, 1, 1)    shared : 33 KB
//   needs: sample_bins before it
//   check: tests/gpu/sampling/test_sampling.py against ops/reference/sampling.py, equal but where keys or sums are 1e-6 apart
//
// Tokens in bins nearer than the cut take part in the race; those in the cut's own become candidates, which the row's
// last block sorts. Where they are too many to sort, that block alone finds the cut over the whole row.
#include "sampling/race.cuh"
#include "sampling/sampling_cut.cuh"

// Let the tokens of one group race whose bits are set in `entering`.
__device__ __forceinline__ void race_four(Race& race, int group, const Four& four, uint32_t entering) {
  if (!entering) return;
  const uint4 words = token_words(group, race.seed, race.step);
#pragma unroll
  for (int j = 0; j < 4; j++)
    if (entering >> j & 1) race.enter(four.x[j], 4 * group + j, word_at(words, j));
}

// Let this block's certain tokens race, and write down its candidates.
__device__ __forceinline__ void pass_slice(const Arena& arena, const Task& task, const Cut& cut, Walk& walk,
                                           Race& race) {
  u64* candidates = arena.candidates + int64_t(task.place) * kCandidates;
  walk.each([&](int group, const Four& four) {
    uint32_t entering = 0;
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const float x = four.x[j];
      const int bin = bin_of(race.top - x), token = 4 * group + j;
      if (bin < cut.first) {
        entering |= uint32_t(race.may_win(x)) << j;
      } else if (bin <= cut.last && task.holds(x, token)) {
        const uint32_t place = atomicAdd(arena.found + task.place, 1u);
        if (place < kCandidates) candidates[place] = rank_of(order_bits(x), token);
      }
    }
    race_four(race, group, four, entering);
  });
}

// Find the cut over the whole row and race what is left of the candidates; a report lists them in `sorted` instead.
// Returns the race's best. By value: nothing of the common way has to live in memory for this one's sake.
__device__ __noinline__ u64 pass_row(const Arena arena, const Task task, const Cut cut, Race race, u64* sorted) {
  u64 least = 0;
  if (cut.stop != kNoStop) least = last_kept(arena, task, race.top, false, 0, sorted);
  if (task.by_mass()) least = last_kept(arena, task, race.top, true, least, sorted);
  __shared__ uint32_t listed;
  if (threadIdx.x == 0) listed = 0;
  __syncthreads();
  const Slice whole{0, (task.vocab + 3) / 4};
  Walk(task.source(arena), whole, task.vocab).each([&](int group, const Four& four) {
    uint32_t entering = 0;
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const float x = four.x[j];
      const u64 rank = rank_of(order_bits(x), 4 * group + j);
      if (rank < least || bin_of(race.top - x) < cut.first || !task.holds(x, 4 * group + j)) continue;
      if (task.is_report)
        sorted[atomicAdd(&listed, 1u)] = rank;
      else
        entering |= uint32_t(race.may_win(x)) << j;
    }
    race_four(race, group, four, entering);
  });
  __syncthreads();
  return race.best;
}

// Write the best tokens of a report, and their log-probabilities.
__device__ __forceinline__ void write_report(const Arena& arena, const Task& task, float top, const u64* sorted) {
  const int place = threadIdx.x, out = task.index * task.row.top_k + place;
  if (place >= task.row.top_k) return;
  const double log_sum = log_of_weights(__ldcg(arena.totals + task.place));
  arena.top_ids[out] = token_of(sorted[place]);
  arena.top_logprobs[out] = float(double(logit_of(sorted[place])) - top - log_sum);
}

extern "C" __global__ void __launch_bounds__(kThreads, 2)
    sample_draw(const Arena arena, const float* logits, const uint8_t* parameters, int report) {
  __shared__ u64 sorted[kCandidates];
  pdl_launch_dependents();
  pdl_wait();
  Task task;
  u64 best;
  if (!read_task(task, best, arena, logits, parameters, report)) return;
  if (!task.draws() || (task.is_report && !task.by_count()) || !is_finite(best)) return;

  // 1. The bins that the cut is in, and this slice's tokens before it.
  Walk walk(task.source(arena), slice_of(task.vocab), task.vocab);
  const Cut cut = find_bins(arena, task);
  Race race(task.row.temperature, task.row.min_p, task.row.seed, task.row.step, logit_of(best));
  pass_slice(arena, task, cut, walk, race);
  if (!is_last_block(arena, task, block_max(race.best))) return;

  // 2. The last block of the row: candidates in their order, cut exactly; those that stay race too.
  const int found = __ldcg(arena.found + task.place);
  if (found > kCandidates) {
    race.best = pass_row(arena, task, cut, race, sorted);
    if (task.is_report) sort_ranks(sorted, task.row.top_k);
  } else if (found > 0) {
    const u64* candidates = arena.candidates + int64_t(task.place) * kCandidates;
    for (int i = threadIdx.x; i < found; i += kThreads) sorted[i] = __ldcg(candidates + i);
    sort_ranks(sorted, found);
    const int kept = kept_of_sorted(task, cut, race.inverse, race.top, sorted, found);
    for (int i = threadIdx.x; i < kept && !task.is_report; i += kThreads) {
      const int token = token_of(sorted[i]);
      const float x = logit_of(sorted[i]);
      if (race.may_win(x)) race.enter(x, token, word_at(token_words(token / 4, race.seed, race.step), token % 4));
    }
  }
  if (task.is_report) return write_report(arena, task, race.top, sorted);

  // 3. The winner of all blocks.
  const u64 mine = block_max(race.best), others = best_partial(arena), winner = mine > others ? mine : others;
  if (threadIdx.x == 0 && winner) arena.tokens[task.index] = int(~uint32_t(winner));
}
