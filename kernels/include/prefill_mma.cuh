// prefill_mma.cuh: copies into shared memory that a thread does not wait for, and a warp's tensor core (sm_80 and
// above).
#pragma once

#include <cstdint>

// 16 bytes from global to shared memory, or zeros if not `has` (then `from` is not read). Both are aligned to 16.
__device__ __forceinline__ void copy16_async(uint32_t to, const void* from, bool has) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(has ? 16 : 0) : "memory");
}
__device__ __forceinline__ void copies_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Wait until at most kPending of this thread's groups committed last are unfinished.
template <int kPending>
__device__ __forceinline__ void copies_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Four 8 x 8 matrices of bf16: lane 8 m + r has the address of row r of matrix m, 16 bytes. words[m] is row l / 4,
// columns 2 (l % 4) and the next of matrix m; transposed: column l / 4, rows 2 (l % 4) and the next.
__device__ __forceinline__ void load_matrices(uint32_t (&words)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(address)
               : "memory");
}
__device__ __forceinline__ void load_matrices_transposed(uint32_t (&words)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(address)
               : "memory");
}

// d[16 x 8] += a[16 x 16] b[16 x 8]. a: rows l / 4 and l / 4 + 8 of columns 2 (l % 4) and the next, then the same 8
// columns on. b0, b1: rows 2 (l % 4) and the next, then 8 rows on, of column l / 4. d: d[2 h + e] is row l / 4 + 8 h,
// column 2 (l % 4) + e.
__device__ __forceinline__ void mma(float* d, const uint32_t* a, uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
