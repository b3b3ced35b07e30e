// sample_logprobs.cu: log-probability, by the raw logits, of each row's sampled token.
//
//   out  : logprobs; NaN, and so the report's list, where the row's best logit is NaN or infinite
//   math : float64, rounded once; the sum of exponentials comes from sample_histogram
//   grid : (ceil(R / 128), 1, 1)    block : (128, 1, 1)    shared : 0
//   needs: the other three before it, with 2 R tasks
//   check: tests/gpu/sampling/test_sampling.py against ops/reference/sampling.py, max |err| 2e-6 of the largest
#include "sampling/sampling.cuh"

extern "C" __global__ void sample_logprobs(const Arena arena, const float* logits, const uint8_t* parameters, int rows,
                                           int report) {
  pdl_launch_dependents();
  pdl_wait();
  const int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= min(rows, __ldcg(&reinterpret_cast<const Header*>(parameters)->live))) return;
  const u64 best = __ldcg(arena.argmax + rows + row);
  if (!is_finite(best)) {
    arena.logprobs[row] = NAN;
    const int listed = min(report, arena.vocab);
    for (int i = row * listed; i < (row + 1) * listed; i++) arena.top_ids[i] = 0, arena.top_logprobs[i] = NAN;
    return;
  }
  const float chosen = __ldcg(logits + int64_t(row) * arena.vocab + __ldcg(arena.tokens + row));
  arena.logprobs[row] = float(double(chosen) - logit_of(best) - log_of_weights(__ldcg(arena.totals + rows + row)));
}
