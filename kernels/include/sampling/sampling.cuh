// sampling.cuh: memory, row parameters and block reductions of the sampling kernels.
//
// Kernels run in this order: sample_argmax, sample_histogram, sample_token, sample_logprobs. Each has C blocks a row,
// grid (C, rows); a row's last block to arrive finishes it. With log-probabilities the grid has the rows twice: first
// the R rows to sample, then the same R as reports of the raw logits (a "task" is either).
#pragma once
#include "sampling/logit_order.cuh"
#include "sync/pdl.cuh"

constexpr int kThreads = WISP_SAMPLING_THREADS, kWarps = kThreads / 32;
// Candidates that one block sorts; more take the slow path over the whole row.
constexpr int kCandidates = WISP_SAMPLING_CANDIDATES;

// The parameters of a step: a header, then max_rows rows. ops/cuda/sampling/sampler.py has the same 64 bytes of each.
struct Header {
  int live;  // valid rows; those after them are padding
  int reserved[15];
};

struct Row {
  float temperature;
  int top_k;
  float top_p, min_p;
  u64 seed, step;
  float presence, frequency;
  int count_start, count_stop, bias_start, bias_stop;  // in the arena's entries
  int mask_row;                                        // in the arena's masks; -1 allows all
  float repetition;                                    // penalty of tokens seen; 1: none
};

struct Entry {
  int token;
  int value;  // count of its occurrences, or the bits of its float32 bias
};

// Device memory of one sampler, by value; ops/cuda/sampling/sampler.py fills it. T tasks, at most 2 * max_rows.
struct Arena {
  const Entry* entries;       // penalties and biases of all rows
  const uint32_t* masks;      // [max_rows, ceil(V / 32)], bit set = token allowed
  const uint32_t* seen;       // [max_rows, ceil(V / 32)], bit set = token that the row's repetition penalty counts
  float* adjusted;            // [max_rows, V]: rows with penalties, bias or a mask, after those
  u64* argmax;                // [T] rank of the best logit
  u64* partials;              // [blocks] result of each block of a row
  u64* masses;                // [T, kBins] sums of weights
  u64* totals;                // [T] sum of all weights, reports only
  u64* candidates;            // [T, kCandidates] ranks
  uint32_t* counts;           // [T, kBins]
  uint32_t* candidate_count;  // [T] may exceed kCandidates, whose rest is not stored
  uint32_t* arrived;          // [T] finished blocks; zero between kernels
  int* tokens;                // [max_rows]
  uint8_t* is_sound;          // [max_rows]
  float* logprobs;            // [max_rows]
  int* top_ids;               // [R, K], K = min(report, V)
  float* top_logprobs;        // [R, K]
  int vocab, max_rows;
};

// The work of a block: one row, to sample from or to report on.
struct Task {
  Row row;
  const float* logits;     // [V], the raw ones
  int index, task, vocab;  // row of the results, row of the arena's [T] arrays
  bool is_report;

  __device__ bool is_penalised() const {
    return row.count_start < row.count_stop && (row.presence != 0 || row.frequency != 0);
  }
  __device__ bool has_repetition() const { return row.repetition != 1; }
  __device__ bool is_adjusted() const {
    return is_penalised() || has_repetition() || row.bias_start < row.bias_stop || row.mask_row >= 0;
  }
  __device__ const float* source(const Arena& arena) const {
    return is_adjusted() ? arena.adjusted + int64_t(index) * vocab : logits;
  }
  __device__ bool by_count() const { return is_report ? row.top_k > 0 : 0 < row.top_k && row.top_k < vocab; }
  __device__ bool by_mass() const { return row.top_p < 1; }
  __device__ bool samples() const { return is_report || row.temperature != 0; }
  __device__ bool has_threshold() const { return by_count() || by_mass(); }
  // Masked tokens are excluded from sampling, but a report lists them last. Ids past V pad the last group of four.
  __device__ bool includes(float x, int token) const { return is_report ? token < vocab : x > -INFINITY; }
};

// Read the block's task and the rank of its best logit (for kernels after sample_argmax); false for padding rows. All
// loads are in flight at once. `report`: best tokens to list, or -1 for no reports.
__device__ __forceinline__ bool read_task(Task& task, u64& best, const Arena& arena, const float* logits,
                                          const uint8_t* parameters, int report) {
  const int rows = report < 0 ? gridDim.y : gridDim.y / 2;
  task.task = blockIdx.y;
  task.is_report = task.task >= rows;
  task.index = task.is_report ? task.task - rows : task.task;
  task.vocab = arena.vocab;
  task.logits = logits + int64_t(task.index) * arena.vocab;
  const int live = __ldcg(&reinterpret_cast<const Header*>(parameters)->live);
  union {
    Row row;
    uint4 words[sizeof(Row) / 16];
  };
  const uint4* from = reinterpret_cast<const uint4*>(parameters + sizeof(Header)) + task.index * (sizeof(Row) / 16);
#pragma unroll
  for (int i = 0; i < sizeof(Row) / 16; i++) words[i] = __ldcg(from + i);
  best = __ldcg(arena.argmax + task.task);
  task.row = row;
  if (task.is_report) task.row = {1, min(report, arena.vocab), 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, -1, 1};
  return task.index < live;
}

struct Four {
  float x[4];
};

// Load tokens 4 * group .. + 3; those past V are -inf. Rows start anywhere if V is no multiple of 4.
__device__ __forceinline__ Four load_four(const float* row, int group, int vocab) {
  const float* from = row + 4 * group;
  if (reinterpret_cast<uintptr_t>(row) % 16 == 0 && 4 * group + 4 <= vocab) {
    const float4 four = __ldcg(reinterpret_cast<const float4*>(from));
    return {four.x, four.y, four.z, four.w};
  }
  Four four;
#pragma unroll
  for (int j = 0; j < 4; j++) four.x[j] = 4 * group + j < vocab ? __ldcg(from + j) : -INFINITY;
  return four;
}

// The groups of four tokens that are this block's.
struct Slice {
  int begin, end;
};

__device__ __forceinline__ Slice slice_of(int vocab) {
  const int groups = (vocab + 3) / 4, share = (groups + gridDim.x - 1) / gridDim.x;
  return {min(int(blockIdx.x) * share, groups), min(int(blockIdx.x + 1) * share, groups)};
}

// Iterate over a thread's groups of a slice, one in kThreads. The constructor starts the first load.
struct GroupIterator {
  const float* row;
  int group, end, vocab;
  Four four;

  __device__ GroupIterator(const float* row, Slice slice, int vocab)
      : row(row), group(slice.begin + int(threadIdx.x)), end(slice.end), vocab(vocab), four{} {
    if (group < end) four = load_four(row, group, vocab);
  }

  // Call visit(group, four) for each group, with the next one's load in flight.
  template <class Visit>
  __device__ void for_each(Visit visit) {
    for (; group < end; group += kThreads) {
      const Four now = four;
      if (group + kThreads < end) four = load_four(row, group + kThreads, vocab);
      visit(group, now);
    }
  }
};

__device__ __forceinline__ u64 warp_max(u64 value) {
#pragma unroll
  for (int offset = 16; offset; offset >>= 1) {
    const u64 other = __shfl_xor_sync(~0u, value, offset);
    value = value > other ? value : other;
  }
  return value;
}

__device__ __forceinline__ u64 warp_sum(u64 value) {
#pragma unroll
  for (int offset = 16; offset; offset >>= 1) value += __shfl_xor_sync(~0u, value, offset);
  return value;
}

// Return the largest value of the block, to every thread.
__device__ __forceinline__ u64 block_max(u64 value) {
  __shared__ u64 warps[kWarps];
  value = warp_max(value);
  __syncthreads();  // all threads have read the last call's result
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
  __syncthreads();
  return warp_max(threadIdx.x % 32 < kWarps ? warps[threadIdx.x % 32] : 0);
}

// Make each value the sum over the threads before this one; `totals` are those of the block.
template <int kValues>
__device__ __forceinline__ void block_sums_before(u64 (&values)[kValues], u64 (&totals)[kValues]) {
  __shared__ u64 warps[kValues][kWarps];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  __syncthreads();  // all threads have read the last call's result
#pragma unroll
  for (int v = 0; v < kValues; v++) {
    u64 through = values[v];
#pragma unroll
    for (int offset = 1; offset < 32; offset <<= 1) {
      const u64 other = __shfl_up_sync(~0u, through, offset);
      if (lane >= offset) through += other;
    }
    if (lane == 31) warps[v][warp] = through;
    values[v] = through - values[v];
  }
  __syncthreads();
#pragma unroll
  for (int v = 0; v < kValues; v++) {
    totals[v] = 0;
#pragma unroll
    for (int w = 0; w < kWarps; w++) {
      if (w < warp) values[v] += warps[v][w];
      totals[v] += warps[v][w];
    }
  }
}

// Add to a shared 64-bit sum by two native 32-bit adds; the sum is right once all have added.
__device__ __forceinline__ void add_shared(u64* sum, u64 value) {
  uint32_t* words = reinterpret_cast<uint32_t*>(sum);
  const uint32_t low = uint32_t(value), before = atomicAdd(words, low);
  const uint32_t high = uint32_t(value >> 32) + (before + low < before);
  if (high) atomicAdd(words + 1, high);
}

// Store this block's result; return true in the row's last block to arrive, to which all others' stores are visible.
__device__ __forceinline__ bool is_last_block(const Arena& arena, const Task& task, u64 result) {
  __shared__ bool is_last;
  __syncthreads();
  if (threadIdx.x == 0) {
    arena.partials[blockIdx.y * gridDim.x + blockIdx.x] = result;
    __threadfence();
    is_last = atomicAdd(arena.arrived + task.task, 1u) == gridDim.x - 1;
    if (is_last) arena.arrived[task.task] = 0;
    __threadfence();
  }
  __syncthreads();
  return is_last;
}

// Return the maximum of the results of the row's blocks.
__device__ __forceinline__ u64 max_partial(const Arena& arena) {
  u64 best = 0;
  for (int block = threadIdx.x; block < gridDim.x; block += kThreads) {
    const u64 other = __ldcg(arena.partials + blockIdx.y * gridDim.x + block);
    best = best > other ? best : other;
  }
  return block_max(best);
}
