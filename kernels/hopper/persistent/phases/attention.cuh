// attention.cuh: attention of one work tile: a split of a sequence, for the query heads of one KV head.
//
//   1. The new token's Q (and of the last split K and V) are normed and rotated, once for the block, as soon as they
//   are
//      written; K and V go to the cache, and into the tile that came before them (new_heads.cuh).
//   2. KV tile t belongs to warpgroup t % 2, warp t / 2 % 4, whatever the batch: each keeps its own softmax.
//   3. The warps' sums are combined in order. A sequence of several splits leaves them in memory; the block that
//   arrives
//      last combines them in order.
#pragma once

#include "../compute.cuh"
#include "fp8_kv.cuh"
#include "math/constants.cuh"
#include "new_heads.cuh"

// Partial results of two channels: sums of V, the maximum, and the softmax's weight.
struct Combined {
  float2 sum = {0.f, 0.f};
  float highest = kLowest, weight = 0.f;

  __device__ __forceinline__ void add(float2 more, float2 stat) {
    const float top = fmaxf(highest, stat.x), old = exp2f(highest - top), fresh = exp2f(stat.x - top);
    sum.x = sum.x * old + more.x * fresh, sum.y = sum.y * old + more.y * fresh;
    weight = weight * old + stat.y * fresh;
    highest = top;
  }
  // As add, where no maximum is above that of all.
  __device__ __forceinline__ void add_lower(float2 more, float2 stat) {
    const float factor = exp2f(stat.x - highest);
    sum.x += more.x * factor, sum.y += more.y * factor, weight += stat.y * factor;
  }
  __device__ __forceinline__ void add_sink(float logit) { add({0.f, 0.f}, {logit * kLog2E, 1.f}); }
};

__device__ __forceinline__ float sink_of(const LayerWeights& weights, int head) {
#if WISP_SINKS
  return __ldg(weights.sinks + head);
#else
  return 0.f;
#endif
}

constexpr int kHeadRow = kHeadSize + 8, kSumRow = kHeadSize + 4;  // elements of a row, padded
constexpr int kHeadsElements = (kGroup + 2) * kHeadRow;           // q, k and v of a work tile
constexpr int kCombineBytes = 8 * kGroup * (kSumRow * 4 + 8);     // sums and stats of eight warps

template <class Cache, class Activations, class Compute>
class Attention {
 public:
  __device__ __forceinline__ Attention(Compute& compute, int& is_last_split)
      : args_(compute.args),
        compute_(compute),
        is_last_split_(is_last_split),
        sums_(reinterpret_cast<float*>(compute.shared + Compute::Layout::kRegion)),
        stats_(reinterpret_cast<float2*>(sums_ + 8 * kGroup * kSumRow)),
        first_heads_(reinterpret_cast<bf16*>(stats_ + 8 * kGroup)),
        heads_(first_heads_) {}

  // The work tiles of this block. What the next one needs of memory is loaded while this one's KV tiles come in.
  template <class Scheduler>
  __device__ __forceinline__ void run(const Scheduler& scheduler) {
    const int begin = scheduler.begin, end = scheduler.end;
    if (begin == end) return;
    prepare(scheduler.work_tile(begin, window()));
#pragma unroll 1
    for (int i = begin; i < end; i++) {
      bool has_prepared = i + 1 == end;
      run_work_tile(scheduler.work_tile(i, window()), [&] {
        if (has_prepared) return;
        has_prepared = true;
        heads_ = other_heads();
        prepare(scheduler.work_tile(i + 1, window()));
        heads_ = other_heads();
      });
      heads_ = other_heads();
    }
  }

 private:
  using Operands = typename Cache::Operands;
  static constexpr int kPairs = kHeadSize / 2;
  static constexpr bool kReloadsQueries = kHeadSize > 128;  // for each tile: registers are scarce

  // K or V of the work tile's newest token.
  __device__ __forceinline__ const typename Cache::Element* newest(int vector) const {
    return reinterpret_cast<const typename Cache::Element*>(heads_ + vector * kHeadRow);
  }

  // Tokens that a query of the layer sees; asked for each work tile: no register holds it.
  __device__ __forceinline__ int window() const { return cache_view(args_, compute_.layer).window; }

  __device__ __forceinline__ bf16* other_heads() const {
    return heads_ == first_heads_ ? first_heads_ + kHeadsElements : first_heads_;
  }

  __device__ __forceinline__ void prepare(const WorkTile& work) const {
    const NewHeads<Cache> heads{args_, compute_.weights, index_of_kind(compute_.layer)};
    heads.prepare(work, Compute::kN, heads_);
  }

  template <class Prepare>
  __device__ __forceinline__ void run_work_tile(const WorkTile& work, Prepare prepare_next) {
    sync_compute();  // what was prepared is there

    // The warp's queries and tiles.
    const int warp = threadIdx.x / 32, warpgroup = warp / 4;
    Queries<kHeadSize, 1> queries;
    if constexpr (!kReloadsQueries) load(queries);
    const float scale = args_.scale * Cache::key_scale(compute_.weights);
    Gathered<kHeadSize, 1> all;
#pragma unroll 1
    for (int t = warpgroup; t < work.tiles; t += 2) {
      compute_.template next_stages<Cache::kStages>([&](const uint32_t (&stages)[Cache::kStages]) {
        if (t / 2 % 4 != warp % 4) return 0u;
        const int tile = work.first_tile + t;
        const uint32_t keys = stages[0], values = Cache::kStages > 1 ? stages[1] : keys + Cache::kPartBytes;
        if ((tile + 1) * kTileTokens >= work.end) {
          Cache::add_newest(keys, values, work.end - 1 - tile * kTileTokens, newest(kGroup), newest(kGroup + 1));
        }
        if constexpr (kReloadsQueries) load(queries);
        attend<kHeadSize, 1, Operands>(all, typename Cache::Rows(keys, values), tile, queries, scale, work);
        finish_shared_loads();
        return 0u;
      });
      if (t / 2 % 4 == warp % 4) prepare_next();
    }
    prepare_next();
    gather(all);
    sync_compute();
    store_results(work);
  }

  __device__ __forceinline__ void load(Queries<kHeadSize, 1>& queries) const {
    const int head = threadIdx.x % 32 / 4;
#pragma unroll
    for (int i = 0; i < kHeadSize / 8; i++) {
      const bf16* from = heads_ + head * kHeadRow + Cache::query_channel(i);
      queries[0][i / 2][i % 2] = head < kGroup ? Operands::query(*reinterpret_cast<const uint32_t*>(from)) : 0u;
    }
  }

  // Step 3: each warp's sums to shared memory, [warp][head][channel].
  __device__ __forceinline__ void gather(const Gathered<kHeadSize, 1>& all) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int e = 0; e < 2; e++) {
      const int head = lane % 4 * 2 + e;
      float weight = all.weight[0][e];
#pragma unroll
      for (int distance = 4; distance < 32; distance *= 2) weight += __shfl_xor_sync(kWholeWarp, weight, distance);
      if (head < kGroup) {
        float* to = sums_ + (warp * kGroup + head) * kSumRow;
#pragma unroll
        for (int i = 0; i < kHeadSize / 16; i++) {
          to[i * 16 + Cache::channel_of(lane / 4)] = all.sums[0][i][e];
          to[i * 16 + Cache::channel_of(lane / 4 + 8)] = all.sums[0][i][e + 2];
        }
        if (lane / 4 == 0) stats_[warp * kGroup + head] = make_float2(all.highest[0][e], weight);
      }
    }
  }

  __device__ __forceinline__ void store_results(const WorkTile& work) {
    constexpr int kPairsOfGroup = kGroup * kPairs;  // two channels each
    const int work_tiles = args_.sequences * kKvHeads, place = work.sequence * kKvHeads + work.head;
#pragma unroll 1
    for (int chunk = threadIdx.x; chunk < kPairsOfGroup; chunk += kComputeThreads) {
      const int head = chunk / kPairs, c = chunk % kPairs * 2;
      Combined all;
#pragma unroll
      for (int warp = 0; warp < 8; warp++) all.highest = fmaxf(all.highest, stats_[warp * kGroup + head].x);
#pragma unroll
      for (int warp = 0; warp < 8; warp++) {
        const int from = warp * kGroup + head;
        all.add_lower(*reinterpret_cast<const float2*>(sums_ + from * kSumRow + c), stats_[from]);
      }
      if (work.splits == 1) {
        add_sink(work, head, all);
        write(work, head, c, all);
      } else {
        const int at = (work.split * work_tiles + place) * kGroup + head;
        *reinterpret_cast<float2*>(args_.partials + static_cast<int64_t>(at) * kHeadSize + c) = all.sum;
        if (c == 0) args_.partial_stats[at] = make_float2(all.highest, all.weight);
      }
    }
    if (work.splits > 1) combine_splits(work, work_tiles, place);
    sync_compute();  // the next item overwrites what was read here
  }

  __device__ __forceinline__ void combine_splits(const WorkTile& work, int work_tiles, int place) {
    sync_compute();
    if (threadIdx.x == 0) {
      unsigned before;
      asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;"
                   : "=r"(before)
                   : "l"(args_.splits_done + place), "r"(work.splits - 1)
                   : "memory");
      is_last_split_ = before == work.splits - 1;
    }
    sync_compute();
    if (!is_last_split_) return;
#pragma unroll 1
    for (int chunk = threadIdx.x; chunk < kGroup * kPairs; chunk += kComputeThreads) {
      const int head = chunk / kPairs, c = chunk % kPairs * 2;
      Combined all;
#pragma unroll 4
      for (int split = 0; split < work.splits; split++) {
        const int at = (split * work_tiles + place) * kGroup + head;
        const float* from = args_.partials + static_cast<int64_t>(at) * kHeadSize + c;
        all.add(__ldcg(reinterpret_cast<const float2*>(from)), __ldcg(args_.partial_stats + at));
      }
      add_sink(work, head, all);
      write(work, head, c, all);
    }
  }

  __device__ __forceinline__ void add_sink(const WorkTile& work, int head, Combined& all) const {
    if constexpr (kHasSinks) all.add_sink(sink_of(compute_.weights, work.head * kGroup + head));
  }

  __device__ __forceinline__ void write(const WorkTile& work, int head, int c, const Combined& all) {
    const float inverse = Cache::value_scale(compute_.weights) / all.weight;
    const int64_t row = static_cast<int64_t>(work.sequence) * kQueryRows;
    const int channel = (work.head * kGroup + head) * kHeadSize + c;
    const float2 gate = output_gate(work.sequence, channel);
    *reinterpret_cast<uint32_t*>(args_.attended + row + channel) =
        Activations::pack(all.sum.x * inverse * gate.x, all.sum.y * inverse * gate.y);
  }

  // Factors of two channels.
  __device__ __forceinline__ float2 output_gate(int sequence, int channel) const {
    if constexpr (!kHasOutputGate) return {1.f, 1.f};
    const int buffer = index_of_kind(compute_.layer) % 2 * Compute::kN + sequence;
    const float* from = args_.pre_rope_qkv + static_cast<int64_t>(buffer) * kQkvRows + kGateFirst + channel;
    float a, b;
    spin_until([&] { return is_written(a, from) & is_written(b, from + 1); });
    return {1.f / (1.f + __expf(-a)), 1.f / (1.f + __expf(-b))};
  }

  const Args& args_;
  Compute& compute_;
  int& is_last_split_;
  float* const sums_;
  float2* const stats_;
  bf16* const first_heads_;
  bf16* heads_;  // of two in turn: q, k and v of the work tile, and of the next
};

// Activations: type of its results, the output GEMM's.
template <class Cache, class Activations>
struct Attend : Phase {
  static constexpr int kStageBytes = Cache::kTileBytes;
  static constexpr int kScratchBytes = kCombineBytes + 2 * kHeadsElements * 2;

  template <int N>
  struct Storage {
    int is_last_split;                             // the block's split of a sequence is the last to arrive
    TileScheduler<N> schedulers[1 + kHasWindows];  // of layers that see all, if others have windows

    __device__ __forceinline__ const TileScheduler<N>& of_layer(int layer) const { return schedulers[sees_all(layer)]; }
  };

  template <class OwnStorage>
  static __device__ __forceinline__ void plan(OwnStorage& storage, const Args& args) {
    // A window's splits are so few that combining them costs more than they save.
    storage.schedulers[0].plan(args, args.window, kHasWindows ? 1 : args.parallel_splits);
    if constexpr (kHasWindows) storage.schedulers[1].plan(args, kSeesAll, args.parallel_splits);
  }

  template <class Stream>
  static __device__ __forceinline__ void stream_memory(Stream& stream) {
    Cache::stream_tiles(stream, stream.storage.template of<Attend>().of_layer(stream.layer));
  }

  template <class Compute>
  static __device__ __forceinline__ void compute(Compute& c) {
    sync_compute();  // both warpgroups are done with the memory that sums come into
    c.trace.mark(kAttend * 8 + kBegun);
    auto& storage = c.storage.template of<Attend>();
    Attention<Cache, Activations, Compute> attention(c, storage.is_last_split);
    attention.run(storage.of_layer(c.layer));
    fence_async_shared();  // copies bring activations where sums lay
    c.trace.mark(kAttend * 8 + kMultiplied);
    c.finish_phase(kAttend);
  }
};
