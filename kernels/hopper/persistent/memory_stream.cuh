// memory_stream.cuh: two warps, one for each warpgroup: all that is in memory before the step begins, in the order of
// its use: weights, and cached keys and values. They wait for nothing but a free stage, so memory stays busy while the
// block waits for others.
#pragma once

#include <cuda.h>

#include "shared_storage.cuh"
#include "sync/pdl.cuh"
#include "sync/uniform.cuh"

// Tensor maps of the cache's keys and values; `full`: of layers that see all tokens, if others have windows.
struct CacheMaps {
  const CUtensorMap *keys, *values, *full_keys, *full_values;
};

template <class S>
struct MemoryStream {
  static constexpr int kN = S::kN, kStageBytes = S::kStageBytes;
  const Args& args;
  SharedStorage<S>& storage;
  const CacheMaps maps;
  const CUtensorMap *keys, *values;  // of the layer
  int rank, warpgroup;
  uint32_t stages, full, empty;
  const LayerWeights* weights = nullptr;
  int layer = 0;
  PipelineState<SmemLayout<S>::kStages> stage{1};

  __device__ __forceinline__ MemoryStream(const Args& args, unsigned char* shared, SharedStorage<S>& storage,
                                          const CacheMaps& maps, int rank, int warpgroup)
      : args(args),
        storage(storage),
        maps(maps),
        keys(maps.keys),
        values(maps.values),
        rank(rank),
        warpgroup(uniform(warpgroup)),
        stages(shared_address(shared) + this->warpgroup * SmemLayout<S>::kStages * kStageBytes),
        full(shared_address(storage.stage_full[this->warpgroup])),
        empty(shared_address(storage.stage_empty[this->warpgroup])) {}

  __device__ __forceinline__ void run_step() {
    S::Before::template visit<Part::kBeforeLayers>(*this);
#pragma unroll 1
    for (layer = 0; layer < args.layer_count; layer++) {
      weights = &args.layers[layer];
      if constexpr (kHasWindows) {
        keys = sees_all(layer) ? maps.full_keys : maps.keys;
        values = sees_all(layer) ? maps.full_values : maps.values;
      }
      S::Layer::template visit<Part::kLayer>(*this);
    }
    S::After::template visit<Part::kAfterLayers>(*this);
  }

  template <class P, class At>
  __device__ __forceinline__ void run() {
    P::stream_memory(*this);
    if constexpr (At::kPart == Part::kLayer && At::kIndex == 0) wait_for_inputs();
  }

  // Weights depend on no kernel before this one; all else that is streamed does, and on the plan.
  __device__ __forceinline__ void wait_for_inputs() {
    if (layer != 0) return;
    pdl_wait();
    mbarrier_wait(shared_address(&storage.planned), 0);
  }

  // Wait for a free stage and announce `bytes` in it; return its address.
  __device__ __forceinline__ uint32_t acquire(int bytes) {
    mbarrier_wait(empty + stage.index * 8, stage.parity);
    if (threadIdx.x % 32 == 0) mbarrier_arrive_expect(full + stage.index * 8, bytes);
    return stages + stage.index * kStageBytes;
  }
  // The barrier of the stage that was acquired.
  __device__ __forceinline__ uint32_t barrier() const { return full + stage.index * 8; }
  // The address of its block scales.
  __device__ __forceinline__ uint32_t block_scales() const {
    return shared_address(storage.block_scales[warpgroup]) + stage.index * kStageBlockScaleBytes;
  }
  __device__ __forceinline__ void commit() {
    __syncwarp();
    stage.advance();
  }
};
