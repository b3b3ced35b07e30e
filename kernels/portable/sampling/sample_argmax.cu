// sample_argmax.cu: apply penalties, bias and mask to each row of logits and find its argmax, the token of greedy rows.
//
//   logits : [R, V] float32, not modified     parameters : Header, then max_rows x Row
//   report : number of best tokens that each row lists with log-probabilities, or -1
//   out  : tokens, is_sound, argmax rank of each task; clears the histogram
//   math : float32, penalties in float64 rounded once; exact, whatever C
//   grid : (C, R, 1), or (C, 2 R, 1) with reports    block : (512, 1, 1)    shared : 128 B
//   needs: V <= 262144; ids inside V and unique in a row's penalties (ops/cuda/sampling/sampler.py checks)
//   check: tests/gpu/sampling/test_sampling.py against ops/reference/sampling.py, equal
#include "sampling/sampling.cuh"

// Write this block's slice of the row with penalties (repetition first), bias and mask applied, in that order.
__device__ __forceinline__ void adjust(const Arena& arena, const Task& task, Slice slice) {
  float* adjusted = arena.adjusted + int64_t(task.index) * task.vocab;
  const int begin = 4 * slice.begin, end = min(4 * slice.end, task.vocab);
  const uint32_t* seen = arena.seen + int64_t(task.index) * ((task.vocab + 31) / 32);
  for (int token = begin + threadIdx.x; token < end; token += kThreads) {
    const float x = __ldcg(task.logits + token);
    const bool is_repeated = task.has_repetition() && (__ldcg(seen + token / 32) >> token % 32 & 1);
    adjusted[token] = !is_repeated ? x : x > 0 ? __fdiv_rn(x, task.row.repetition) : x * task.row.repetition;
  }
  __syncthreads();
  if (task.is_penalised())
    for (int e = task.row.count_start + threadIdx.x; e < task.row.count_stop; e += kThreads) {
      const Entry entry = arena.entries[e];
      if (entry.token < begin || entry.token >= end) continue;
      const double penalty =
          double(entry.value > 0 ? task.row.presence : 0.0f) + double(task.row.frequency) * entry.value;
      adjusted[entry.token] = float(__ldcg(adjusted + entry.token) - penalty);
    }
  __syncthreads();
  for (int e = task.row.bias_start + threadIdx.x; e < task.row.bias_stop; e += kThreads) {
    const Entry entry = arena.entries[e];
    if (begin <= entry.token && entry.token < end) atomicAdd(adjusted + entry.token, __int_as_float(entry.value));
  }
  __syncthreads();
  if (task.row.mask_row < 0) return;
  const uint32_t* mask = arena.masks + int64_t(task.row.mask_row) * ((task.vocab + 31) / 32);
  for (int token = begin + threadIdx.x; token < end; token += kThreads)
    if (!(mask[token / 32] >> token % 32 & 1)) adjusted[token] = -INFINITY;
  __syncthreads();
}

// Zero the histogram that the next kernel adds to, each block its share of the bins.
__device__ __forceinline__ void clear(const Arena& arena, const Task& task) {
  if (blockIdx.x == 0 && threadIdx.x == 0) arena.candidate_count[task.task] = 0, arena.totals[task.task] = 0;
  if (!task.has_threshold()) return;
  const int64_t first = int64_t(task.task) * kBins;
  for (int bin = blockIdx.x * kThreads + threadIdx.x; bin < kBins; bin += gridDim.x * kThreads) {
    if (task.by_count()) arena.counts[first + bin] = 0;
    if (task.by_mass()) arena.masses[first + bin] = 0;
  }
}

extern "C" __global__ void __launch_bounds__(kThreads, 2)
    sample_argmax(const Arena arena, const float* logits, const uint8_t* parameters, int report) {
  pdl_launch_dependents();
  pdl_wait();
  Task task;
  u64 best;  // undefined before this kernel
  if (!read_task(task, best, arena, logits, parameters, report)) return;

  // 1. Prepare: the adjusted copy where the row needs one, and zeroed bins where it has a threshold.
  const Slice slice = slice_of(task.vocab);
  if (task.is_adjusted()) adjust(arena, task, slice);
  if (task.samples()) clear(arena, task);

  // 2. The best of this slice. A thread's ids ascend, so the first among equals stays.
  uint32_t best_order = 0;
  int best_token = 0;
  GroupIterator(task.source(arena), slice, task.vocab).for_each([&](int group, const Four& four) {
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const uint32_t order = order_bits(four.x[j]);
      if (order > best_order) best_order = order, best_token = 4 * group + j;
    }
  });
  best = block_max(best_order ? rank_of(best_order, best_token) : 0);

  // 3. The last block to arrive has the best of all.
  if (!is_last_block(arena, task, best)) return;
  best = max_partial(arena);
  if (threadIdx.x != 0) return;
  arena.argmax[task.task] = best;
  if (task.is_report) return;
  const int token = token_of(best);
  arena.tokens[task.index] = token;
  arena.is_sound[task.index] = isfinite(__ldcg(task.logits + token));
}
