// prefill_attention.cu: out = softmax(scale q K^T) V over the paged cache, for chunks of more than one token.
//
//   q : [N, Hq, Dh] bf16, strided rows     out : [N, Hq * Dh] bf16, strided rows     N tokens, Hq query heads
//   keys, values : tensor maps of [P * Hkv * Tb, Dh] bf16, boxes of unit x 64
//   work tiles : int32, see prefill_work_tile.cuh
//   sinks : [Hq] float32 or null: one more logit of each head's softmax, not scaled, without a value
//   math : bf16 operands, float32 sums and softmax; weights rounded to bf16 for the second matrix product
//   grid : (at most one a multiprocessor, 1, 1)    block : (128 + 2 * rows of a tile, 1, 1)
//   shared : Tile::kSharedBytes
//   needs: Dh % 8 == 0, Dh <= the 64 to 256 of the kernel's name, 16-byte aligned rows, unit a power of two, 8 or more,
//          that divides Tb and 128 tokens (64 from Dh 129 on) (ops/cuda/attention/prefill_attention.py checks)
//   check: tests/gpu/attention/test_prefill_attention.py against float32, error 1.5e-2 of a row's norm, mean 4e-3
//
// FlashAttention-3 (Shah et al. 2024, arXiv:2407.08608): producer warps copy KV blocks by TMA, two warpgroups alternate
// at wgmma, softmax overlaps the multiplication. Persistent. The portable kernels are here too, for comparison.
#include "../../portable/attention/prefill_attention.cu"
#include "prefill_compute.cuh"
#include "sync/pdl.cuh"

namespace hopper {

constexpr int kCopyRegisters = 40, kComputeRegisters = 232;  // of a thread, with two consumer warpgroups

struct alignas(64) TensorMap {
  unsigned long long opaque[16];
};

template <int kDh, int kGroups>
__device__ __forceinline__ void prefill_attention(const PrefillArguments& a, const TensorMap& keys,
                                                  const TensorMap& values, int unit) {
  using Shape = Tile<kDh, kGroups>;
  extern __shared__ __align__(1024) unsigned char shared[];
  const SmemLayout<Shape> memory(shared);
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);  // uniform for the compiler
  pdl_launch_dependents();
  if (threadIdx.x == 0) {
    memory.init_barriers();
    tma_prefetch_map(&keys);
    tma_prefetch_map(&values);
  }
  __syncthreads();
  pdl_wait();

  if (warp < 4) {
    if constexpr (kGroups == 2) asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCopyRegisters));
    if (warp == 0) {
      copy_kv<Shape>(a, &keys, unit, memory.keys(0), memory.keys_full(0), memory.keys_empty(0));
    } else if (warp == 1) {
      copy_kv<Shape>(a, &values, unit, memory.values(0), memory.values_full(0), memory.values_empty(0));
    } else {
      copy_queries<Shape>(a, memory, threadIdx.x - 64);
    }
  } else {
    if constexpr (kGroups == 2) asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kComputeRegisters));
    compute<Shape>(a, memory, warp / 4 - 1);
  }
}

}  // namespace hopper

#define PREFILL_ATTENTION_WGMMA(dh, rows)                                                                  \
  extern "C" __global__ void __launch_bounds__(128 + 2 * rows, 1) prefill_attention_wgmma_d##dh##_r##rows( \
      const __grid_constant__ PrefillArguments a, const __grid_constant__ hopper::TensorMap keys,          \
      const __grid_constant__ hopper::TensorMap values, int unit) {                                        \
    hopper::prefill_attention<dh, rows / 64>(a, keys, values, unit);                                       \
  }
PREFILL_ATTENTION_WGMMA(64, 64)
PREFILL_ATTENTION_WGMMA(64, 128)
PREFILL_ATTENTION_WGMMA(128, 64)
PREFILL_ATTENTION_WGMMA(128, 128)
PREFILL_ATTENTION_WGMMA(192, 64)
PREFILL_ATTENTION_WGMMA(192, 128)
PREFILL_ATTENTION_WGMMA(256, 64)
PREFILL_ATTENTION_WGMMA(256, 128)
