// router.cuh: each sequence's experts: those with the largest logits, of equal ones the lower. The gate of a shared
// expert is one more row of the router's, which is not chosen from.
//
// A block computes the logits of its experts for all sequences, as soon as the residual is there; no barrier follows:
// each logit shows by itself that it is written, as Q, K and V do. Then every block chooses for all sequences, a warp
// each, and makes the same list. Logits are before the norm's scale, which changes no order.
#pragma once

#include "../compute.cuh"
#include "../polled.cuh"
#include "expert_list.cuh"

// A float as a number of the same order; 0 is below all.
__device__ __forceinline__ unsigned ordered_bits(float x) {
  const unsigned bits = __float_as_uint(x + 0.f);  // of two zeros, one
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float from_ordered_bits(unsigned bits) {
  return __uint_as_float(bits & 0x80000000u ? bits & 0x7fffffffu : ~bits);
}

// Activations: type of the normed residual.
template <class Activations>
struct Router : Phase {
  static constexpr bool kEndsAtBarrier = false, kReadsRowScales = true;

  template <int N>
  struct Storage {
    uint64_t listed;  // completes when the layer's entries are there
    ExpertList<N> list;
  };

  template <class OwnStorage>
  static __device__ __forceinline__ void init_barriers(OwnStorage& storage) {
    mbarrier_init(shared_address(&storage.listed), 1);
  }

  template <class OwnStorage>
  static __device__ __forceinline__ void plan(OwnStorage& storage, const Args& args) {
    const int lane = threadIdx.x % 32;
    const unsigned live = __ballot_sync(kWholeWarp, lane < args.sequences && args.contexts[lane] > 0);
    if (lane == 0) storage.list.live = live;
  }

  // Of the first layer, as compute() does for the others.
  template <class Compute>
  static __device__ __forceinline__ void begin_step(Compute& c) {
#pragma unroll 1
    for (int expert = blockIdx.x; expert < kAllExperts; expert += gridDim.x) {
      for (int i = threadIdx.x; i < c.args.sequences; i += kComputeThreads) store(c, 0, i, expert, kNotYet);
    }
  }

  template <class Compute>
  static __device__ __forceinline__ void compute(Compute& c) {
    auto& storage = c.storage.template of<Router>();
    c.trace.mark(kRouter * 8 + kBegun);
    for (int i = threadIdx.x; i < kAllExperts; i += kComputeThreads) storage.list.sequences_of[i] = 0;
    publish_logits(c);
    c.trace.mark(kRouter * 8 + kMultiplied);
    c.begin_row_scales();
    c.wait_for_row_scales();
    sync_compute();
    choose(c, storage.list);
    sync_compute();
    if (threadIdx.x < 32) {
      storage.list.list_entries();
      __syncwarp();
      if (c.lane() == 0) mbarrier_arrive(shared_address(&storage.listed));
      if (blockIdx.x == 0 && c.args.expert_counts != nullptr) {
        storage.list.add_to_counts(c.args.expert_counts + c.layer * (2 * kExperts));
      }
    }
    sync_compute();
    storage.list.fill_slots(c.args.sequences);
    sync_compute();
    if constexpr (kHasMlpBias) add_down_biases(c, storage.list);
    c.trace.mark(kRouter * 8 + kReduced);
  }

 private:
  static constexpr int kChunks = (kHidden / 8 + 31) / 32, kEach = (kExperts + 31) / 32;  // of a lane
  static constexpr int kOwn = kAllExperts > 132 ? 2 : 1;  // experts that a block multiplies at once

  template <class Compute>
  static __device__ __forceinline__ void store(Compute& c, int layer, int sequence, int expert, unsigned bits) {
    float* to = c.args.router_logits + static_cast<int64_t>(layer % 2 * Compute::kN + sequence) * kAllExperts + expert;
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(bits) : "memory");
  }

  template <class Load>
  static __device__ __forceinline__ void load_chunks(uint4 (&chunks)[kChunks], Load load) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < kChunks; i++) {
      const bool exists = kHidden / 8 % 32 == 0 || i * 32 + lane < kHidden / 8;
      chunks[i] = exists ? load(i * 32 + lane) : make_uint4(0u, 0u, 0u, 0u);
    }
  }

  static __device__ __forceinline__ float add_pair(uint32_t w, uint32_t x, float sum) {
    return fmaf(bf16_low(w), Activations::low(x), fmaf(bf16_high(w), Activations::high(x), sum));
  }

  template <class Compute>
  static __device__ __forceinline__ void load_expert(uint4 (&weights)[kChunks], const Compute& c, int expert) {
    const bf16* from = c.weights.router + static_cast<int64_t>(expert) * kHidden;
    if constexpr (kHasSharedExpert) from = expert == kExperts ? c.weights.shared_gate : from;
    const uint4* const row = reinterpret_cast<const uint4*>(from);
    load_chunks(weights, [&](int i) { return __ldg(row + i); });
  }

  // A warp has every eighth sequence, two at once if registers hold them. The experts' weights are there before the
  // residual is.
  template <class Compute>
  static __device__ __forceinline__ void publish_logits(Compute& c) {
    constexpr int kWarps = kComputeThreads / 32;
    constexpr int kTogether = Compute::kN >= 32 && kOwn == 1 && kChunks <= 8 ? 2 : 1;
    const uint32_t passed = shared_address(&c.storage.barriers_passed);
    uint4 weights[kOwn][kChunks], x[kTogether][kChunks];
#pragma unroll 1
    for (int expert = blockIdx.x; expert < kAllExperts; expert += kOwn * gridDim.x) {
#pragma unroll
      for (int own = 0; own < kOwn; own++) {
        if (own == 0 || expert + own * gridDim.x < kAllExperts) load_expert(weights[own], c, expert + own * gridDim.x);
      }
      wait_until_passed(passed, c.phase);
#pragma unroll 1
      for (int first = threadIdx.x / 32; first < c.args.sequences; first += kTogether * kWarps) {
#pragma unroll
        for (int j = 0; j < kTogether; j++) {
          const int sequence = min(first + j * kWarps, c.args.sequences - 1);
          const uint4* const from =
              reinterpret_cast<const uint4*>(c.args.normed + static_cast<int64_t>(sequence) * kHidden);
          load_chunks(x[j], [&](int i) { return __ldcg(from + i); });
        }
#pragma unroll
        for (int j = 0; j < kTogether; j++) {
          const int sequence = first + j * kWarps;
#pragma unroll
          for (int own = 0; own < kOwn; own++) {
            const int row = expert + own * gridDim.x;
            const float sum = dot(weights[own], x[j]);
            if (c.lane() == 0 && sequence < c.args.sequences && (own == 0 || row < kAllExperts)) {
              store(c, c.layer, sequence, row, __float_as_uint(sum));
              store(c, c.layer + 1, sequence, row, kNotYet);
            }
          }
        }
      }
    }
  }

  static __device__ __forceinline__ float dot(const uint4 (&weights)[kChunks], const uint4 (&x)[kChunks]) {
    float sums[4] = {};
#pragma unroll
    for (int i = 0; i < kChunks; i++) {
      sums[0] = add_pair(weights[i].x, x[i].x, sums[0]), sums[1] = add_pair(weights[i].y, x[i].y, sums[1]);
      sums[2] = add_pair(weights[i].z, x[i].z, sums[2]), sums[3] = add_pair(weights[i].w, x[i].w, sums[3]);
    }
    return warp_sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
  }

  // One sequence's, by a warp: a lane has kEach experts in a row.
  struct Choice {
    unsigned keys[kEach];
    float scale, highest, total, score;  // of the chosen: score of the lane's
    int expert;

    // Biases are of the logits behind the norm's scale.
    __device__ __forceinline__ void begin(float row_scale, const float (&biases)[kEach]) {
      scale = kHasRouterBias ? 1.f : row_scale, highest = total = score = 0.f, expert = 0;
#pragma unroll
      for (int i = 0; i < kEach; i++) {
        const bool exists = kExperts % 32 == 0 || threadIdx.x % 32 * kEach + i < kExperts;
        float logit = __uint_as_float(keys[i]);
        if constexpr (kHasRouterBias) logit = fmaf(logit, row_scale, biases[i]);
        keys[i] = exists ? ordered_bits(logit) : 0u;
      }
    }

    __device__ __forceinline__ void take(int place) {
      const int lane = threadIdx.x % 32;
      unsigned most = 0;
#pragma unroll
      for (int i = 0; i < kEach; i++) most = max(most, keys[i]);
      const unsigned top = __reduce_max_sync(kWholeWarp, most);
      const int winner = __ffs(__ballot_sync(kWholeWarp, most == top)) - 1;
      const float logit = from_ordered_bits(top) * scale;
      if (place == 0) {
        highest = logit;
        if constexpr (!kNormalizesExperts) total = sum_of_all();
      }
      const float of_top = __expf(logit - highest);
      if constexpr (kNormalizesExperts) total += of_top;
      int which = kEach - 1;
#pragma unroll
      for (int i = kEach - 2; i >= 0; i--) which = keys[i] == top ? i : which;
#pragma unroll
      for (int i = 0; i < kEach; i++) keys[i] = lane == winner && i == which ? 0u : keys[i];
      const int chosen = winner * kEach + __shfl_sync(kWholeWarp, which, winner);
      if (lane == place) score = of_top, expert = chosen;
    }

    __device__ __forceinline__ float sum_of_all() const {
      float sum = 0.f;
#pragma unroll
      for (int i = 0; i < kEach; i++) {
        if (keys[i] != 0) sum += __expf(from_ordered_bits(keys[i]) * scale - highest);
      }
      return warp_sum(sum);
    }
  };

  // A warp has every eighth sequence, all of them at once: their steps hide each other's latency.
  template <class Compute, class List>
  static __device__ __forceinline__ void choose(Compute& c, List& list) {
    constexpr int kWarps = kComputeThreads / 32, kTogether = (Compute::kN + kWarps - 1) / kWarps;
    const int warp = threadIdx.x / 32, lane = c.lane();
    const unsigned live = list.live >> warp;  // bit 8 i: of the warp's i-th
    Choice choices[kTogether];
    float gate = 0.f;  // logit of the warp's sequence of the lane's number
    float biases[kEach] = {};
    if constexpr (kHasRouterBias) load_biases(c.weights, biases);
    load_keys(c, warp, live, choices, gate);
#pragma unroll
    for (int i = 0; i < kTogether; i++) choices[i].begin(c.storage.row_scales[warp + i * kWarps], biases);
#pragma unroll 1
    for (int place = 0; place < kChosenExperts; place++) {
#pragma unroll
      for (int i = 0; i < kTogether; i++) choices[i].take(place);
    }
#pragma unroll
    for (int i = 0; i < kTogether; i++) {
      const int sequence = warp + i * kWarps;
      if (!(live >> (i * kWarps) & 1) || lane >= kChosenExperts) continue;
      list.chosen[sequence][lane] = choices[i].expert;
      list.weights[sequence][lane] = choices[i].score / choices[i].total * c.args.routed_scale;
      atomicOr(&list.sequences_of[choices[i].expert], 1u << sequence);
    }
    if constexpr (kHasSharedExpert) {
      const int sequence = warp + lane * kWarps;
      if (lane >= kTogether || !(live >> (lane * kWarps) & 1)) return;
      list.chosen[sequence][kChosenExperts] = kExperts;
      list.weights[sequence][kChosenExperts] = 1.f / (1.f + __expf(-gate * c.storage.row_scales[sequence]));
      atomicOr(&list.sequences_of[kExperts], 1u << sequence);
    }
  }

  static __device__ __forceinline__ void load_biases(const LayerWeights& weights, float (&biases)[kEach]) {
#if WISP_ROUTER_BIAS
#pragma unroll
    for (int i = 0; i < kEach; i++) biases[i] = load_row(weights.router_bias, threadIdx.x % 32 * kEach + i, kExperts);
#endif
  }

  // Biases of the down projection, as often as their experts count, to the residual: what the output GEMM left of it is
  // published, and the loads take no longer than the first weights of the experts.
  template <class Compute, class List>
  static __device__ __forceinline__ void add_down_biases(Compute& c, const List& list) {
    const int row = c.residual_row(0);
    if (row >= kHidden) return;
#pragma unroll
    for (int g = 0; g < Compute::kGroups; g++) {
      const int sequence = c.token(g);
      if (sequence >= c.args.sequences || !(list.live >> sequence & 1)) continue;
      float biases[kChosenExperts];
#pragma unroll
      for (int i = 0; i < kChosenExperts; i++) {
        const int64_t expert = list.chosen[sequence][i];
        biases[i] = list.weights[sequence][i] * __bfloat162float(c.weights.down_bias[expert * kHidden + row]);
      }
#pragma unroll
      for (int i = 0; i < kChosenExperts; i++) c.residual[0][g] += biases[i];
    }
  }

  // Logits of the warp's live sequences, as bits, and the shared expert's.
  template <class Compute, int kTogether>
  static __device__ __forceinline__ void load_keys(Compute& c, int warp, unsigned live, Choice (&choices)[kTogether],
                                                   float& gate) {
    constexpr int kWarps = kComputeThreads / 32;
    const int lane = threadIdx.x % 32, first = lane * kEach;
    const float* const from =
        c.args.router_logits + static_cast<int64_t>(c.layer % 2 * Compute::kN + warp) * kAllExperts + first;
    const float* const of_gate = from - first + lane * (kWarps * kAllExperts) + kExperts;
    spin_until([&] {
      bool are_there = true;
#pragma unroll
      for (int i = 0; i < kTogether; i++) {
        const bool is_live = live >> (i * kWarps) & 1;
#pragma unroll
        for (int j = 0; j < kEach; j++) {
          unsigned& bits = choices[i].keys[j];
          bits = 0;
          if (!is_live || (kExperts % 32 != 0 && first + j >= kExperts)) continue;
          asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];"
                       : "=r"(bits)
                       : "l"(from + i * (kWarps * kAllExperts) + j)
                       : "memory");
          are_there &= bits != kNotYet;
        }
      }
      if constexpr (kHasSharedExpert) {
        if (lane < kTogether && live >> (lane * kWarps) & 1) are_there &= is_written(gate, of_gate);
      }
      return __all_sync(kWholeWarp, are_there);
    });
  }
};
