// device.h: CUDA C++ as the kernels write it, in terms of the machine. launch.h includes it before each kernel.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "machine.h"

#define __device__
#define __forceinline__ inline
#define __grid_constant__
#define __align__(bytes) alignas(bytes)
#define __restrict__
#define __expf(x) std::exp(x)

#define threadIdx (emulator::machine.current->thread)
#define blockIdx (emulator::machine.current->block->index)
#define blockDim (emulator::machine.block_shape)
#define gridDim (emulator::machine.grid)

struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
inline int4 make_int4(int x, int y, int z, int w) {
  return {x, y, z, w};
}
inline float2 make_float2(float x, float y) {
  return {x, y};
}
inline float4 make_float4(float x, float y, float z, float w) {
  return {x, y, z, w};
}
inline uint2 make_uint2(unsigned x, unsigned y) {
  return {x, y};
}
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) {
  return {x, y, z, w};
}

inline int min(int a, int b) {
  return a < b ? a : b;
}
inline int max(int a, int b) {
  return a > b ? a : b;
}
inline unsigned min(unsigned a, unsigned b) {
  return a < b ? a : b;
}
inline unsigned max(unsigned a, unsigned b) {
  return a > b ? a : b;
}

inline float __fdividef(float a, float b) {
  return a / b;
}
inline float rsqrtf(float x) {
  return 1.f / std::sqrt(x);
}
inline unsigned __float_as_uint(float x) {
  return std::bit_cast<unsigned>(x);
}
inline float __uint_as_float(unsigned x) {
  return std::bit_cast<float>(x);
}
template <class T>
T __ldcg(const T* from) {
  return *from;
}
template <class T>
T __ldg(const T* from) {
  if (reinterpret_cast<uintptr_t>(from) % sizeof(T)) emulator::machine.fault("a load from no multiple of its size");
  return *from;
}
template <class T>
T __ldcs(const T* from) {
  return __ldg(from);
}
template <class T>
void __stcg(T* to, const T& value) {
  *to = value;
}
template <class T>
void __stcs(T* to, const T& value) {
  *to = value;
}

inline size_t __cvta_generic_to_shared(const void* address) {
  return size_t(static_cast<const std::byte*>(address) - emulator::machine.current->block->shared);
}

inline void __syncthreads() {
  emulator::machine.finish_reads();
  emulator::machine.order_stores();
  emulator::machine.wait_for(emulator::machine.current->block->barriers[0], int(blockDim.x));
}

inline bool __syncthreads_or(bool claim) {
  emulator::Block& block = *emulator::machine.current->block;
  bool& any = block.claims[block.barriers[0].generation % 2];
  any |= claim;
  __syncthreads();
  const bool result = any;
  __syncthreads();
  any = false;
  return result;
}

// Warps: a lane shows its words, all come together, then each looks.
namespace emulator {

struct Shown {
  const uint64_t (*words)[8];
};

template <class... T>
Shown show_to_warp(const T&... values) {
  Fiber& self = *machine.current;
  Warp& warp = self.block->warps[self.warp];
  auto& buffer = warp.words[warp.barrier.generation % 2];
  int i = 0;
  ((buffer[self.lane][i] = 0, std::memcpy(&buffer[self.lane][i++], &values, sizeof(T))), ...);
  machine.order_stores();
  machine.wait_for(warp.barrier, warp.live);
  return {buffer};
}

template <class T>
T shown(const uint64_t& word) {
  T value;
  std::memcpy(&value, &word, sizeof(T));
  return value;
}

}  // namespace emulator

inline void __syncwarp() {
  emulator::show_to_warp();
}
template <class T>
T __shfl_sync(unsigned, T value, int lane) {
  return emulator::shown<T>(emulator::show_to_warp(value).words[lane][0]);
}
template <class T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  const int lane = emulator::machine.current->lane ^ mask;
  return emulator::shown<T>(emulator::show_to_warp(value).words[lane][0]);
}
template <class T>
T __shfl_up_sync(unsigned, T value, int distance) {
  const int own = emulator::machine.current->lane, lane = own < distance ? own : own - distance;
  return emulator::shown<T>(emulator::show_to_warp(value).words[lane][0]);
}
inline bool __all_sync(unsigned, bool claim) {
  const emulator::Shown all = emulator::show_to_warp(claim);
  bool holds = true;
  for (int lane = 0; lane < 32; lane++) holds = holds && emulator::shown<bool>(all.words[lane][0]);
  return holds;
}

inline unsigned __ballot_sync(unsigned, bool claim) {
  const emulator::Shown all = emulator::show_to_warp(claim);
  unsigned claims = 0;
  for (int lane = 0; lane < 32; lane++) claims |= unsigned(emulator::shown<bool>(all.words[lane][0])) << lane;
  return claims;
}
inline unsigned __reduce_max_sync(unsigned, unsigned value) {
  const emulator::Shown all = emulator::show_to_warp(value);
  unsigned most = 0;
  for (int lane = 0; lane < 32; lane++) most = std::max(most, emulator::shown<unsigned>(all.words[lane][0]));
  return most;
}
inline int __reduce_add_sync(unsigned, int value) {
  const emulator::Shown all = emulator::show_to_warp(value);
  int sum = 0;
  for (int lane = 0; lane < 32; lane++) sum += emulator::shown<int>(all.words[lane][0]);
  return sum;
}
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>(static_cast<uint64_t>(a) * b >> 32);
}
inline unsigned __reduce_min_sync(unsigned, unsigned value) {
  const emulator::Shown all = emulator::show_to_warp(value);
  unsigned least = ~0u;
  for (int lane = 0; lane < 32; lane++) least = std::min(least, emulator::shown<unsigned>(all.words[lane][0]));
  return least;
}
inline int __popc(unsigned bits) {
  return std::popcount(bits);
}
inline int __ffs(unsigned bits) {
  return bits == 0 ? 0 : std::countr_zero(bits) + 1;
}

inline unsigned atomicExch(unsigned* at, unsigned value) {
  const unsigned before = *at;
  *at = value;
  return before;
}
inline unsigned atomicAdd(unsigned* at, unsigned more) {
  const unsigned before = *at;
  *at += more;
  return before;
}
inline unsigned long long atomicAdd(unsigned long long* at, unsigned long long more) {
  const unsigned long long before = *at;
  *at += more;
  return before;
}
inline unsigned atomicOr(unsigned* at, unsigned bits) {
  const unsigned before = *at;
  *at |= bits;
  return before;
}

inline unsigned atomicXor(unsigned* at, unsigned bits) {
  const unsigned before = *at;
  *at ^= bits;
  return before;
}
inline void __threadfence() {
  emulator::machine.release();
}
inline void __threadfence_system() {
  emulator::machine.release();
}
inline void __nanosleep(unsigned) {
  emulator::machine.poll();
}
inline long long clock64() {
  emulator::machine.poll();
  return emulator::machine.clock;
}
[[noreturn]] inline void __trap() {
  emulator::machine.fault("trap");
}
