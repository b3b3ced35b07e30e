// decode_step.cu: a whole decode step, from token ids to logits, in one launch: one token for each of up to 64
// sequences.
//
//   tokens, positions, contexts : [B] int32     slots : [B] int64     tables : [B, W] int32, as of wisp_runtime.batch
//   weights : packed (kernels/README.md)     keys, values : [L, P, Hkv, Tb, Dh] bf16     logits : [B, V] float32
//   keys, values : tensor maps of the cache, [L P Hkv Tb, Dh], boxes of 16 rows of 64 columns
//   math  : bf16 products into float32; stream, Q, K, V before rotation and scores float32; probabilities rounded to
//           bf16. K is added in two parts (gate and up, head) or four (Q, K and V, output, down), each in order, and a
//           sequence's attention in parts that its context alone decides: a row's numbers depend on no other row
//   grid  : (2 * clusters, 1, 1), clusters of 2; all run at once, or nothing (cuOccupancyMaxActiveClusters)
//   block : (384, 1, 1)     shared : Room<N>::kTotal
//   needs : a model of decode_step_model.cuh; B <= N; Tb % 16 == 0; 16-byte aligned arrays (ops/cuda/persistent/decode_step.py)
//   check : tests/gpu/persistent/test_decode_step.py against the general path; tests/emulator without a GPU
//
// docs/decode-step.md goes through it from the ring to the barrier.
#include <climits>

#include "decode_step_compute.cuh"
#include "sync/pdl.cuh"

__device__ __forceinline__ void sync_cluster() {
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

template <int N>
__device__ __forceinline__ void init_barriers(Small<N>& small) {
  for (int i = 0; i < kWarpgroups; i++) {
    for (int j = 0; j < Room<N>::kSlots; j++) {
      mbarrier_init(shared_address(&small.ring_full[i][j]), 1);
      mbarrier_init(shared_address(&small.ring_empty[i][j]), 4);
    }
    for (int j = 0; j < 2; j++) {
      mbarrier_init(shared_address(&small.exchanged[i][j]), 1);
      mbarrier_init(shared_address(&small.joined[i][j]), 1);
    }
  }
  for (int i = 0; i < Room<N>::kStages; i++) {
    mbarrier_init(shared_address(&small.columns_full[i]), 32 * Room<N>::kCopyWarps);
    mbarrier_init(shared_address(&small.columns_empty[i]), 8);
  }
  mbarrier_init(shared_address(&small.planned), 32);
  mbarrier_init(shared_address(&small.scaled), 1);
  small.passed = 0;
  mbarrier_init_fence();
}

template <int N>
__device__ __forceinline__ void step(const CUtensorMap& keys, const CUtensorMap& values, const Args& args) {
  using R = Room<N>;
  static_assert(sizeof(Small<N>) <= R::kSmallBytes && R::kTotal <= kSharedBytes, "too much shared memory");
  extern __shared__ __align__(1024) unsigned char shared[];
  Small<N>& small = *reinterpret_cast<Small<N>*>(shared + R::kSmall);
  const int rank = blockIdx.x % 2, warp = threadIdx.x / 32;
  const Watch watch{args.report, args.counters + 2, args.patience_clocks};
  if (threadIdx.x == 0) init_barriers(small);
  sync_cluster();

  if (threadIdx.x < kConsumers) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 216;");
    pdl_wait();
    if (warp == 0) {
      Work<N>::plan(small, args);
      mbarrier_arrive(shared_address(&small.planned));
    }
    sync_consumers();
    Compute<N>(args, shared, small, watch, rank).run();
  } else {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 72;");
    const int role = warp - kConsumers / 32;
    if (role < kWarpgroups) {  // memory; weights depend on no kernel before this one
      MemoryStream<N> stream{args,
                             watch,
                             shared_address(shared) + role * R::kSlots * kSlotBytes,
                             shared_address(small.ring_full[role]),
                             shared_address(small.ring_empty[role]),
                             rank,
                             role};
#pragma unroll 1
      for (int layer = 0; layer < args.layer_count; layer++) {
        const Layer& of = args.layers[layer];
        stream.layer = layer;
        // The first weights wait for the kernel before this one, however long that takes.
        stream.watch.patience = layer == 0 ? LLONG_MAX : watch.patience;
        stream.template weights<QkvProduct>(of.qkv);
        if (layer == 0) {
          pdl_wait();
          watch.wait(shared_address(&small.planned), 0, kPlanned, 1);
          stream.watch.patience = watch.patience;
        }
        stream.cache(Work<N>(small, args.window), &keys, &values);
        stream.template weights<OutputProduct>(of.output);
        stream.template weights<GateUpProduct>(of.gate_up);
        stream.template weights<DownProduct>(of.down);
      }
      stream.template weights<HeadProduct>(args.head);
    } else if (role < kWarpgroups + R::kCopyWarps) {  // columns
      pdl_wait();
      ColumnStream<N> stream{args,
                             watch,
                             shared_address(shared + R::kRegion),
                             shared_address(small.columns_full),
                             shared_address(small.columns_empty),
                             shared_address(&small.passed),
                             rank,
                             role - kWarpgroups};
#pragma unroll 1
      for (int layer = 0; layer < args.layer_count; layer++) {
        stream.pass();
        stream.template columns<QkvProduct>(args.y);
        stream.pass();
        stream.template columns<OutputProduct>(args.attended);
        stream.pass();
        stream.template columns<GateUpProduct>(args.y);
        stream.pass();
        stream.template columns<DownProduct>(args.gated);
      }
      stream.pass();
      stream.template columns<HeadProduct>(args.y);
    } else if (R::kHasScaleWarp) {
      pdl_wait();
#pragma unroll 1
      for (int layer = 0; layer < args.layer_count; layer++) {
        gather_all_scales(small, args, watch, layer * 4 + 1);
        gather_all_scales(small, args, watch, layer * 4 + 3);
      }
      gather_all_scales(small, args, watch, args.layer_count * 4 + 1);
    }
  }
  __syncwarp();
  pdl_launch_dependents();
  sync_cluster();  // no block leaves while its twin may send it sums
  if (threadIdx.x == 0) {
    // The last to leave sets both counters back: by then nobody waits.
    unsigned before;
    asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(args.counters + 1), "r"(gridDim.x - 1)
                 : "memory");
    if (before == gridDim.x - 1) *args.counters = 0;
  }
}

#define DECODE_STEP(N)                                                                                       \
  extern "C" __global__ void __launch_bounds__(kThreads, 1)                                                  \
      decode_step_n##N(const __grid_constant__ CUtensorMap keys, const __grid_constant__ CUtensorMap values, \
                       const __grid_constant__ Args args) {                                                  \
    step<N>(keys, values, args);                                                                             \
  }
DECODE_STEP(8)
DECODE_STEP(16)
DECODE_STEP(32)
DECODE_STEP(64)
