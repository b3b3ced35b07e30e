// linear_rotary.cu: q, k, v = x W^T + bias, RoPE on q and k, k and v stored in the paged cache. An entry
// linear_rotary_[tall_]n<tokens> for each tile.
//
//   x    : [N, in] bf16, as in linear.cu     W : [(Hq + 2 Hkv) Dh, in] bf16, tiled; rows
//          interleaved as rope_interleaved_<Dh> of ops/protocol/weights/row_permutation.py
//   bias : [(Hq + 2 Hkv) Dh] bf16 in the same order, or null
//   y    : [N, out_columns] bf16, the first Hq Dh columns of a row: q. Columns after them are left alone
//   cosines, sines : [S, Dh / 2] float32     positions : [N] int32     slots : [N] int64, -1 writes nothing
//   keys, values : [P, Hkv, Tb, Dh] bf16
//   math : bf16 operands, float32 sums in a fixed order, rounded; RoPE in float32, rounded once more: equal to
//          linear.cu followed by rope_write_kv.cu, to the bit where the row tiles are the same (Dh <= 128)
//   grid : as linear.cu     block: as linear.cu     shared: as linear.cu
//   needs: as linear.cu; Dh % 64 == 0; RoPE over the whole head, no QK-norm; 16-byte aligned arrays,
//          fewer than 2^31 slots (ops/cuda/gemm/rotary_arguments.py checks)
//   check: tests/gpu/gemm/test_linear_rotary.py against linear.cu and rope_write_kv.cu, equal to the bit; Dh 192
//          and 256 to 2^-7
#include "linear.cuh"
#include "rotary_epilogue.cuh"

template <int kTokens>
using Rotary = Bf16Epilogue<kTokens, RotaryOut>;

// LINEAR_ENTRIES below expands this one, of three parameters.
#undef LINEAR_ENTRY
#define LINEAR_ENTRY(name, tokens, row_tiles, Epilogue)                                    \
  extern "C" __global__ void __launch_bounds__(kLinearThreads<tokens, row_tiles>,          \
                                               kIsNarrow<tokens, row_tiles> ? 2 : 1)       \
      name(const __grid_constant__ CUtensorMap map, const __grid_constant__ GemmArgs args, \
           const __grid_constant__ RotaryArgs heads) {                                     \
    linear<tokens, row_tiles, Epilogue<tokens>>(&map, args, heads);                        \
  }

LINEAR_ENTRIES(linear_rotary, Rotary)
