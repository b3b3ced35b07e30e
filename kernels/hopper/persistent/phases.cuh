// phases.cuh: a step as lists of phases, of which every warp role runs its share in the same order.
//
// A phase is a type of static functions, one a role; functions that it does not define are Phase's, which do nothing.
// The lists themselves are in layers.cuh. All blocks wait for each other after a phase with kEndsAtBarrier.
#pragma once

#include "model.cuh"

constexpr int max_of(int a) {
  return a;
}
template <class... More>
constexpr int max_of(int a, int b, More... more) {
  return max_of(a > b ? a : b, more...);
}

constexpr int min_of(int a, int b) {
  return a < b ? a : b;
}

struct Phase {
  static constexpr bool kEndsAtBarrier = true;    // arrives at the grid's barrier: the next phase reads its results
  static constexpr bool kReadsRowScales = false;  // needs 1 / rms of each row of the residual
  static constexpr int kStageBytes = 0;           // the largest tile that it streams
  static constexpr int kActivationStages = 0;     // that its GEMM's blocks of K have, of 64 columns each
  static constexpr int kSplitMBlocks = 0;         // 64-row blocks that a cluster's four warpgroups reduce
  static constexpr bool kHasBlockScales = false;  // come with its tiles of weights
  static constexpr bool kReadsF16 = false;        // its activations are f16
  static constexpr int kScratchBytes = 0;         // shared memory that it uses while no activations are in flight
  template <int N>
  static constexpr int kMinActivationStages = 1;  // that it needs at once

  // Shared memory of its own, all step long.
  template <int N>
  struct Storage {};

  // By the thread that initializes the block's barriers.
  template <class OwnStorage>
  static __device__ __forceinline__ void init_barriers(OwnStorage& storage) {}
  // Before the first phase, by one warp.
  template <class OwnStorage>
  static __device__ __forceinline__ void plan(OwnStorage& storage, const Args& args) {}
  // Before the first phase, by the compute warpgroups.
  template <class Compute>
  static __device__ __forceinline__ void begin_step(Compute& compute) {}

  // Weights, and whatever else was in memory before the step, into stages.
  template <class Stream>
  static __device__ __forceinline__ void stream_memory(Stream& stream) {}
  // Results of other blocks, once the grid's barrier before this phase is passed.
  template <class Stream>
  static __device__ __forceinline__ void stream_activations(Stream& stream) {}
  // By the two compute warpgroups.
  template <class Compute>
  static __device__ __forceinline__ void compute(Compute& compute) {}
};

// A phase's own storage, found by the phase's type.
template <class P, int N>
struct StorageOf : P::template Storage<N> {};

enum class Part { kBeforeLayers, kLayer, kAfterLayers };

// The position of a phase: its list, its index there, and whether the grid's barrier is right before it.
template <Part kListPart, int kIndexInList, bool kIsAfterBarrier>
struct Position {
  static constexpr Part kPart = kListPart;
  static constexpr int kIndex = kIndexInList;
  static constexpr bool kStartsAtBarrier = kIsAfterBarrier;
};

// Bit b: a phase that has b of the grid's barriers before it in the list reads scales of rows.
template <class... P>
constexpr unsigned row_scale_phases() {
  unsigned bits = 0;
  int barriers = 0;
  ((bits |= unsigned{P::kReadsRowScales} << barriers, barriers += P::kEndsAtBarrier), ...);
  return bits;
}

// Phases in order; a type stands once in a list.
template <class... P>
struct Phases {
  static constexpr int kBarriers = (int{P::kEndsAtBarrier} + ...);
  static constexpr int kStageBytes = max_of(P::kStageBytes...), kScratchBytes = max_of(P::kScratchBytes...);
  static constexpr int kActivationStages = max_of(P::kActivationStages...);
  static constexpr int kSplitMBlocks = max_of(P::kSplitMBlocks...);
  static constexpr bool kHasBlockScales = (P::kHasBlockScales || ...), kReadsF16 = (P::kReadsF16 || ...);
  template <int N>
  static constexpr int kMinActivationStages = max_of(P::template kMinActivationStages<N>...);
  static constexpr unsigned kRowScalePhases = row_scale_phases<P...>();

  template <int N>
  struct Storage : StorageOf<P, N>... {};

  // Call `role.template run<P, Position>()` for each phase, in order.
  template <Part kPart, class Role>
  static __device__ __forceinline__ void visit(Role& role) {
    visit_rest<Position<kPart, 0, kPart != Part::kBeforeLayers>, Role, P...>(role);
  }

 private:
  template <class At, class Role, class First, class... Rest>
  static __device__ __forceinline__ void visit_rest(Role& role) {
    role.template run<First, At>();
    if constexpr (sizeof...(Rest) > 0) {
      using Next = Position<At::kPart, At::kIndex + 1, First::kEndsAtBarrier>;
      visit_rest<Next, Role, Rest...>(role);
    } else {
      static_assert(First::kEndsAtBarrier || At::kPart == Part::kAfterLayers, "a list ends at the grid's barrier");
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
  static constexpr int kActivationStages = max_of(Layer::kActivationStages, After::kActivationStages);  // of a block
  static constexpr int kMinActivationStages = Layer::template kMinActivationStages<kN>;
  static constexpr int kSplitMBlocks = Layer::kSplitMBlocks;
  static constexpr bool kHasBlockScales = Layer::kHasBlockScales || After::kHasBlockScales;
  static constexpr bool kReadsF16 = Layer::kReadsF16 || After::kReadsF16;

  struct Storage : Before::template Storage<kN>, Layer::template Storage<kN>, After::template Storage<kN> {};
};
