// activation_stream.cuh: warps that wait at the grid's barrier and bring what other blocks computed.
//
//   ActivationStream  one warp, two for 64 sequences: waits at the grid's barrier before each phase, then copies the
//                     phase's activations
//   RowScaleWarp      one warp, for up to 16 sequences: 1 / rms of each row of the residual, which is needed only when
//                     a GEMM is done
#pragma once

#include "copy/async_copy.cuh"
#include "hang_detector.cuh"
#include "math/reduce.cuh"
#include "polled.cuh"
#include "shared_storage.cuh"
#include "sync/mbarrier.cuh"

// Wait until the block has passed the grid's barrier so often; `passed`: the address of its barriers_passed.
__device__ __forceinline__ void wait_until_passed(uint32_t passed, unsigned barriers) {
  spin_until([&] {
    unsigned count;
    asm volatile("ld.acquire.cta.shared::cta.u32 %0, [%1];" : "=r"(count) : "r"(passed) : "memory");
    return count >= barriers;
  });
}

// Activations take another way than weights: the copy engine serves in order, so behind a full pipeline they would wait
// for all of it. A warp copies them itself, in the order that the tensor cores read.
template <class S>
struct ActivationStream {
  using Layout = SmemLayout<S>;
  static constexpr int kGroupsOfFour = S::kN / 4 / Layout::kCopyWarps;
  const Args& args;
  const HangDetector detector;
  SharedStorage<S>& storage;
  uint32_t data, full, empty, passed;
  int rank, part, phase = 0, layer = 0;  // part: which of the warps that copy; each copies its rows
  PipelineState<Layout::kActivationStages> stage{1};

  __device__ __forceinline__ ActivationStream(const Args& args, unsigned char* shared, SharedStorage<S>& storage,
                                              int rank, int part)
      : args(args),
        detector{args.hang_report, args.counters, args.timeout_clocks},
        storage(storage),
        data(shared_address(shared + Layout::kRegion)),
        full(shared_address(storage.activations_full)),
        empty(shared_address(storage.activations_empty)),
        passed(shared_address(&storage.barriers_passed)),
        rank(rank),
        part(part) {}

  __device__ __forceinline__ void run_step() {
    S::Before::template visit<Part::kBeforeLayers>(*this);
#pragma unroll 1
    for (layer = 0; layer < args.layer_count; layer++) S::Layer::template visit<Part::kLayer>(*this);
    S::After::template visit<Part::kAfterLayers>(*this);
  }

  template <class P, class At>
  __device__ __forceinline__ void run() {
    if constexpr (At::kStartsAtBarrier) pass_barrier();
    P::stream_activations(*this);
  }

  // Wait until every block has done all phases before this one; publish it to the other warps of this block.
  __device__ __forceinline__ void pass_barrier() {
    phase++;
    if (part > 0) {
      wait_until_passed(passed, phase);
      return;
    }
    const unsigned wanted = phase * gridDim.x * kWarpgroups;
    unsigned arrived;
    detector.until(
        [&] {
          asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(arrived) : "l"(args.counters + 1) : "memory");
          return arrived >= wanted;
        },
        kGridBarrier, phase, arrived);
    asm volatile("st.release.cta.shared::cta.u32 [%0], %1;" ::"r"(passed), "r"(phase) : "memory");
  }

  // Wait until the compute warps have released what has the barrier.
  __device__ __forceinline__ void wait_for_release(uint32_t barrier, uint32_t parity) const {
    detector.until([&] { return mbarrier_try_wait(barrier, parity); }, kActivationsTaken, phase, 0);
  }

  // After the step.
  __device__ __forceinline__ void wait_for_end() const {
    const uint32_t ended = shared_address(&storage.ended);
    detector.until([&] { return mbarrier_try_wait(ended, 0); }, kStepEnd, phase, 0);
  }

  // Copy blocks [begin, end) of K of `x`, [64, kInputs], kParts stages of 64 columns each, `passes` times; zeros past
  // `last`. A block's stages are released in order, so the last is waited for.
  template <int kInputs, int kParts>
  __device__ __forceinline__ void copy(const uint16_t* x, int begin, int end, int last, int passes) {
    const int lane = threadIdx.x % 32, chunk = lane % 8, first_row = part * 4 * kGroupsOfFour + lane / 8;
    const int rows = args.sequences - first_row;  // that exist from the lane's first on
    // Four rows at a time: of eight, the second four have the other half of the swizzle.
    const uint32_t low = first_row * 128 + (chunk ^ (lane / 8)) * 16,
                   high = first_row * 128 + 512 + (chunk ^ (lane / 8 + 4)) * 16;
#pragma unroll 1
    for (int pass = passes; pass > 0; pass--) {
      const uint16_t* from = x + static_cast<int64_t>(first_row) * kInputs + chunk * 8 + begin * kParts * 64;
#pragma unroll 1
      for (int k = begin; k < end; k++) {
        auto last_part = stage;
#pragma unroll
        for (int part = 1; part < kParts; part++) last_part.advance();
        wait_for_release(empty + last_part.index * 8, last_part.parity);
#pragma unroll
        for (int part = 0; part < kParts; part++, from += 64) {
          const uint32_t to = data + stage.index * Layout::kActivationBytes;
          const int column = (k * kParts + part) * 64 + chunk * 8;
          const bool is_inside = k <= last && (kInputs % (kParts * 64) == 0 || column < kInputs);
          const int there = is_inside ? rows : 0;
#pragma unroll
          for (int i = 0; i < kGroupsOfFour; i++) {
            copy16_async(to + i / 2 * 1024 + (i % 2 ? high : low), from + 4 * i * kInputs, 4 * i < there);
          }
          mbarrier_arrive_after_copies(full + stage.index * 8);
          stage.advance();
        }
      }
    }
  }
};

// A row of the residual is stored times its unit, a power of two, so that f16 holds it: 2^-9 over the rms that the row
// had at the norm before, as far as powers of two go. Typical numbers are then far above 2^-14, where f16 begins to
// lose bits, and one that the phase adds may be 2^24 times as large.
__device__ __forceinline__ float unit_of(float inverse_rms) {
  const uint32_t power = __float_as_uint(fmaxf(inverse_rms, 0x1p-60f)) & 0x7f800000u;
  return __uint_as_float(power) * 0x1p-9f;
}

// By one warp: of every `step`th eight sequences from the `first` eight on; four lanes add the sums of one.
template <class S>
__device__ __forceinline__ void gather_row_scales(SharedStorage<S>& storage, const Args& args, int first, int step) {
  constexpr int kLoads = kMaxBlocks / 8;
  const int quarter = threadIdx.x % 4, row = threadIdx.x % 32 / 4;
#pragma unroll 1
  for (int sequence = first * 8 + row; sequence - row < args.sequences; sequence += step * 8) {
    const float* const sums = args.square_sums + sequence * kMaxBlocks + quarter * 2;
    // Sums that there are from the lane's first on: pairs, as clusters have two blocks.
    const int count = sequence < args.sequences ? static_cast<int>(gridDim.x) - quarter * 2 : 0;
    float2 parts[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; i++) {
      parts[i] = i * 8 < count ? __ldcg(reinterpret_cast<const float2*>(sums + i * 8)) : float2{0.f, 0.f};
    }
    float even = 0.f, odd = 0.f;
#pragma unroll
    for (int i = 0; i < kLoads; i++) even += parts[i].x, odd += parts[i].y;
    const float sum = warp_sum<4>(even + odd);
    if (quarter > 0) continue;
    float scale = rsqrtf(sum / kHidden + args.eps);
    if constexpr (S::kReadsF16) {
      float& unit = storage.units[sequence];
      const float of_next = unit_of(scale);
      scale /= unit, unit = of_next;
    }
    storage.row_scales[sequence] = scale;
  }
}

template <class S>
struct RowScaleWarp {
  static_assert(S::Before::kRowScalePhases == 0, "the embedding reads none");
  const Args& args;
  SharedStorage<S>& storage;

  __device__ __forceinline__ void run_step() {
    const uint32_t passed = shared_address(&storage.barriers_passed), scaled = shared_address(&storage.scaled);
#pragma unroll 1
    for (int layer = 0; layer <= args.layer_count; layer++) {
      const int first = S::Before::kBarriers + layer * S::Layer::kBarriers;
#pragma unroll 1
      for (unsigned left = layer < args.layer_count ? S::Layer::kRowScalePhases : S::After::kRowScalePhases; left > 0;
           left &= left - 1) {
        const unsigned phase = first + __ffs(left) - 1;
        wait_until_passed(passed, phase);
        gather_row_scales(storage, args, 0, 1);
        __syncwarp();
        if (threadIdx.x % 32 == 0) mbarrier_arrive(scaled);
      }
    }
  }
};
