// pack_quantized.cu: rows of codes and scales to the tiles that GEMMs of a quantized format read.
//
//   codes  : [R, in] bytes, or [R, in / 2] of codes of 4 bits, the even column low     in : columns
//   scales : [R] float32 of rows; [R, in / group] f16 or bytes of groups, with zero points of a byte or without;
//            [R, ceil(in / 128)] float32 of blocks, equal in eight rows
//   packed : the complete matrix in the order of wisp_plan/quantization/packed_format.py
//   math   : none; E2M1 of two rows, or of two steps, shares a word, which is cleared before and takes both by atomic
//            OR or XOR
//   report : not_finite becomes 1 where a code is E4M3's NaN, if it is given
//   grid   : (ceil(R * in / 16 / 256), 1, 1)    block : (256, 1, 1)    shared : none
//   needs  : in % 16 == 0, in % group == 0, 16-byte aligned codes, first + R inside the matrix
//            (ops/cuda/weights/quantized.py checks); padding is written before. The next kernel may stream weights
//            before this one has ended: synchronize after packing
//   check  : tests/gpu/gemm/test_pack_quantized.py against ops/reference/quantized_packing.py, exact
#include <cuda_fp16.h>

#include "math/bf16.cuh"
#include "packed_row.cuh"
#include "quantized/e2m1_fields.cuh"
#include "sync/pdl.cuh"

constexpr int kThreads = 256;
constexpr int kStep = 16;         // columns of a step of the tensor cores; a thread has one of one row
constexpr int kCodeBytes = 2048;  // of a slice of 16 rows
constexpr int kQuarterBytes = kCodeBytes / 4;
constexpr int kLaneBytes = 16;  // of a quarter

// Where a step of one row lies: its slice of a tile, and in that its lanes' bytes.
struct Place {
  uint8_t* slice;
  uint8_t* lanes;  // four lanes, kLaneBytes apart: one for each pair of columns
  int step;        // of a quarter
  int half;        // 1: lower eight rows of the slice
  int row;         // of the half

  __device__ Place(uint8_t* storage, int at, int column, int tile_columns, int column_tiles, int slice_bytes) {
    const int within = column % tile_columns, quarter = within / (tile_columns / 4);
    const size_t tile = static_cast<size_t>(at / 64) * column_tiles + column / tile_columns;
    slice = storage + (tile * 4 + at % 64 / 16) * slice_bytes;
    step = within % (tile_columns / 4) / kStep;
    half = at % 16 / 8;
    row = at % 8;
    lanes = slice + quarter * kQuarterBytes + row * 4 * kLaneBytes;
  }
};

// Nibble of column `c` of a step: 0 to 15.
__device__ __forceinline__ uint32_t nibble(const uint2& codes, int c) {
  return ((c < 8 ? codes.x : codes.y) >> (c % 8 * 4)) & 15u;
}

struct EightBits {
  static constexpr int kTileColumns = 128, kStepBytes = 16;
  using Scale = uint8_t;

  __device__ static void store(const uint8_t* codes, const Place& at) {
    const uint4 loaded = load16(codes);
    const uint32_t words[4] = {loaded.x, loaded.y, loaded.z, loaded.w};  // two pairs of columns each
#pragma unroll
    for (int pair = 0; pair < 8; pair++) {
      const auto value = static_cast<uint16_t>(words[pair / 2] >> (pair % 2 * 16));
      uint8_t* lane = at.lanes + pair % 4 * kLaneBytes + at.step * 8;
      *reinterpret_cast<uint16_t*>(lane + pair / 4 * 4 + at.half * 2) = value;
    }
  }

  // Whether one of the codes, as E4M3, is NaN: 0x7f or 0xff.
  __device__ static bool has_nan(const uint8_t* codes) {
    const uint4 loaded = load16(codes);
    const uint32_t words[4] = {loaded.x, loaded.y, loaded.z, loaded.w};
    uint32_t carries = 0;
#pragma unroll
    for (uint32_t word : words) carries |= (word & 0x7f7f7f7fu) + 0x01010101u;
    return carries & 0x80808080u;
  }
};

struct Int4 {
  static constexpr int kTileColumns = 256, kStepBytes = 8;
  using Scale = uint16_t;  // f16

  __device__ static void store(const uint8_t* codes, const Place& at) {
    const uint2 loaded = *reinterpret_cast<const uint2*>(codes);
#pragma unroll
    for (int column = 0; column < 8; column++) {
      uint8_t* lane = at.lanes + column / 2 * kLaneBytes + at.step * 4;
      const uint32_t both = nibble(loaded, column) | nibble(loaded, column + 8) << 4;
      lane[column % 2 * 2 + at.half] = static_cast<uint8_t>(both);
    }
  }
};

struct Mxfp4 {
  static constexpr int kTileColumns = 256, kStepBytes = 8;
  using Scale = uint8_t;

  __device__ static void store(const uint8_t* codes, const Place& at) {
    const uint2 loaded = *reinterpret_cast<const uint2*>(codes);
#pragma unroll
    for (int pair = 0; pair < 4; pair++) {
      uint32_t word = 0;
#pragma unroll
      for (int number = 0; number < 4; number++) {  // left pair, right pair
        const uint32_t code = nibble(loaded, number / 2 * 8 + pair * 2 + number % 2);
        word |= (code & 7u) << (4 * (4 * at.half + number)) | (code >> 3) << (8 * number + 7 - 4 * at.half);
      }
      atomicOr(reinterpret_cast<uint32_t*>(at.lanes + pair * kLaneBytes + at.step * 4), word);
    }
  }
};

// A step is half of the 32 columns of a word, and of the four lanes' words.
struct Mxfp4Fields : Mxfp4 {
  static __device__ void store(const uint8_t* codes, const Place& at) {
    const uint2 loaded = *reinterpret_cast<const uint2*>(codes);
#pragma unroll
    for (int lane = 0; lane < 4; lane++) {
      uint32_t pairs[2] = {};
#pragma unroll
      for (int number = 0; number < 4; number++) {
        const uint32_t code = nibble(loaded, number / 2 * 8 + lane * 2 + number % 2);
        pairs[number / 2] |= ((code & 7u) << 6 | (code >> 3) << 15) << (16 * (number % 2));
      }
      const bool is_first = at.step % 2 == 0;
      const uint32_t zero = 0, all[4] = {is_first ? pairs[0] : zero, is_first ? pairs[1] : zero,
                                         is_first ? zero : pairs[0], is_first ? zero : pairs[1]};
      const int word = at.step / 2 * 2 + at.half;
      atomicXor(reinterpret_cast<uint32_t*>(at.lanes + lane * kLaneBytes + word * 4), e2m1_word(all));
    }
  }
};

struct Nvfp4 {
  static constexpr int kTileColumns = 256, kStepBytes = 8;
  using Scale = uint8_t;

  __device__ static void store(const uint8_t* codes, const Place& at) {
    const uint2 loaded = *reinterpret_cast<const uint2*>(codes);
#pragma unroll
    for (int pair = 0; pair < 4; pair++) {
      uint32_t word = 0;
#pragma unroll
      for (int column = 0; column < 2; column++) {
        const uint32_t left = nibble(loaded, pair * 2 + column), right = nibble(loaded, 8 + pair * 2 + column);
        const uint32_t magnitudes = (left & 7u) << (at.half ? 6 : 9) | (right & 7u) << (at.half ? 0 : 3);
        const uint32_t signs = (left >> 3) << (at.half ? 12 : 15) | (right >> 3) << (at.half ? 13 : 14);
        word |= (magnitudes | signs) << (16 * column);
      }
      atomicOr(reinterpret_cast<uint32_t*>(at.lanes + pair * kLaneBytes + at.step * 4), word);
    }
  }
};

// Pointers and sizes of a launch: ops/cuda/weights/quantized_arguments.py has the same fields.
struct PackArgs {
  const uint8_t* codes;
  const float* row_scales;
  const void* group_scales;  // null: the format has none, as of the next two
  const uint8_t* zero_points;
  const float* block_scales;
  uint8_t* storage;
  int* not_finite;                       // null: codes are not looked at
  long long block_section, row_section;  // bytes at which they begin
  int rows, first, columns, column_tiles, order, group, slice_bytes, group_scale_bytes;
};

// Row scales of fields are stored 2^12 times as large: their groups' are 2^(byte - 25).
template <class Format>
__device__ __forceinline__ float stored_row_scale(float scale) {
  return scale;
}
template <>
__device__ __forceinline__ float stored_row_scale<Mxfp4Fields>(float scale) {
  return scale * 4096.f;
}

template <class Format>
__device__ __forceinline__ void pack(const PackArgs& args) {
  const int steps = args.columns / kStep;
  const int index = blockIdx.x * kThreads + threadIdx.x;
  const int row = index / steps, column = index % steps * kStep;
  pdl_wait();
  if (row >= args.rows) return;
  const int packed = packed_row(args.first + row, args.order);
  const Place at(args.storage, packed, column, Format::kTileColumns, args.column_tiles, args.slice_bytes);

  // 1. The codes.
  const uint8_t* codes = args.codes + (static_cast<size_t>(row) * steps + column / kStep) * Format::kStepBytes;
  Format::store(codes, at);
  if constexpr (Format::kStepBytes == kStep) {
    if (args.not_finite && Format::has_nan(codes)) *args.not_finite = 1;
  }

  // 2. Scale and zero point of the group that begins here.
  if (args.group_scales && column % args.group == 0) {
    using Scale = typename Format::Scale;
    const int groups = Format::kTileColumns / args.group;
    const int to = (at.row * groups + column % Format::kTileColumns / args.group) * 2 + at.half;
    const size_t from = static_cast<size_t>(row) * (args.columns / args.group) + column / args.group;
    reinterpret_cast<Scale*>(at.slice + kCodeBytes)[to] = static_cast<const Scale*>(args.group_scales)[from];
    if (args.zero_points) at.slice[kCodeBytes + args.group_scale_bytes + to] = args.zero_points[from];
  }

  // 3. Scales of the block, once for eight rows, and of the row.
  if (args.block_scales && at.row == 0 && column % Format::kTileColumns == 0) {
    const int tile = column / Format::kTileColumns;
    const size_t to = (static_cast<size_t>(packed / 64) * args.column_tiles + tile) * 8 + packed % 64 / 8;
    const size_t from = static_cast<size_t>(row) * args.column_tiles + tile;
    reinterpret_cast<float*>(args.storage + args.block_section)[to] = args.block_scales[from];
  }
  if (column == 0) {
    const float scale = stored_row_scale<Format>(args.row_scales[row]);
    reinterpret_cast<float*>(args.storage + args.row_section)[packed] = scale;
  }
}

#define PACK_ENTRY(name, Format)                                                                       \
  extern "C" __global__ void __launch_bounds__(kThreads) name(const __grid_constant__ PackArgs args) { \
    pdl_launch_dependents();                                                                           \
    pack<Format>(args);                                                                                \
  }

PACK_ENTRY(pack_eight_bits, EightBits)
PACK_ENTRY(pack_int4, Int4)
PACK_ENTRY(pack_mxfp4, Mxfp4)
PACK_ENTRY(pack_mxfp4_fields, Mxfp4Fields)
PACK_ENTRY(pack_nvfp4, Nvfp4)
