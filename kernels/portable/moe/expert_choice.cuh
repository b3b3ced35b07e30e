// expert_choice.cuh: the K experts of a token and their weights, by a warp, of logits in shared memory;
// choose_experts.cu and route_tokens.cu share it.
//
// Scores are softmax or sigmoid of the logits. With groups, only experts of the groups whose two best corrected scores
// have the largest sums are chosen. Weights are the chosen scores, over their sum if normalized, x scale. Of equal
// scores the lower index wins; NaN is chosen last, and still K different experts.
#pragma once

#include "math/bf16.cuh"
#include "math/reduce.cuh"

struct ChoiceArgs {
  const void* bias;        // [E] float32 or bf16, or null: added to logits
  const void* correction;  // [E] float32 or bf16, or null: added to scores where experts are chosen
  int* experts;            // [N, K], best first
  float* weights;          // [N, K]
  int count, chosen, groups, chosen_groups;
  int bias_is_float, correction_is_float, is_sigmoid, normalizes;
  float scale;
};

__device__ __forceinline__ float number(const void* from, int is_float, int i) {
  return is_float ? static_cast<const float*>(from)[i] : __bfloat162float(static_cast<const bf16*>(from)[i]);
}

// The logit of an expert of the sum of its terms.
__device__ __forceinline__ float biased(const ChoiceArgs& a, float sum, int expert) {
  return a.bias ? sum + number(a.bias, a.bias_is_float, expert) : sum;
}

// Words in the order of numbers, NaN below all; none is 0.
__device__ __forceinline__ unsigned ordered(float value) {
  const unsigned bits = __float_as_uint(value + 0.f);  // of -0 as of 0
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 1;
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// The lowest index of the warp's largest key.
__device__ __forceinline__ unsigned best_of_warp(unsigned key, unsigned index) {
  const unsigned top = __reduce_max_sync(kWholeWarp, key);
  return __reduce_min_sync(kWholeWarp, key == top ? index : ~0u);
}

// The groups that are chosen from, a bit each; `values` has the token's corrected scores.
__device__ __forceinline__ unsigned chosen_groups(const float* values, const ChoiceArgs& a) {
  const int lane = threadIdx.x % 32, size = a.count / a.groups;
  unsigned own = 0, mask = 0;
  if (lane < a.groups) {
    float first = -INFINITY, second = -INFINITY;
    for (int i = 0; i < size; i++) {
      const float value = values[lane * size + i];
      if (value > first) {
        second = first, first = value;
      } else if (value > second) {
        second = value;
      }
    }
    own = ordered(first + second);
  }
  for (int i = 0; i < a.chosen_groups; i++) {
    const unsigned group = best_of_warp(own, lane);
    mask |= 1u << group;
    if (lane == static_cast<int>(group)) own = 0;
  }
  return mask;
}

// The score of a logit; a softmax's is of the token's largest logit, and of the sum over all.
struct Scores {
  float largest, all;
  int is_sigmoid;
  __device__ float of(float logit) const {
    return is_sigmoid ? 1.f / (1.f + expf(-logit)) : expf(logit - largest) / all;
  }
};

// Write a token's experts and weights, and return the lane's: lanes from K on have none. Lanes hold experts lane + 32
// i, i < kOwn.
//
//   logits : [E] shared, with the bias     values : [E] shared, overwritten if there are groups
template <int kOwn>
__device__ __forceinline__ int choose(const ChoiceArgs& a, int token, const float* logits, float* values) {
  const int lane = threadIdx.x % 32;
  const bool is_plain = a.groups == 1 && !a.correction;
  float own_logits[kOwn];
  unsigned keys[kOwn];
  Scores scores = {-INFINITY, 0.f, a.is_sigmoid};
#pragma unroll
  for (int i = 0; i < kOwn; i++) own_logits[i] = lane + i * 32 < a.count ? logits[lane + i * 32] : -INFINITY;

  // 1. What a softmax needs of all logits, unless it is that of the chosen ones alone.
  if (!a.is_sigmoid && !(is_plain && a.normalizes)) {
#pragma unroll
    for (int i = 0; i < kOwn; i++) scores.largest = fmaxf(scores.largest, own_logits[i]);
    scores.largest = warp_max(scores.largest);
#pragma unroll
    for (int i = 0; i < kOwn; i++) {
      if (lane + i * 32 < a.count) scores.all += expf(own_logits[i] - scores.largest);
    }
    scores.all = warp_sum(scores.all);
  }

  // 2. Keys by which experts are chosen: logits decide as scores do, and more finely.
#pragma unroll
  for (int i = 0; i < kOwn; i++) {
    const int expert = lane + i * 32;
    keys[i] = 0;
    if (expert >= a.count) continue;
    float value = is_plain ? own_logits[i] : scores.of(own_logits[i]);
    if (a.correction) value += number(a.correction, a.correction_is_float, expert);
    keys[i] = ordered(value);
    if (a.groups > 1) values[expert] = value;
  }
  if (a.groups > 1) {
    __syncwarp();
    const unsigned mask = chosen_groups(values, a);
#pragma unroll
    for (int i = 0; i < kOwn; i++) {
      if (keys[i] && !(mask >> (lane + i * 32) / (a.count / a.groups) & 1)) keys[i] = 1;  // as NaN: last
    }
  }

  // 3. K times the best, which lane i keeps.
  int own = 0;
#pragma unroll 1
  for (int taken = 0; taken < a.chosen; taken++) {
    unsigned key = 0, index = 0;
#pragma unroll
    for (int i = 0; i < kOwn; i++) {
      if (keys[i] > key) key = keys[i], index = lane + i * 32;
    }
    index = best_of_warp(key, index);
#pragma unroll
    for (int i = 0; i < kOwn; i++) {
      if (index == static_cast<unsigned>(lane + i * 32)) keys[i] = 0;
    }
    if (lane == taken) own = static_cast<int>(index);
  }

  // 4. Weights; a normalized softmax is that of the chosen logits.
  const bool is_chosen = lane < a.chosen;
  const float logit = is_chosen ? logits[own] : -INFINITY;
  float weight = 0.f;
  if (a.normalizes && !a.is_sigmoid) {
    const float top = warp_max(logit);
    weight = is_chosen ? expf(logit - top) : 0.f;
  } else if (is_chosen) {
    weight = scores.of(logit);
  }
  if (a.normalizes) weight /= warp_sum(weight) + (a.is_sigmoid ? 1e-20f : 0.f);
  if (is_chosen) {
    const long long at = static_cast<long long>(token) * a.chosen + lane;
    a.experts[at] = own;
    a.weights[at] = weight * a.scale;
  }
  return own;
}
