// bits.cuh: byte permutation and bit selection for the codecs of quantized numbers, one instruction each.
#pragma once

#include <cstdint>

// Byte i of the result is the byte of b:a that nibble i of `selector` names; nibbles of 8 and more repeat the sign of
// byte nibble - 8.
__device__ __forceinline__ uint32_t permute_bytes(uint32_t a, uint32_t b, uint32_t selector) {
  uint32_t d;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(selector));
  return d;
}

// (a & mask) | more.
__device__ __forceinline__ uint32_t and_or(uint32_t a, uint32_t mask, uint32_t more) {
  uint32_t d;
  asm("lop3.b32 %0, %1, %2, %3, %4;" : "=r"(d) : "r"(a), "r"(mask), "r"(more), "n"(0xEA));
  return d;
}

// (a & mask) ^ other.
__device__ __forceinline__ uint32_t and_xor(uint32_t a, uint32_t mask, uint32_t other) {
  uint32_t d;
  asm("lop3.b32 %0, %1, %2, %3, %4;" : "=r"(d) : "r"(a), "r"(mask), "r"(other), "n"(0x6A));
  return d;
}

// A constant that stays in a register: an instruction takes one immediate, which its mask shall be.
__device__ __forceinline__ uint32_t in_register(uint32_t constant) {
  uint32_t d;
  asm("mov.b32 %0, %1;" : "=r"(d) : "r"(constant));
  return d;
}
