// compute.cuh: the two warpgroups that compute: one phase after the other.
//
// The residual stays in registers all step long, in float32: a cluster has the same rows of the output's and of the
// down GEMM, of which a thread has row l / 4 + 8 w of its warp's 16-row tile of each 64-row block, for the tokens that
// its rank finishes (l: lane, w: warpgroup).
#pragma once

#include <type_traits>

#include "activation_stream.cuh"
#include "activation_types.cuh"
#include "cluster_reduction.cuh"
#include "sync/uniform.cuh"

// One thread of a block notes when each part of a phase was over, in clocks of its SM; at the beginning and the end,
// also the clock of the whole GPU (nanoseconds). bench/profile/step_clocks.py reads it.
enum Mark : int { kBegun = 0, kMultiplied = 1, kReduced = 2, kSignalled = 3 };
enum PhaseKind : int {
  kEmbed = 0,
  kQkv = 1,
  kAttend = 2,
  kOutput = 3,
  kRouter = 4,
  kGateUp = 5,
  kDown = 6,
  kHead = 7,
  kClocks = 8,
};

struct Trace {
  long long* to;
  int count = 0;

  __device__ __forceinline__ void mark(int what) {
    if (to != nullptr && count < kMaxMarks) to[count++] = clock64() << 8 | what;
  }
  __device__ __forceinline__ void mark_both() {
    mark(kClocks * 8);
    unsigned long long now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    if (to != nullptr && count < kMaxMarks) to[count++] = static_cast<long long>(now);
  }
};

__device__ __forceinline__ void sync_compute() {
  asm volatile("bar.sync 1, %0;" ::"n"(kComputeThreads) : "memory");
}

// What phases compute with: pipelines to read, sums of a cluster, the residual, the grid's barrier.
template <class S>
struct Compute {
  using Layout = SmemLayout<S>;
  static constexpr int kN = S::kN, kGroups = kN / 8, kStageBytes = S::kStageBytes;

  __device__ __forceinline__ Compute(const Args& args, unsigned char* shared, SharedStorage<S>& storage, int rank)
      : args(args),
        shared(shared),
        storage(storage),
        rank(rank),
        warpgroup(uniform(threadIdx.x / 128)),
        stages(shared_address(shared) + warpgroup * Layout::kStages * kStageBytes),
        stage_full(shared_address(storage.stage_full[warpgroup])),
        stage_empty(shared_address(storage.stage_empty[warpgroup])),
        block_scales(shared_address(storage.block_scales[warpgroup])),
        activations_data(shared_address(shared + Layout::kRegion)),
        activations_full(shared_address(storage.activations_full)),
        activations_empty(shared_address(storage.activations_empty)),
        reduction(shared_address(shared + Layout::kReduction), storage, rank, warpgroup),
        residual_range(TileRange::of_cluster(args, (kHidden + kTileM - 1) / kTileM)),
        trace{args.trace != nullptr && threadIdx.x == 0 ? args.trace + blockIdx.x * kMaxMarks : nullptr} {}

  __device__ __forceinline__ void run_step() {
    trace.mark_both();
    Beginning beginning{*this};
    S::Layer::template visit<Part::kLayer>(beginning);
    S::Before::template visit<Part::kBeforeLayers>(*this);
#pragma unroll 1
    for (layer = 0; layer < args.layer_count; layer++) {
      weights = args.layers[layer];
      next_input_norm = layer + 1 < args.layer_count ? args.layers[layer + 1].input_norm : args.final_norm;
      S::Layer::template visit<Part::kLayer>(*this);
    }
    S::After::template visit<Part::kAfterLayers>(*this);
    trace.mark_both();
  }

  template <class P, class At>
  __device__ __forceinline__ void run() {
    P::compute(*this);
  }
  struct Beginning {
    Compute& compute;
    template <class P, class At>
    __device__ __forceinline__ void run() {
      P::begin_step(compute);
    }
  };

  __device__ __forceinline__ int warp() const { return threadIdx.x / 32 % 4; }
  __device__ __forceinline__ int lane() const { return threadIdx.x % 32; }
  // The token of this thread's sums of group g.
  __device__ __forceinline__ int token(int g) const { return 8 * g + lane() % 4 * 2 + rank; }

  __device__ __forceinline__ void sync_warpgroup() {
    asm volatile("bar.sync %0, 128;" ::"r"(2 + warpgroup) : "memory");
  }

  // One thread of a warpgroup, after a barrier of it: any block that passes the grid's barrier may read all that it
  // stored.
  __device__ __forceinline__ void arrive() {
#ifdef WISP_WITHHOLD_BLOCK  // tests/gpu/persistent/: a step in which one block never arrives
    if (blockIdx.x == WISP_WITHHOLD_BLOCK && phase == 7) return;
#endif
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(args.counters + 1) : "memory");
  }
  __device__ __forceinline__ void finish_phase(int kind) {
    sync_warpgroup();
    if (warp() == 0 && elect_lane()) arrive();
    trace.mark(kind * 8 + kSignalled);
    phase++;
  }

  // Release the oldest activation stages, kParts of a block of K, that are not released; on behalf of the other
  // warpgroup too, if it does not read them.
  template <int kKStep, int kParts>
  __device__ __forceinline__ void release_activations(PipelineState<Layout::kActivationStages>& read) {
#pragma unroll
    for (int part = 0; part < kParts; part++) {
      if (lane() == 0) mbarrier_arrive(activations_empty + read.index * 8, kKStep);
      read.advance();
    }
#pragma unroll
    for (int i = 0; i < kParts * (kKStep - 1); i++) read.advance();
  }

  // Release the oldest stage of weights that is not released, once `loaded` is there: see mbarrier_arrive_after.
  __device__ __forceinline__ void release_stage_after(uint32_t loaded) {
    if (lane() == 0) mbarrier_arrive_after(stage_empty + released.index * 8, loaded);
    released.advance();
  }
  // The same of one that tensor cores have read, or the registers that it was loaded into.
  __device__ __forceinline__ void release_stage() {
    if (lane() == 0) mbarrier_arrive(stage_empty + released.index * 8);
    released.advance();
  }

  // Wait for the next stages of this warpgroup, call use(their addresses), and release them once what it returns is
  // there: see mbarrier_arrive_after.
  template <int kCount, class Use>
  __device__ __forceinline__ void next_stages(Use use) {
    uint32_t addresses[kCount];
#pragma unroll
    for (int i = 0; i < kCount; i++) {
      mbarrier_wait(stage_full + stage.index * 8, stage.parity);
      addresses[i] = stages + stage.index * kStageBytes;
      stage.advance();
    }
    const uint32_t loaded = use(addresses);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kCount; i++) release_stage_after(loaded);
  }
  template <class Use>
  __device__ __forceinline__ void next_stage(Use use) {
    next_stages<1>([&](const uint32_t (&addresses)[1]) { return use(addresses[0]); });
  }

  // Scales of the residual's rows, 1 / rms, come to shared memory. From 32 sequences on the compute warps gather them
  // before a GEMM, while its first activations are on their way; else a warp does while the GEMM runs. Once a phase.
  __device__ __forceinline__ void begin_row_scales() {
    if constexpr (!Layout::kHasRowScaleWarp) {
      if (scaled_phase == phase) return;
      scaled_phase = phase;
      wait_until_passed(shared_address(&storage.barriers_passed), phase);
      sync_compute();
      gather_row_scales(storage, args, threadIdx.x / 32, kComputeThreads / 32);
      sync_compute();
    }
  }
  __device__ __forceinline__ void wait_for_row_scales() {
    if constexpr (Layout::kHasRowScaleWarp) {
      if (scaled_phase == phase) return;
      scaled_phase = phase;
      mbarrier_wait(shared_address(&storage.scaled), scaled_parity);
      scaled_parity ^= 1;
    }
  }

  // The row of the residual that this thread has of a 64-row block; past the end if its warp has none.
  __device__ __forceinline__ int residual_row(int m) const {
    const int tile = m * kBlockTiles + warp();
    if (tile >= residual_range.count) return kHidden;
    return (residual_range.first + tile) * kTileM + warpgroup * 8 + lane() / 4;
  }

  // Store residual * weight of the next norm * unit, and this warpgroup's part of the rows' sums of squares. Next: type
  // of the activations; of the last layer's, which the head reads, Last.
  template <class Next, class Last = Next>
  __device__ __forceinline__ void publish_residual(const float (&norm)[kResidualMBlocks], int kind) {
    const bool is_last = !std::is_same<Next, Last>::value && layer + 1 == args.layer_count;
#pragma unroll
    for (int g = 0; g < kGroups; g++) {
      float squares = 0.f;
#pragma unroll
      for (int m = 0; m < kResidualMBlocks; m++) {
        const int row = residual_row(m);
        const float x = residual[m][g];
        if (row < kHidden && token(g) < args.sequences) {
          float normed = x * norm[m];
          if constexpr (S::kReadsF16) normed *= storage.units[token(g)];
          args.normed[static_cast<int64_t>(token(g)) * kHidden + row] =
              is_last ? Last::round(normed) : Next::round(normed);
        }
        squares += x * x;
      }
#pragma unroll
      for (int distance = 4; distance < 32; distance *= 2) squares += __shfl_xor_sync(kWholeWarp, squares, distance);
      if (lane() < 4) storage.square_sums[warpgroup][warp()][token(g)] = squares;
    }
    sync_warpgroup();
    if (warp() == 0) {
      const int own = 2 * lane() + rank;
      if (own < args.sequences) {
        float sum = 0.f;
#pragma unroll
        for (int i = 0; i < 4; i++) sum += storage.square_sums[warpgroup][i][own];
        args.square_sums[own * kMaxBlocks + blockIdx.x / 2 * 2 + warpgroup] = sum;
      }
      __syncwarp();
      if (elect_lane()) arrive();
    }
    trace.mark(kind * 8 + kSignalled);
    phase++;
  }

  // The weight of the norm that follows this layer.
  __device__ __forceinline__ const bf16* norm_after_layer() const { return next_input_norm; }

  const Args& args;
  unsigned char* const shared;
  SharedStorage<S>& storage;
  const int rank, warpgroup;
  const uint32_t stages, stage_full, stage_empty, block_scales, activations_data, activations_full, activations_empty;
  ClusterReduction<S> reduction;
  const TileRange residual_range;
  Trace trace;
  float residual[kResidualMBlocks][kGroups];
  PipelineState<Layout::kStages> stage{0}, released{0};
  PipelineState<Layout::kActivationStages> activations{0};
  uint32_t scaled_parity = 0;
  int phase = 0, layer = 0, scaled_phase = -1;  // scaled_phase: the last phase whose scales have come
  LayerWeights weights;
  const bf16* next_input_norm;  // loaded with them: a miss in the middle of a layer takes a microsecond
};
