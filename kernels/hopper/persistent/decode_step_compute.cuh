// decode_step_compute.cuh: the two warpgroups that compute: the phases of a layer, one after the other.
//
// The residual stream stays in registers all step long, in float32: a cluster has the same rows of O's and of down's
// product, of which a thread has row l / 4 + 8 w of its warp's slice of each unit, for the tokens that its rank
// finishes (l: lane, w: warpgroup).
#pragma once

#include "decode_step_attention.cuh"
#include "decode_step_exchange.cuh"
#include "decode_step_streams.cuh"
#include "mma/wgmma.cuh"

// One thread of a block notes when each part of a phase was over, in clocks of its multiprocessor; at the beginning and
// the end, also what the whole GPU's clock (nanoseconds) says. bench/profile/step_clocks.py reads it.
enum Mark : int { kBegun = 0, kMultiplied = 1, kExchangedAll = 2, kSignalled = 3 };
enum PhaseKind : int { kEmbed = 0, kQkv = 1, kAttend = 2, kOutput = 3, kGateUp = 4, kDown = 5, kHead = 6, kClocks = 7 };

struct Trace {
  long long* to;
  int count = 0;

  __device__ __forceinline__ void mark(int what) {
    if (to != nullptr && count < kMarks) to[count++] = clock64() << 8 | what;
  }
  __device__ __forceinline__ void mark_both() {
    mark(kClocks * 8);
    unsigned long long now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    if (to != nullptr && count < kMarks) to[count++] = static_cast<long long>(now);
  }
};

template <int N>
class Compute {
 public:
  __device__ __forceinline__ Compute(const Args& args, unsigned char* shared, Small<N>& small, const Watch& watch,
                                     int rank)
      : args_(args),
        shared_(shared),
        small_(small),
        watch_(watch),
        rank_(rank),
        warpgroup_(__shfl_sync(kWholeWarp, threadIdx.x / 128, 0)),  // so that the compiler knows it to be uniform
        ring_(shared_address(shared) + warpgroup_ * R::kSlots * kSlotBytes),
        ring_full_(shared_address(small.ring_full[warpgroup_])),
        ring_empty_(shared_address(small.ring_empty[warpgroup_])),
        columns_(shared_address(shared + R::kRegion)),
        columns_full_(shared_address(small.columns_full)),
        columns_empty_(shared_address(small.columns_empty)),
        exchange_(shared_address(shared + R::kExchange), small, rank, warpgroup_, watch),
        stream_share_(share_of<OutputProduct>(args, warpgroup_)),
        trace_{args.trace != nullptr && threadIdx.x == 0 ? args.trace + blockIdx.x * kMarks : nullptr} {}

  __device__ __forceinline__ void run() {
    const Work<N> work(small_, args_.window);
    const Layer* layers = args_.layers;
    trace_.mark_both();
    clear_raw();
    embed(layers[0].input_norm);
#pragma unroll 1
    for (int index = 0; index < args_.layer_count; index++) {
      const Layer layer = layers[index];
      qkv(layer, index);
      attend_all(work, layer, index);
      add_to_stream<OutputProduct, kOutput, kHasOutputBias>(layer.output_bias, layer.mlp_norm);
      gate_up(layer);
      const bf16* next = index + 1 < args_.layer_count ? layers[index + 1].input_norm : args_.final_norm;
      add_to_stream<DownProduct, kDown, kHasMlpBias>(layer.down_bias, next);
    }
    logits();
    trace_.mark_both();
  }

 private:
  using R = Room<N>;
  static constexpr int kGroups = N / 8, kStreamUnits = OutputProduct::kUnits;

  __device__ __forceinline__ int warp() const { return threadIdx.x / 32 % 4; }
  __device__ __forceinline__ int lane() const { return threadIdx.x % 32; }
  // The token of this thread's sums of group g.
  __device__ __forceinline__ int token(int g) const { return 8 * g + lane() % 4 * 2 + rank_; }

  __device__ __forceinline__ void sync_warpgroup() {
    asm volatile("bar.sync %0, 128;" ::"r"(2 + warpgroup_) : "memory");
  }

  // One thread of a warpgroup, after a barrier of it: all that it stored may be read by who passes the grid's barrier.
  __device__ __forceinline__ void signal() {
#ifdef WISP_WITHHOLD_BLOCK  // tests/gpu/persistent/test_decode_step.py: a step in which one block never arrives
    if (blockIdx.x == WISP_WITHHOLD_BLOCK && phase_ == 7) return;
#endif
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(args_.counters) : "memory");
  }
  __device__ __forceinline__ void leave(int kind) {
    sync_warpgroup();
    if (threadIdx.x % 128 == 0) signal();
    trace_.mark(kind * 8 + kSignalled);
    phase_++;
  }

  // Sums of `slices` slices in up to kUnits units, over this warpgroup's part of K. One slot's products stay in flight
  // while the next one's begin; what they read goes back when those after them have begun. Units without rows multiply
  // what lies there: a branch around products in flight would make the compiler wait for them.
  template <class P>
  __device__ __forceinline__ void multiply(float (&sums)[P::kUnits][N / 2], int slices) {
    constexpr int kStep = P::kSplitsK ? 2 : 1;  // of two blocks of columns, the other warpgroup takes one
    const Half<P> half(rank_);
    Place<R::kStages> columns = columns_place_;
    if (P::kSplitsK && warpgroup_ == 1) columns.advance();
    Place<R::kStages> read = columns;  // the oldest stage that is not given back
    bool holds_slot = false, holds_columns = false;
#pragma unroll
    for (int unit = 0; unit < P::kUnits; unit++) {
#pragma unroll
      for (int i = 0; i < N / 2; i++) sums[unit][i] = 0.f;
    }
#pragma unroll 1
    for (int k = half.begin; k < half.end; k += kStep) {
      // A stage that the other warpgroup had in between is not waited for: its copies were begun before some of those
      // that this one has seen, by the same threads, so its phase is over.
      watch_.wait(columns_full_ + columns.index * 8, columns.parity, kColumnsFull, phase_);
      fence_async_shared();  // threads copied the columns, the tensor cores read them
      const uint32_t tokens = columns_ + columns.index * R::kColumns;
#pragma unroll
      for (int unit = 0; unit < P::kUnits; unit++) {
        const bool exists = unit * kUnitSlices < slices;
        if (exists) watch_.wait(ring_full_ + ring_place_.index * 8, ring_place_.parity, kRingFull, phase_);
        const uint32_t weights = ring_ + ring_place_.index * kSlotBytes;
        if (exists) ring_place_.advance();
        wgmma_registers(sums[unit]);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < 4; i++) {
          wgmma_ss<N>(sums[unit], wgmma_descriptor(weights + i * 32), wgmma_descriptor(tokens + i * 32));
        }
        wgmma_commit();
        wgmma_wait<1>();
        if (exists && holds_slot) release_slot();
        holds_slot = holds_slot || exists;
        if (unit == 0 && holds_columns) release_columns<P>(read);
      }
      holds_columns = true;
#pragma unroll
      for (int i = 0; i < kStep; i++) columns.advance();
    }
    wgmma_wait<0>();
#pragma unroll
    for (int unit = 0; unit < P::kUnits; unit++) wgmma_registers(sums[unit]);
    if (holds_slot) release_slot();
    if (holds_columns) release_columns<P>(read);
    columns_place_.advance(half.end - half.begin);
  }

  // Give back the stage at `read`; on behalf of the other warpgroup too, if that does not read it.
  template <class P>
  __device__ __forceinline__ void release_columns(Place<R::kStages>& read) {
    if (lane() == 0) mbarrier_arrive(columns_empty_ + read.index * 8, P::kSplitsK ? 2 : 1);
#pragma unroll
    for (int i = 0; i < (P::kSplitsK ? 2 : 1); i++) read.advance();
  }

  // Give back the oldest slot that was not.
  __device__ __forceinline__ void release_slot() {
    if (lane() == 0) mbarrier_arrive(ring_empty_ + released_.index * 8);
    released_.advance();
  }

  // The row of the stream that this thread has of a unit; past the end if its warp has none.
  __device__ __forceinline__ int stream_row(int unit) const {
    const int slice = unit * kUnitSlices + warp();
    if (slice >= stream_share_.count) return kHidden;
    return (stream_share_.first + slice) * kSliceRows + warpgroup_ * 8 + lane() / 4;
  }
  __device__ __forceinline__ float of_row(const bf16* vector, int row, int rows) const {
    return row < rows ? __bfloat162float(vector[row]) : 0.f;
  }

  __device__ __forceinline__ void embed(const bf16* norm) {
    float weights[kStreamUnits];
#pragma unroll
    for (int unit = 0; unit < kStreamUnits; unit++) {
      const int row = stream_row(unit);
      weights[unit] = of_row(norm, row, kHidden);
#pragma unroll
      for (int g = 0; g < kGroups; g++) {
        stream_[unit][g] = 0.f;
        if (row >= kHidden || token(g) >= args_.sequences) continue;
        int id = args_.tokens[token(g)];
        if (id < 0 && args_.drawn_rows > 0) id = args_.drawn[min(-1 - id, args_.drawn_rows - 1)];
        id = min(max(id, 0), args_.vocab - 1);
        const int64_t block = static_cast<int64_t>(id / 64) * HeadProduct::kBlocks + row / 64;
        const int place = (row % 64 / 8) ^ (id % 8);
        stream_[unit][g] = __bfloat162float(args_.embeddings[block * 4096 + id % 64 * 64 + place * 8 + row % 8]);
      }
    }
    publish_stream(weights, kEmbed);
  }

  // Store y = stream * weight of the next norm, and this warpgroup's part of the rows' sums of squares.
  __device__ __forceinline__ void publish_stream(const float (&weights)[kStreamUnits], int kind) {
#pragma unroll
    for (int g = 0; g < kGroups; g++) {
      float squares = 0.f;
#pragma unroll
      for (int unit = 0; unit < kStreamUnits; unit++) {
        const int row = stream_row(unit);
        const float x = stream_[unit][g];
        if (row < kHidden && token(g) < args_.sequences) {
          args_.y[static_cast<int64_t>(token(g)) * kHidden + row] = __float2bfloat16(x * weights[unit]);
        }
        squares += x * x;
      }
#pragma unroll
      for (int distance = 4; distance < 32; distance *= 2) squares += __shfl_xor_sync(kWholeWarp, squares, distance);
      if (lane() < 4) small_.squares[warpgroup_][warp()][token(g)] = squares;
    }
    sync_warpgroup();
    if (warp() == 0) {
      const int own = 2 * lane() + rank_;
      if (own < args_.sequences) {
        float sum = 0.f;
#pragma unroll
        for (int i = 0; i < 4; i++) sum += small_.squares[warpgroup_][i][own];
        args_.squares[own * kMostBlocks + blockIdx.x / 2 * 2 + warpgroup_] = sum;
      }
      __syncwarp();
      if (lane() == 0) signal();
    }
    trace_.mark(kind * 8 + kSignalled);
    phase_++;
  }

  __device__ __forceinline__ void wait_for_scales() {
    if constexpr (!R::kHasScaleWarp) {
      const uint32_t passed = shared_address(&small_.passed);
      watch_.until([&] { return phases_passed(passed) >= phase_; }, kPassed, phase_);
      sync_consumers();
      gather_scales(small_, args_, threadIdx.x / 32, kConsumers / 32);
      sync_consumers();
      return;
    }
    watch_.wait(shared_address(&small_.scaled), scaled_parity_, kScaled, phase_);
    scaled_parity_ ^= 1;
  }

  // No barrier follows: who reads a number waits for it. What is read next layer is made unwritten again here, by the
  // thread that will write it: all have read it, since four barriers lie between.
  __device__ __forceinline__ void qkv(const Layer& layer, int index) {
    using P = QkvProduct;
    const Share share = share_of<P>(args_, warpgroup_);
    float sums[P::kUnits][N / 2];
    trace_.mark(kQkv * 8 + kBegun);
    multiply<P>(sums, share.count);
    trace_.mark(kQkv * 8 + kMultiplied);
    wait_for_scales();
    exchange_.template join<P::kUnits>(sums, share.count, phase_, [&](int slice, int g, float sum) {
      const int row = (share.first + slice) * kSliceRows + warpgroup_ * 8 + lane() / 4;
      if (token(g) >= args_.sequences) return;
      const float bias = kHasQkvBias ? of_row(layer.qkv_bias, row, kQkvRows) : 0.f;
      store_raw(index, token(g), row, __float_as_uint(sum * small_.scales[token(g)] + bias));
      store_raw(index + 1, token(g), row, kNotYet);
    });
    trace_.mark(kQkv * 8 + kExchangedAll);
  }

  __device__ __forceinline__ void store_raw(int layer, int token, int row, unsigned bits) {
    float* to = args_.raw + static_cast<int64_t>(layer % 2 * N + token) * kQkvRows + row;
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(bits) : "memory");
  }

  // Of the first layer, as qkv() does for the others.
  __device__ __forceinline__ void clear_raw() {
    const Share share = share_of<QkvProduct>(args_, warpgroup_);
#pragma unroll 1
    for (int slice = warp(); slice < share.count; slice += kUnitSlices) {
      const int row = (share.first + slice) * kSliceRows + warpgroup_ * 8 + lane() / 4;
#pragma unroll
      for (int g = 0; g < kGroups; g++) {
        if (token(g) < args_.sequences) store_raw(0, token(g), row, kNotYet);
      }
    }
  }

  __device__ __forceinline__ void attend_all(const Work<N>& work, const Layer& layer, int index) {
    sync_consumers();  // both warpgroups are done with the memory that sums come into
    trace_.mark(kAttend * 8 + kBegun);
    Attention<N> attention(args_, shared_, small_, watch_, phase_);
    auto next_slot = [&](auto use) {
      watch_.wait(ring_full_ + ring_place_.index * 8, ring_place_.parity, kRingFull, phase_);
      use(ring_ + ring_place_.index * kSlotBytes);
      __syncwarp();
      ring_place_.advance();
      release_slot();
    };
    attention.run(work, layer, index, next_slot);
    fence_async_shared();  // the copy engine brings columns where sums lay
    trace_.mark(kAttend * 8 + kMultiplied);
    leave(kAttend);
  }

  template <class P, int kKind, bool kHasBias>
  __device__ __forceinline__ void add_to_stream(const bf16* bias, const bf16* norm) {
    // Asked for before the barrier: a miss behind a full ring takes microseconds.
    float weights[kStreamUnits], added[kStreamUnits];
#pragma unroll
    for (int unit = 0; unit < kStreamUnits; unit++) {
      weights[unit] = of_row(norm, stream_row(unit), kHidden);
      added[unit] = kHasBias ? of_row(bias, stream_row(unit), kHidden) : 0.f;
    }
    float sums[P::kUnits][N / 2];
    trace_.mark(kKind * 8 + kBegun);
    multiply<P>(sums, stream_share_.count);
    trace_.mark(kKind * 8 + kMultiplied);
    exchange_.template join<P::kUnits>(sums, stream_share_.count, phase_, [&](int slice, int g, float sum) {
#pragma unroll
      for (int unit = 0; unit < kStreamUnits; unit++) {
        if (slice / kUnitSlices == unit) {
#pragma unroll
          for (int i = 0; i < kGroups; i++) {
            if (i == g) stream_[unit][i] += sum + added[unit];
          }
        }
      }
    });
    trace_.mark(kKind * 8 + kExchangedAll);
    publish_stream(weights, kKind);
  }

  __device__ __forceinline__ void gate_up(const Layer& layer) {
    trace_.mark(kGateUp * 8 + kBegun);
    bool has_scales = false;
    each_pass<GateUpProduct>([&](int first, float (&sums)[4][N / 2], int slices) {
      if (!has_scales) wait_for_scales();
      has_scales = true;
      trace_.mark(kGateUp * 8 + kMultiplied);
      exchange_.template swap<4>(sums, slices, phase_, [&](int slice, const Sums<N>& all) {
        const int row = (first + slice) * kSliceRows + lane() / 4, column = (first + slice) * 8 + lane() / 4;
        const float gate_bias = kHasMlpBias ? of_row(layer.gate_up_bias, row, 2 * kMlp) : 0.f;
        const float up_bias = kHasMlpBias ? of_row(layer.gate_up_bias, row + 8, 2 * kMlp) : 0.f;
#pragma unroll
        for (int g = 0; g < kGroups; g++) {
          if (token(g) >= args_.sequences) break;
          const float scale = small_.scales[token(g)];
          const float gate = all.top[g] * scale + gate_bias, up = all.bottom[g] * scale + up_bias;
          args_.gated[static_cast<int64_t>(token(g)) * kMlp + column] =
              __float2bfloat16(gate / (1.f + __expf(-gate)) * up);
        }
      });
    });
    trace_.mark(kGateUp * 8 + kExchangedAll);
    leave(kGateUp);
  }

  __device__ __forceinline__ void logits() {
    trace_.mark(kHead * 8 + kBegun);
    bool has_scales = false;
    each_pass<HeadProduct>([&](int first, float (&sums)[4][N / 2], int slices) {
      if (!has_scales) wait_for_scales();
      has_scales = true;
      exchange_.template swap<4>(sums, slices, phase_, [&](int slice, const Sums<N>& all) {
        const int row = (first + slice) * kSliceRows + lane() / 4;
#pragma unroll
        for (int g = 0; g < kGroups; g++) {
          if (token(g) >= args_.sequences) break;
          float* out = args_.logits + static_cast<int64_t>(token(g)) * args_.vocab + row;
          const float scale = small_.scales[token(g)];
          if (row < args_.vocab) out[0] = all.top[g] * scale;
          if (row + 8 < args_.vocab) out[8] = all.bottom[g] * scale;
        }
      });
    });
    trace_.mark(kHead * 8 + kSignalled);
  }

  // Go over K once for every 16 slices of this worker, as often as the worker with most.
  template <class P, class Use>
  __device__ __forceinline__ void each_pass(Use use) {
    const Share share = share_of<P>(args_, warpgroup_);
    const int passes = passes_of<P>(args_);
#pragma unroll 1
    for (int pass = 0; pass < passes; pass++) {
      const int done = pass * P::kUnits * kUnitSlices;
      const int slices = max(0, min(share.count - done, P::kUnits * kUnitSlices));
      float sums[P::kUnits][N / 2];
      multiply<P>(sums, slices);
      use(share.first + done, sums, slices);
    }
  }

  const Args& args_;
  unsigned char* const shared_;
  Small<N>& small_;
  const Watch& watch_;
  const int rank_, warpgroup_;
  const uint32_t ring_, ring_full_, ring_empty_, columns_, columns_full_, columns_empty_;
  Exchange<N> exchange_;
  const Share stream_share_;
  Trace trace_;
  float stream_[kStreamUnits][kGroups];
  Place<R::kSlots> ring_place_{0}, released_{0};
  Place<R::kStages> columns_place_{0};
  uint32_t scaled_parity_ = 0;
  int phase_ = 0;
};
