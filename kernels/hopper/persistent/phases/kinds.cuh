// kinds.cuh: phases made of others: one of two by the kind of the layer, and two one after the other.
#pragma once

#include "../phases.cuh"

// What two phases in one need, whichever of them runs.
template <class First, class Second>
struct Pair : Phase {
  static constexpr bool kReadsRowScales = First::kReadsRowScales;
  static constexpr int kStageBytes = max_of(First::kStageBytes, Second::kStageBytes);
  static constexpr int kScratchBytes = max_of(First::kScratchBytes, Second::kScratchBytes);
  static constexpr int kActivationStages = max_of(First::kActivationStages, Second::kActivationStages);
  static constexpr int kSplitMBlocks = max_of(First::kSplitMBlocks, Second::kSplitMBlocks);
  static constexpr bool kHasBlockScales = First::kHasBlockScales || Second::kHasBlockScales;
  static constexpr bool kReadsF16 = First::kReadsF16 || Second::kReadsF16;

  template <class Compute>
  static __device__ __forceinline__ void begin_step(Compute& compute) {
    First::begin_step(compute);
    Second::begin_step(compute);
  }
};

// A layer's first phase, or its second one's where the layer is Gated DeltaNet.
template <class OfAttention, class OfDeltaNet>
struct ByKind : Pair<OfAttention, OfDeltaNet> {
  static constexpr bool kEndsAtBarrier = OfAttention::kEndsAtBarrier;
  static_assert(kEndsAtBarrier == OfDeltaNet::kEndsAtBarrier &&
                    OfAttention::kReadsRowScales == OfDeltaNet::kReadsRowScales,
                "roles pass barriers and gather scales whatever the kind");

  template <int N>
  struct Storage : StorageOf<OfAttention, N>, StorageOf<OfDeltaNet, N> {};

  template <class OwnStorage>
  static __device__ __forceinline__ void plan(OwnStorage& storage, const Args& args) {
    plan_of<OfAttention>(storage, args);
    plan_of<OfDeltaNet>(storage, args);
  }
  template <class Stream>
  static __device__ __forceinline__ void stream_memory(Stream& stream) {
    is_delta_net(stream.layer) ? OfDeltaNet::stream_memory(stream) : OfAttention::stream_memory(stream);
  }
  template <class Stream>
  static __device__ __forceinline__ void stream_activations(Stream& stream) {
    is_delta_net(stream.layer) ? OfDeltaNet::stream_activations(stream) : OfAttention::stream_activations(stream);
  }
  template <class Compute>
  static __device__ __forceinline__ void compute(Compute& compute) {
    is_delta_net(compute.layer) ? OfDeltaNet::compute(compute) : OfAttention::compute(compute);
  }

 private:
  template <class P, int N>
  static __device__ __forceinline__ void plan_of(StorageOf<P, N>& storage, const Args& args) {
    P::plan(storage, args);
  }
};

// Two phases without a barrier between them, both of which read what the barrier before the first let through.
template <class First, class Second>
struct Both : Pair<First, Second> {
  static constexpr bool kEndsAtBarrier = Second::kEndsAtBarrier;
  static_assert(!First::kEndsAtBarrier, "it would be another phase's number");

  template <class Stream>
  static __device__ __forceinline__ void stream_memory(Stream& stream) {
    First::stream_memory(stream);
    Second::stream_memory(stream);
  }
  template <class Stream>
  static __device__ __forceinline__ void stream_activations(Stream& stream) {
    First::stream_activations(stream);
    Second::stream_activations(stream);
  }
  template <class Compute>
  static __device__ __forceinline__ void compute(Compute& compute) {
    First::compute(compute);
    Second::compute(compute);
  }
};
