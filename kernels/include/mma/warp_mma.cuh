// warp_mma.cuh: mma.sync m16n8k16 of bf16 or f16 by one warp, and ldmatrix for its operands (sm_80).
//
// With group = lane / 4 and pair = lane % 4, a lane holds
//   A [16 x 16]: rows group, group + 8, group, group + 8; columns 2 pair (+1), the last two words 8 further
//   B [16 x 8] : column group; rows 2 pair (+1), and 8 further
//   C [16 x 8] : rows group, group, group + 8, group + 8; columns 2 pair, 2 pair + 1, 2 pair, 2 pair + 1
#pragma once

#include <cstdint>

// c += A B: four words of c, four of a, two of b.
__device__ __forceinline__ void mma_16x8x16(float* c, const uint32_t* a, const uint32_t* b) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// The same in f16.
__device__ __forceinline__ void mma_16x8x16_f16(float* c, const uint32_t* a, const uint32_t* b) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Four 8 x 8 matrices of 16-bit elements: lanes 8 i to 8 i + 7 name the eight rows (16 bytes each) of matrix i. A lane
// gets row `group`, columns 2 pair and 2 pair + 1 of each.
__device__ __forceinline__ void load_matrices(uint32_t (&to)[4], uint32_t row_address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row_address)
               : "memory");
}

// The same, each matrix transposed.
__device__ __forceinline__ void load_matrices_transposed(uint32_t (&to)[4], uint32_t row_address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row_address)
               : "memory");
}

// Transpose an 8 x 8 matrix of 16-bit elements in the register layout of load_matrices.
__device__ __forceinline__ uint32_t transpose_8x8(uint32_t row) {
  uint32_t column;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(column) : "r"(row));
  return column;
}
