// step.cuh: a step's phases, shared among the warps of a block. Nothing here knows which phases there are.
//
//   warps 0-7    Compute: two warpgroups
//   warps 8-9    MemoryStream: one for each warpgroup
//   warp 10      ActivationStream; for 64 sequences warp 11 too
//   warp 11      RowScaleWarp, for up to 16 sequences
#pragma once

#include "activation_stream.cuh"
#include "compute.cuh"
#include "memory_stream.cuh"
#include "sync/pdl.cuh"

__device__ __forceinline__ void sync_cluster() {
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

template <class S>
struct Initialization {
  SharedStorage<S>& storage;
  template <class P, class At>
  __device__ __forceinline__ void run() {
    P::init_barriers(storage.template of<P>());
  }
};

template <class S>
__device__ __forceinline__ void init_barriers(SharedStorage<S>& storage) {
  using Layout = SmemLayout<S>;
  for (int i = 0; i < kWarpgroups; i++) {
    for (int j = 0; j < Layout::kStages; j++) {
      mbarrier_init(shared_address(&storage.stage_full[i][j]), 1);
      mbarrier_init(shared_address(&storage.stage_empty[i][j]), 4);
    }
    for (int j = 0; j < 2; j++) {
      mbarrier_init(shared_address(&storage.exchanged[i][j]), 1);
      mbarrier_init(shared_address(&storage.reduced[i][j]), 1);
    }
  }
  for (int i = 0; i < Layout::kActivationStages; i++) {
    mbarrier_init(shared_address(&storage.activations_full[i]), 32 * Layout::kCopyWarps);
    mbarrier_init(shared_address(&storage.activations_empty[i]), 8);
  }
  mbarrier_init(shared_address(&storage.planned), 32);
  mbarrier_init(shared_address(&storage.scaled), 1);
  mbarrier_init(shared_address(&storage.ended), kComputeThreads + 32 * (kWarpgroups + Layout::kHasRowScaleWarp));
  Initialization<S> of_phases{storage};
  S::Layer::template visit<Part::kLayer>(of_phases);
  storage.barriers_passed = 0;
  if constexpr (S::kReadsF16) {
    for (int i = 0; i < S::kN; i++) storage.units[i] = 1.f;  // of the embeddings
  }
  mbarrier_init_fence();
}

// Each phase's plan, by one warp.
template <class S>
struct Planning {
  SharedStorage<S>& storage;
  const Args& args;
  template <class P, class At>
  __device__ __forceinline__ void run() {
    P::plan(storage.template of<P>(), args);
  }
};

template <class S>
__device__ __forceinline__ void run_step(const CacheMaps& maps, const Args& args) {
  using Layout = SmemLayout<S>;
  static_assert(sizeof(SharedStorage<S>) <= Layout::kStorageBytes && Layout::kTotal <= kSharedBytes,
                "too much shared memory");
  extern __shared__ __align__(1024) unsigned char shared[];
  SharedStorage<S>& storage = *reinterpret_cast<SharedStorage<S>*>(shared + Layout::kStorage);
  const int rank = blockIdx.x % 2, warp = threadIdx.x / 32;
  const uint32_t ended = shared_address(&storage.ended);
  if (threadIdx.x == 0) init_barriers(storage);
  sync_cluster();

  if (threadIdx.x < kComputeThreads) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 216;");
    pdl_wait();
    if (warp == 0) {
      Planning<S> planning{storage, args};
      S::Layer::template visit<Part::kLayer>(planning);
      mbarrier_arrive(shared_address(&storage.planned));
    }
    sync_compute();
    Compute<S>(args, shared, storage, rank).run_step();
    mbarrier_arrive(ended);
  } else {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 72;");
    const int role = warp - kComputeThreads / 32;
    if (role < kWarpgroups) {  // weights depend on no kernel before this one
      MemoryStream<S>(args, shared, storage, maps, rank, role).run_step();
      mbarrier_arrive(ended);
    } else if (role < kWarpgroups + Layout::kCopyWarps) {
      pdl_wait();
      ActivationStream<S> stream(args, shared, storage, rank, role - kWarpgroups);
      stream.run_step();
      stream.wait_for_end();
    } else if (Layout::kHasRowScaleWarp) {
      pdl_wait();
      RowScaleWarp<S>{args, storage}.run_step();
      mbarrier_arrive(ended);
    }
  }
  __syncwarp();
  pdl_launch_dependents();
  sync_cluster();  // no block leaves while its peer may send it sums
  if (threadIdx.x == 0) {
    // The last to leave sets both counters back: by then no block waits.
    unsigned before;
    asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(args.counters + 2), "r"(gridDim.x - 1)
                 : "memory");
    if (before == gridDim.x - 1) args.counters[1] = 0;
  }
}

// The kernel of up to N sequences for weights of a format, the head's and the cache's if those are not bf16.
#if WISP_WINDOW_PERIOD > 1
#define WISP_CACHE_MAPS                                                                 \
  const __grid_constant__ CUtensorMap keys, const __grid_constant__ CUtensorMap values, \
      const __grid_constant__ CUtensorMap full_keys, const __grid_constant__ CUtensorMap full_values
#define WISP_CACHE_MAP_POINTERS &keys, &values, &full_keys, &full_values
#else
#define WISP_CACHE_MAPS const __grid_constant__ CUtensorMap keys, const __grid_constant__ CUtensorMap values
#define WISP_CACHE_MAP_POINTERS &keys, &values, nullptr, nullptr
#endif
#define PERSISTENT_DECODE(N, ...)                                                  \
  extern "C" __global__ void __launch_bounds__(kThreads, 1)                        \
      persistent_decode_n##N(WISP_CACHE_MAPS, const __grid_constant__ Args args) { \
    run_step<DecodeStep<N, __VA_ARGS__>>({WISP_CACHE_MAP_POINTERS}, args);         \
  }
