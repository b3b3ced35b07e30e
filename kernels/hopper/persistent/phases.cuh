// phases.cuh: a step as lists of phases, of which every warp role runs its share in the same order.
//
// A phase is a type of static functions, one a role; what it does not define is Phase's, which does nothing. The lists
// themselves are in layers.cuh. Between two phases lies a barrier of the whole grid where the first one has kSignals.
#pragma once

#include "model.cuh"

constexpr int max_of(int a) {
  return a;
}
template <class... More>
constexpr int max_of(int a, int b, More... more) {
  return max_of(a > b ? a : b, more...);
}

struct Phase {
  static constexpr bool kSignals =
      true;  // ends with an arrival at the grid's barrier: the next phase reads its results
  static constexpr bool kReadsRowScales = false;  // needs 1 / rms of each row of the residual
  static constexpr int kStageBytes = 0;           // of the memory pipeline: the largest tile that it streams
  static constexpr int kScratchBytes = 0;         // of shared memory, while no activations are in it

  // Of shared memory, all step long.
  template <int N>
  struct Storage {};

  // One warp of the compute warpgroups, before the first phase.
  template <class OwnStorage>
  static __device__ __forceinline__ void plan(OwnStorage& storage, const Args& args) {}
  // The compute warpgroups, before the first phase.
  template <class Compute>
  static __device__ __forceinline__ void begin_step(Compute& compute) {}

  // The memory stream: weights, and whatever else was in memory before the step.
  template <class Stream>
  static __device__ __forceinline__ void stream_memory(Stream& stream) {}
  // The activation stream: results of the phases before, after the grid's barrier.
  template <class Stream>
  static __device__ __forceinline__ void stream_activations(Stream& stream) {}
  // The compute warpgroups.
  template <class Compute>
  static __device__ __forceinline__ void compute(Compute& compute) {}
};

// A phase's own storage, found by the phase's type.
template <class P, int N>
struct StorageOf : P::template Storage<N> {};

enum class Part { kBeforeLayers, kLayer, kAfterLayers };

// Where a phase is: in which list, its index there, the grid's barriers in the list before it, and whether one of them
// lies right before it.
template <Part kListPart, int kIndexInList, int kBarriersInList, bool kIsAfterBarrier>
struct Position {
  static constexpr Part kPart = kListPart;
  static constexpr int kIndex = kIndexInList, kBarriersBefore = kBarriersInList;
  static constexpr bool kStartsAtBarrier = kIsAfterBarrier;
};

template <class... P>
struct Phases {
  static constexpr int kBarriers = (int{P::kSignals} + ...);
  static constexpr int kStageBytes = max_of(P::kStageBytes...), kScratchBytes = max_of(P::kScratchBytes...);

  template <int N>
  struct Storage : StorageOf<P, N>... {};

  // Call `role.template run<P, Position>()` for each phase, in order.
  template <Part kPart, class Role>
  static __device__ __forceinline__ void visit(Role& role) {
    visit_rest<Position<kPart, 0, 0, kPart != Part::kBeforeLayers>, Role, P...>(role);
  }

 private:
  template <class At, class Role, class First, class... Rest>
  static __device__ __forceinline__ void visit_rest(Role& role) {
    role.template run<First, At>();
    if constexpr (sizeof...(Rest) > 0) {
      using Next = Position<At::kPart, At::kIndex + 1, At::kBarriersBefore + First::kSignals, First::kSignals>;
      visit_rest<Next, Role, Rest...>(role);
    } else {
      static_assert(First::kSignals || At::kPart == Part::kAfterLayers, "a list ends at the grid's barrier");
    }
  }
};

// One decode step for up to kSequences sequences: the phases before the layers, of each layer, and after them.
template <int kSequences, class BeforeLayers, class EachLayer, class AfterLayers>
struct Step {
  static constexpr int kN = kSequences;
  using Before = BeforeLayers;
  using Layer = EachLayer;
  using After = AfterLayers;
  // Tiles begin at multiples of 1,024 bytes, as the 128-byte swizzle needs.
  static constexpr int kStageBytes =
      (max_of(Before::kStageBytes, Layer::kStageBytes, After::kStageBytes) + 1023) / 1024 * 1024;
  static constexpr int kScratchBytes = max_of(Before::kScratchBytes, Layer::kScratchBytes, After::kScratchBytes);

  struct Storage : Before::template Storage<kN>, Layer::template Storage<kN>, After::template Storage<kN> {};

  // The number of a phase: how often the grid's barrier is passed before it.
  template <class At>
  static __device__ __forceinline__ int phase_number(int layer) {
    return Before::kBarriers + layer * Layer::kBarriers + At::kBarriersBefore;
  }
};
