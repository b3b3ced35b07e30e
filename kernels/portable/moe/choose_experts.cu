// choose_experts.cu: the K experts of each token and their weights, of a router's logits; a warp a token.
//
//   logits     : [ranges, N, E] float32, which are added (router_logits.cu)
//   bias, correction : [E] float32 or bf16, or null: added to logits; to scores where experts are chosen
//   experts    : [N, K] int32, best first; of equal ones the lower index     weights : [N, K] float32
//   math : float32. Scores are softmax or sigmoid of the logits. With groups, only experts of the groups whose two best
//          corrected scores have the largest sums. Weights are the chosen scores, over their sum if normalized, x
//          scale. NaN is chosen last, and still K different experts
//   grid : (ceil(N / 4), 1, 1)     block: (128, 1, 1)     shared: 4 x E float32 if there are groups
//   needs: E <= 128 (_4), 256 (_8), 512 (_16), K <= min(E, 32), groups <= 32 of E / groups >= 2 experts
//          (ops/cuda/moe/router.py checks)
//   check: tests/gpu/moe/test_router.py against ops/reference/moe.py
#include "math/bf16.cuh"
#include "math/reduce.cuh"
#include "sync/pdl.cuh"

constexpr int kThreads = WISP_CHOOSE_THREADS;

struct ChooseArgs {
  const float* logits;
  const void* bias;
  const void* correction;
  int* experts;
  float* weights;
  int tokens, count, chosen, ranges, groups, chosen_groups;
  int bias_is_float, correction_is_float, is_sigmoid, normalizes;
  float scale;
};

__device__ __forceinline__ float number(const void* from, int is_float, int i) {
  return is_float ? static_cast<const float*>(from)[i] : __bfloat162float(static_cast<const bf16*>(from)[i]);
}

// Words in the order of numbers, NaN below all; none is 0.
__device__ __forceinline__ unsigned ordered(float value) {
  const unsigned bits = __float_as_uint(value + 0.f);  // of -0 as of 0
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 1;
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// The largest key of the warp, of equal ones that of the lowest index. Keys of which none is left are 0.
__device__ __forceinline__ void best_of_warp(unsigned& key, unsigned& index) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    const unsigned other = __shfl_xor_sync(kWholeWarp, key, distance);
    const unsigned at = __shfl_xor_sync(kWholeWarp, index, distance);
    if (other > key || (other == key && at < index)) key = other, index = at;
  }
}

// The groups that are chosen from, a bit each; `values` has the token's corrected scores.
__device__ __forceinline__ unsigned chosen_groups(const float* values, const ChooseArgs& a) {
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
    unsigned key = own, group = lane;
    best_of_warp(key, group);
    mask |= 1u << group;
    if (lane == static_cast<int>(group)) own = 0;
  }
  return mask;
}

// Experts lane + 32 i of a token, i < kOwn.
template <int kOwn>
__device__ __forceinline__ void choose(const ChooseArgs& a, int token, float* values) {
  const int lane = threadIdx.x % 32;
  float logits[kOwn], scores[kOwn];
  unsigned keys[kOwn];

  // 1. Logits, and their scores.
  float largest = -INFINITY, total = 0.f;
#pragma unroll
  for (int i = 0; i < kOwn; i++) {
    const int expert = lane + i * 32;
    logits[i] = -INFINITY;
    if (expert >= a.count) continue;
    float sum = 0.f;
    for (int range = 0; range < a.ranges; range++) {
      sum += a.logits[(static_cast<long long>(range) * a.tokens + token) * a.count + expert];
    }
    logits[i] = a.bias ? sum + number(a.bias, a.bias_is_float, expert) : sum;
    largest = fmaxf(largest, logits[i]);
  }
  largest = warp_max(largest);
#pragma unroll
  for (int i = 0; i < kOwn; i++) {
    const bool exists = lane + i * 32 < a.count;
    scores[i] = a.is_sigmoid ? 1.f / (1.f + expf(-logits[i])) : exists ? expf(logits[i] - largest) : 0.f;
    total += scores[i];
  }
  if (!a.is_sigmoid) {
    const float all = warp_sum(total);
#pragma unroll
    for (int i = 0; i < kOwn; i++) scores[i] /= all;
  }

  // 2. Keys by which experts are chosen: logits decide as scores do, and more finely.
  const bool is_plain = a.groups == 1 && !a.correction;
#pragma unroll
  for (int i = 0; i < kOwn; i++) {
    const int expert = lane + i * 32;
    keys[i] = 0;
    if (expert >= a.count) continue;
    float value = is_plain ? logits[i] : scores[i];
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
  float own_logit = -INFINITY, own_score = 0.f;
  unsigned own = 0;
#pragma unroll 1
  for (int taken = 0; taken < a.chosen; taken++) {
    unsigned key = 0, index = ~0u;
#pragma unroll
    for (int i = 0; i < kOwn; i++) {
      if (keys[i] > key) key = keys[i], index = lane + i * 32;
    }
    best_of_warp(key, index);
    float logit = 0.f, score = 0.f;
#pragma unroll
    for (int i = 0; i < kOwn; i++) {
      if (index != static_cast<unsigned>(lane + i * 32)) continue;
      logit = logits[i], score = scores[i], keys[i] = 0;
    }
    logit = __shfl_sync(kWholeWarp, logit, index % 32), score = __shfl_sync(kWholeWarp, score, index % 32);
    if (lane == taken) own = index, own_logit = logit, own_score = score;
  }

  // 4. Weights; a normalized softmax is that of the chosen logits.
  const bool is_chosen = lane < a.chosen;
  if (a.normalizes && !a.is_sigmoid) {
    const float top = warp_max(is_chosen ? own_logit : -INFINITY);
    own_score = is_chosen ? expf(own_logit - top) : 0.f;
  }
  if (a.normalizes) own_score /= warp_sum(is_chosen ? own_score : 0.f) + (a.is_sigmoid ? 1e-20f : 0.f);
  if (!is_chosen) return;
  const long long at = static_cast<long long>(token) * a.chosen + lane;
  a.experts[at] = static_cast<int>(own);
  a.weights[at] = own_score * a.scale;
}

template <int kOwn>
__device__ __forceinline__ void choose_experts(const ChooseArgs& a) {
  extern __shared__ float values[];
  const int warp = threadIdx.x / 32, token = blockIdx.x * (kThreads / 32) + warp;
  pdl_launch_dependents();
  pdl_wait();
  if (token < a.tokens) choose<kOwn>(a, token, values + warp * a.count);
}

#define CHOOSE_EXPERTS(own)                                                                                           \
  extern "C" __global__ void __launch_bounds__(kThreads) choose_experts_##own(const __grid_constant__ ChooseArgs a) { \
    choose_experts<own>(a);                                                                                           \
  }
CHOOSE_EXPERTS(4)
CHOOSE_EXPERTS(8)
CHOOSE_EXPERTS(16)
