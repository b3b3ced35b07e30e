// choose_experts.cu: the K experts of each of many tokens and their weights, of a router's logits; a warp a token.
//
//   logits  : [N, stride] float32 (router_logits.cu), of which column E is copied to gates : [N] float32, or null
//   experts : [N, K] int32, best first; of equal ones the lower index     weights : [N, K] float32
//   math : float32, of expert_choice.cuh
//   grid : (ceil(N / 4), 1, 1)     block: (128, 1, 1)     shared: 4 x E float32, twice that if there are groups
//   needs: E <= 128 (_4), 256 (_8), 512 (_16), K <= min(E, 32), groups <= 32 of E / groups >= 2 experts
//          (ops/cuda/moe/router.py checks)
//   check: tests/gpu/moe/test_router.py against ops/reference/moe.py
#include "expert_choice.cuh"
#include "sync/pdl.cuh"

constexpr int kThreads = WISP_CHOOSE_THREADS, kWarps = kThreads / 32;

struct ChooseArgs {
  const float* logits;
  float* gates;
  long long stride;
  ChoiceArgs choice;
  int tokens;
};

template <int kOwn>
__device__ __forceinline__ void choose_experts(const ChooseArgs& a) {
  extern __shared__ float shared[];
  const int warp = threadIdx.x / 32, token = blockIdx.x * kWarps + warp, count = a.choice.count;
  float* const logits = shared + warp * count;
  pdl_launch_dependents();
  pdl_wait();
  if (token >= a.tokens) return;
#pragma unroll
  for (int i = 0; i < kOwn; i++) {
    const int expert = threadIdx.x % 32 + i * 32;
    if (expert < count) logits[expert] = biased(a.choice, a.logits[token * a.stride + expert], expert);
  }
  if (a.gates && threadIdx.x % 32 == 0) a.gates[token] = a.logits[token * a.stride + count];
  __syncwarp();
  choose<kOwn>(a.choice, token, logits, logits + kWarps * count);
}

#define CHOOSE_EXPERTS(own)                                                                                           \
  extern "C" __global__ void __launch_bounds__(kThreads) choose_experts_##own(const __grid_constant__ ChooseArgs a) { \
    choose_experts<own>(a);                                                                                           \
  }
CHOOSE_EXPERTS(4)
CHOOSE_EXPERTS(8)
CHOOSE_EXPERTS(16)
