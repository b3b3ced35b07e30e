// delta_update.cuh: state update of Gated DeltaNet for one token of each sequence, and its gated norm.
//
//   S <- e^g S;  d = beta (v - S^T k);  S <- S + k d^T;  o = S^T q;  result = w o / rms(o) * silu(z)
//
// A unit is the state of a value head of a sequence, [Dk, Dv] float32; blocks have equal runs of them. It comes through
// the pipelines, asked for long before, is read once and written once. A warp has rows 4 i to 4 i + 3 of each 16, all
// columns; a lane four of these. S^T k and S^T q before the update are summed over all warps at once, since
// S^T q after it is e^g S^T q + (k . q) d: one barrier of the block a unit.
//
// Source: Yang et al. 2024, arXiv:2412.06464.
#pragma once

#include "../compute.cuh"
#include "../polled.cuh"
#include "math/reduce.cuh"

// What a unit needs beside its state, in shared memory.
struct DeltaVectors {
  float q[kDeltaSize], k[kDeltaSize];  // normalised
  float v[kDeltaSize], z[kDeltaSize];
  float decay, beta, k_dot_q, unused;
};

template <class Activations, class Compute>
class DeltaUpdate {
  static constexpr int kWarps = kComputeThreads / 32, kChunks = 4;  // kChunks: stages of a warpgroup's half of a state
  using Sums = float4[kWarps][2][32];                               // of S^T k and S^T q, a warp's

 public:
  static constexpr int kChunkBytes = 16 * kDeltaSize * 4;
  static constexpr int kScratchBytes = 2 * sizeof(Sums) + 3 * sizeof(DeltaVectors);

  __device__ __forceinline__ explicit DeltaUpdate(Compute& compute)
      : c_(compute),
        sums_(reinterpret_cast<Sums*>(compute.shared + Compute::Layout::kRegion)),
        vectors_(reinterpret_cast<DeltaVectors*>(sums_ + 2)),
        layer_(index_of_kind(compute.layer)) {}

  // Calls finish() when all results are stored: the last unit's state follows, which no block waits for.
  template <class Finish>
  __device__ __forceinline__ void run(int begin, int end, Finish finish) {
    if (begin < end) prepare(begin, 0), sync_compute();
    bool is_finished = false;
#pragma unroll 1
    for (int unit = begin; unit < end; unit++) {
      const int turn = unit - begin;
      const bool is_last = unit + 1 == end;
      if (slot_of(c_.args, unit) >= 0) {
        update(unit, turn, is_last, finish);
        is_finished = is_last;
      } else if (!is_last) {
        prepare(unit + 1, turn + 1);
        sync_compute();
      }
    }
    if (!is_finished) finish();
  }

  static __device__ __forceinline__ int slot_of(const Args& args, int unit) {
    return args.state_slots[unit / kDeltaHeads];
  }
  static __device__ __forceinline__ float* state_of(const Args& args, int layer, int unit) {
    const int64_t of_layer = static_cast<int64_t>(slot_of(args, unit)) * args.state_layers + layer;
    return args.states + (of_layer * kDeltaHeads + unit % kDeltaHeads) * (kDeltaSize * kDeltaSize);
  }

 private:
  template <class Finish>
  __device__ __forceinline__ void update(int unit, int turn, bool is_last, Finish finish) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = warp / 4 * (kDeltaSize / 2) + warp % 4 * 4;
    const DeltaVectors& with = vectors_[turn % 3];
    const bool is_new = c_.args.positions[unit / kDeltaHeads] <= 0;  // a sequence begins with zeros

    // 1. The state's rows, and their part of S^T k and S^T q.
    float4 state[kChunks][4], of_k = {}, of_q = {};
#pragma unroll
    for (int chunk = 0; chunk < kChunks; chunk++) {
      c_.next_stage([&](uint32_t stage) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
          load_shared(state[chunk][i], stage + (warp % 4 * 4 + i) * (kDeltaSize * 4) + lane * 16);
        }
        return __float_as_uint(state[chunk][3].x);
      });
#pragma unroll
      for (int i = 0; i < 4; i++) {
        if (is_new) state[chunk][i] = make_float4(0.f, 0.f, 0.f, 0.f);
        add(of_k, state[chunk][i], with.k[row + chunk * 16 + i]);
        add(of_q, state[chunk][i], with.q[row + chunk * 16 + i]);
      }
    }
    sums_[turn % 2][warp][0][lane] = of_k, sums_[turn % 2][warp][1][lane] = of_q;
    if (!is_last) prepare(unit + 1, turn + 1);
    sync_compute();

    // 2. Sums over all rows, in order; what the state is corrected by.
    float4 all_k = {}, all_q = {};
#pragma unroll
    for (int i = 0; i < kWarps; i++) {
      add(all_k, sums_[turn % 2][i][0][lane], 1.f), add(all_q, sums_[turn % 2][i][1][lane], 1.f);
    }
    const float4 v = reinterpret_cast<const float4*>(with.v)[lane];
    const float decay = with.decay, beta = with.beta;
    const float4 change = {beta * (v.x - decay * all_k.x), beta * (v.y - decay * all_k.y),
                           beta * (v.z - decay * all_k.z), beta * (v.w - decay * all_k.w)};

    // 3. The result, by one warp.
    if (warp == turn % kWarps) {
      float4 o = {decay * all_q.x, decay * all_q.y, decay * all_q.z, decay * all_q.w};
      add(o, change, with.k_dot_q);
      store_result(unit, o, with);
    }

    // 4. The new state.
#pragma unroll
    for (int chunk = 0; chunk < kChunks; chunk++) {
#pragma unroll
      for (int i = 0; i < 4; i++) {
        float4& x = state[chunk][i];
        x = {decay * x.x, decay * x.y, decay * x.z, decay * x.w};
        add(x, change, with.k[row + chunk * 16 + i]);
      }
    }
    if (is_last) finish();  // other blocks' activations may now come where sums and vectors lay
    float4* const to = reinterpret_cast<float4*>(state_of(c_.args, layer_, unit)) + lane;
#pragma unroll
    for (int chunk = 0; chunk < kChunks; chunk++) {
#pragma unroll
      for (int i = 0; i < 4; i++) to[(row + chunk * 16 + i) * (kDeltaSize / 4)] = state[chunk][i];
    }
  }

  __device__ __forceinline__ void store_result(int unit, const float4& o, const DeltaVectors& with) const {
    const int lane = threadIdx.x % 32;
    const float squares = warp_sum(o.x * o.x + o.y * o.y + o.z * o.z + o.w * o.w);
    const float scale = rsqrtf(squares / kDeltaSize + c_.args.eps);
    const float4 weight = reinterpret_cast<const float4*>(c_.weights.delta->norm)[lane];
    const float4 z = reinterpret_cast<const float4*>(with.z)[lane];
    const int64_t at = static_cast<int64_t>(unit / kDeltaHeads) * kQueryRows + unit % kDeltaHeads * kDeltaSize;
    *reinterpret_cast<uint2*>(c_.args.attended + at + 4 * lane) =
        make_uint2(Activations::pack(o.x * scale * weight.x * silu(z.x), o.y * scale * weight.y * silu(z.y)),
                   Activations::pack(o.z * scale * weight.z * silu(z.z), o.w * scale * weight.w * silu(z.w)));
  }

  // The vectors of a unit, as soon as other blocks have written them: Q and K by one warp, V, Z and the gates by
  // others.
  __device__ __forceinline__ void prepare(int unit, int turn) const {
    const int warp = threadIdx.x / 32, sequence = unit / kDeltaHeads, head = unit % kDeltaHeads;
    const int key_head = head / (kDeltaHeads / kDeltaKeyHeads), place = layer_ % 2 * Compute::kN + sequence;
    const float* from = c_.args.projected + static_cast<int64_t>(place) * kProjectedRows;
    DeltaVectors& to = vectors_[turn % 3];
    if (warp == 0) {
      float q[4], k[4];
      load(q, from + key_head * kDeltaSize), load(k, from + kDeltaKeyRows + key_head * kDeltaSize);
      normalise(q, rsqrtf(static_cast<float>(kDeltaSize))), normalise(k, 1.f);
      const float k_dot_q = warp_sum(q[0] * k[0] + q[1] * k[1] + q[2] * k[2] + q[3] * k[3]);
      store(to.q, q), store(to.k, k);
      if (threadIdx.x == 0) to.k_dot_q = k_dot_q;
    } else if (warp == 2 || warp == 4) {
      float x[4];
      load(x, from + (warp == 2 ? 2 * kDeltaKeyRows : kConvRows) + head * kDeltaSize);
      store(warp == 2 ? to.v : to.z, x);
    } else if (warp == 6) {
      const float* gates = from + kBetaFirst + head;
      float b, a;
      spin_until([&] { return is_written(b, gates) & is_written(a, gates + kDeltaHeads); });
      const DeltaWeights& weights = *c_.weights.delta;
      const float step = a + weights.step_bias[head], softplus = fmaxf(step, 0.f) + log1pf(expf(-fabsf(step)));
      if (threadIdx.x % 32 == 0)
        to.beta = 1.f / (1.f + expf(-b)), to.decay = expf(-expf(weights.decay[head]) * softplus);
    }
  }

  // Channels l + 32 i of a lane.
  __device__ __forceinline__ void load(float (&x)[4], const float* from) const {
    spin_until([&] {
      bool is_there = true;
#pragma unroll
      for (int i = 0; i < 4; i++) is_there &= is_written(x[i], from + threadIdx.x % 32 + 32 * i);
      return __all_sync(kWholeWarp, is_there);
    });
  }
  static __device__ __forceinline__ void store(float* to, const float (&x)[4]) {
#pragma unroll
    for (int i = 0; i < 4; i++) to[threadIdx.x % 32 + 32 * i] = x[i];
  }
  static __device__ __forceinline__ void normalise(float (&x)[4], float factor) {
    const float squares = warp_sum(x[0] * x[0] + x[1] * x[1] + x[2] * x[2] + x[3] * x[3]);
    const float scale = rsqrtf(squares + 1e-6f) * factor;
#pragma unroll
    for (int i = 0; i < 4; i++) x[i] *= scale;
  }

  static __device__ __forceinline__ float silu(float x) { return x / (1.f + __expf(-x)); }
  static __device__ __forceinline__ void add(float4& sum, const float4& x, float factor) {
    sum.x = fmaf(x.x, factor, sum.x), sum.y = fmaf(x.y, factor, sum.y);
    sum.z = fmaf(x.z, factor, sum.z), sum.w = fmaf(x.w, factor, sum.w);
  }
  static __device__ __forceinline__ void load_shared(float4& x, uint32_t from) {
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
                 : "r"(from)
                 : "memory");
  }

  Compute& c_;
  Sums* const sums_;             // [2], in turn
  DeltaVectors* const vectors_;  // [3], in turn: of the unit, of the next, and of the one that warps may still read
  const int layer_;
};

// Activations: type of its results, the output GEMM's.
template <class Activations>
struct UpdateStates : Phase {
  static constexpr int kChunkBytes = 16 * kDeltaSize * 4, kStageBytes = kChunkBytes;
  static constexpr int kScratchBytes = 2 * 8 * 2 * 32 * 16 + 3 * sizeof(DeltaVectors);

  static __device__ __forceinline__ int first_unit(const Args& args, int block) {
    return static_cast<int64_t>(args.sequences) * kDeltaHeads * block / gridDim.x;
  }

  template <class Stream>
  static __device__ __forceinline__ void stream_memory(Stream& stream) {
    using Update = DeltaUpdate<Activations, Stream>;
    const int begin = first_unit(stream.args, blockIdx.x), end = first_unit(stream.args, blockIdx.x + 1);
#pragma unroll 1
    for (int unit = begin; unit < end; unit++) {
      if (Update::slot_of(stream.args, unit) < 0) continue;
      const char* from =
          reinterpret_cast<const char*>(Update::state_of(stream.args, index_of_kind(stream.layer), unit));
      from += stream.warpgroup * (kDeltaSize / 2) * (kDeltaSize * 4);
#pragma unroll 1
      for (int chunk = 0; chunk < 4; chunk++) {
        const uint32_t to = stream.acquire(kChunkBytes);
        if (elect_lane()) bulk_load(to, from + chunk * kChunkBytes, kChunkBytes, stream.barrier(), kEvictFirst);
        stream.commit();
      }
    }
  }

  template <class Compute>
  static __device__ __forceinline__ void compute(Compute& c) {
    sync_compute();  // both warpgroups are done with the memory that sums come into
    c.trace.mark(kAttend * 8 + kBegun);
    const int begin = first_unit(c.args, blockIdx.x), end = first_unit(c.args, blockIdx.x + 1);
    DeltaUpdate<Activations, Compute>(c).run(begin, end, [&] {
      fence_async_shared();  // copies bring activations where sums lay
      c.trace.mark(kAttend * 8 + kMultiplied);
      c.finish_phase(kAttend);
    });
  }
};
