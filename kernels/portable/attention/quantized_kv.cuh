// quantized_kv.cuh: tiles of quantized K and V for decode_attention.cuh: copied as bytes, decoded to float16 by their
// warp.
//
// Operands are float16, in which every code is exact. A stage has K's codes of 16 tokens, their scales, then V's. The
// warp decodes the tile that has arrived into float16 rows as decode_copy.cuh lays them out; tokens that the query does
// not attend to become zeros. The layer's scale of K is in the score scale, that of V multiplies the result.
#pragma once

#include "decode_attention.cuh"
#include "kv_cache/codes.cuh"

// As copy16_async, of 8 bytes.
__device__ __forceinline__ void copy8_async(uint32_t shared, const void* global, bool exists) {
  const int bytes = exists ? 8 : 0;
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(shared), "l"(global), "r"(bytes) : "memory");
}

struct HalfOperands : SixteenBitOperands {
  __device__ __forceinline__ static uint32_t query(uint32_t pair) {
    constexpr float kMax = 65504.f;
    return pack(fminf(fmaxf(bf16_low(pair), -kMax), kMax), fminf(fmaxf(bf16_high(pair), -kMax), kMax));
  }
  __device__ __forceinline__ static uint32_t pack(float low, float high) {
    const __half2 pair = __floats2half2_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
  }
  __device__ __forceinline__ static void multiply(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
};

// By value, as ops/cuda/attention/decode_attention.py fills it.
struct QuantizedShape : Shape {
  float value_scale;
};

template <class Format>
struct QuantizedKv {
  using Element = uint8_t;
  using Shape = QuantizedShape;
  using Operands = HalfOperands;
  static constexpr bool kHasValueScale = true;

  template <int kSize>
  struct SmemLayout : ::SmemLayout<kSize> {
    using Plain = ::SmemLayout<kSize>;
    static constexpr int kCodeBytes = kTileTokens * kSize * Format::kBits / 8;
    static constexpr int kPartBytes = kCodeBytes + (Format::kHasScale ? kTileTokens * kSize / kGroupChannels : 0);
    static constexpr int kStageBytes = 2 * kPartBytes;
    static constexpr int kStages = Format::kBits == 8 ? WISP_DECODE_STAGES : 2 * WISP_DECODE_STAGES;
    static constexpr int kWarpBytes = kStages * kStageBytes + 2 * Plain::kTileBytes;
  };

  template <int kSize, bool kIsFull>
  __device__ __forceinline__ static void copy_tile(uint32_t stage, const KvTile& tile, const uint8_t* keys,
                                                   const uint8_t* values, const Shape& shape,
                                                   const VisibleRange& visible) {
    using L = SmemLayout<kSize>;
    const int lane = threadIdx.x % 32, size = kIsFull ? kSize : shape.head_size;
    const int code_bytes = size * Format::kBits / 8, scale_bytes = Format::kHasScale ? size / kGroupChannels : 0;
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const HalfTile& from = half ? tile.high : tile.low;
      const int token = tile.number * kTileTokens + half * 8;
      const bool exists = kIsFull || (token < visible.end && token + 8 > visible.first);
      const int64_t head = static_cast<int64_t>(from.block) * shape.kv_heads + blockIdx.x;
      const int64_t start = head * shape.block_tokens * (code_bytes + scale_bytes);
#pragma unroll
      for (int part = 0; part < 2; part++) {
        const uint8_t* codes = (part ? values : keys) + start;
        const uint32_t to = stage + part * L::kPartBytes;
#pragma unroll
        for (int chunk = 0; chunk < L::kCodeBytes / 2; chunk += 512) {
          const int at = chunk + lane * 16;
          if (at < 8 * code_bytes) {
            copy16_async_of_line(to + half * 8 * code_bytes + at, codes + from.offset * code_bytes + at, exists);
          }
        }
        if (Format::kHasScale && lane < scale_bytes) {  // at most 16 copies of 8 bytes
          const uint8_t* scales = codes + shape.block_tokens * code_bytes + from.offset * scale_bytes;
          copy8_async(to + L::kCodeBytes + half * 8 * scale_bytes + lane * 8, scales + lane * 8, exists);
        }
      }
    }
  }

  template <int kSize>
  __device__ __forceinline__ static PaddedRows<kSize> rows(uint32_t stage, uint32_t mine, int tile, const Shape& shape,
                                                           const VisibleRange& visible) {
    using L = SmemLayout<kSize>;
    const uint32_t plain = mine + L::kStages * L::kStageBytes;
    if (shape.head_size == kSize && visible.has_all(tile)) {
      decode_tile<kSize, true>(stage, plain, tile, shape, visible);
    } else {
      decode_tile<kSize, false>(stage, plain, tile, shape, visible);
    }
    __syncwarp();
    return PaddedRows<kSize>(plain);
  }

 private:
  // Decode the tile of a stage to rows at `plain`. A tile is full if the query attends to all of it and no channel is
  // missing.
  template <int kSize, bool kIsFull>
  __device__ __forceinline__ static void decode_tile(uint32_t stage, uint32_t plain, int tile, const Shape& shape,
                                                     const VisibleRange& visible) {
    using L = SmemLayout<kSize>;
    constexpr int kUnits = kSize / kGroupChannels;
    const int lane = threadIdx.x % 32, size = kIsFull ? kSize : shape.head_size;
    const int swap = kUnits % 8 == 0 && lane % 8 >= 4 ? 16 : 0;  // neighbours' halves in another order: other banks
#pragma unroll
    for (int part = 0; part < 2; part++) {
#pragma unroll
      for (int first = 0; first < kTileTokens * kUnits; first += 32) {
        const int index = first + lane, token = index / kUnits, unit = index % kUnits;
        if (kTileTokens * kUnits % 32 != 0 && token >= kTileTokens) continue;
        uint32_t pairs[8] = {};
        if (kIsFull || (unit * kGroupChannels < size && visible.has(tile * kTileTokens + token))) {
          decode(stage + part * L::kPartBytes, L::kCodeBytes, token, unit, size, swap != 0, pairs);
        }
        const uint32_t to = plain + part * L::Plain::kTileBytes + token * L::Plain::kRowBytes + unit * 32;
        store_shared16(to + swap, pairs[0], pairs[1], pairs[2], pairs[3]);
        store_shared16(to + (16 - swap), pairs[4], pairs[5], pairs[6], pairs[7]);
      }
    }
  }
  __device__ __forceinline__ static void decode(uint32_t part, int scales, int token, int unit, int size, bool swaps,
                                                uint32_t (&pairs)[8]) {
    Codes<Format::kBits> codes;
    codes.load_shared(part + token * (size * Format::kBits / 8) + unit * Codes<Format::kBits>::kBytes);
    if constexpr (Format::kHasScale) {
      const uint32_t at = part + scales + token * (size / kGroupChannels) + unit;
      asm volatile("ld.shared.u8 %0, [%1];" : "=r"(codes.scale) : "r"(at) : "memory");
    }
    Format::decode(codes, swaps, pairs);
  }
  __device__ __forceinline__ static void store_shared16(uint32_t to, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
  }
};
