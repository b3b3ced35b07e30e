// wgmma_e4m3.cuh: wgmma of E4M3 (sm_90a): D[64 x N] (+)= A[64 x 32] B[32 x N], A in registers, float32 sums.
//
// Sums lie and calls follow each other as in wgmma.cuh. A lane's four words of A: row l / 4, columns 4 (l % 4) to + 3;
// row l / 4 + 8; the same two of the columns 16 on. B: 128 E4M3 along K are 128 bytes, 128-byte swizzle; for the next
// 32 of K add 32 bytes to the address. The tensor cores keep 14 bits of a sum while they add: add sums up elsewhere
// every few hundred columns.
#pragma once

#include "mma/wgmma.cuh"

template <int N>
struct WgmmaE4m3;

// D = A B.
template <int N>
__device__ __forceinline__ void wgmma_e4m3_first(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b) {
  WgmmaE4m3<N>::first(d, a, b);
}

// D += A B.
template <int N>
__device__ __forceinline__ void wgmma_e4m3(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b) {
  WgmmaE4m3<N>::more(d, a, b);
}

// clang-format off
// The sums as operands %0 to %(N / 2 - 1): their names, sixteen a line, and their registers.
#define E4M3_R0 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define E4M3_R1 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define E4M3_R2 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define E4M3_R3 ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define E4M3_R4 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"
#define E4M3_R5 ",%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define E4M3_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define E4M3_D16(i) E4M3_D4(i), E4M3_D4(i + 4), E4M3_D4(i + 8), E4M3_D4(i + 12)
#define E4M3_S4(i) "=f"(d[i]), "=f"(d[i + 1]), "=f"(d[i + 2]), "=f"(d[i + 3])
#define E4M3_S16(i) E4M3_S4(i), E4M3_S4(i + 4), E4M3_S4(i + 8), E4M3_S4(i + 12)
#define E4M3_D32(i) E4M3_D16(i), E4M3_D16(i + 16)
#define E4M3_S32(i) E4M3_S16(i), E4M3_S16(i + 16)

// N, operand names of the sums, operand names after them, the registers written, the registers read and written.
#define E4M3_SHAPE(N, NAMES, P0, P1, P2, P3, P4, WRITTEN, BOTH)                                                        \
  template <>                                                                                                          \
  struct WgmmaE4m3<N> {                                                                                                \
    static __device__ __forceinline__ void first(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b) {              \
      asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k32.f32.e4m3.e4m3 {" NAMES "}, {" P0 ", " P1 ", " P2 ", "   \
                   P3 "}, " P4 ", 0, 1, 1;"                                                                            \
                   : WRITTEN : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                    \
    }                                                                                                                  \
    static __device__ __forceinline__ void more(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b) {               \
      asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k32.f32.e4m3.e4m3 {" NAMES "}, {" P0 ", " P1 ", " P2 ", "   \
                   P3 "}, " P4 ", 1, 1, 1;"                                                                            \
                   : BOTH : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                       \
    }                                                                                                                  \
  };
#define E4M3_LIST(...) __VA_ARGS__
E4M3_SHAPE(64, E4M3_R0 E4M3_R1, "%32", "%33", "%34", "%35", "%36", E4M3_LIST(E4M3_S32(0)), E4M3_LIST(E4M3_D32(0)))
E4M3_SHAPE(96, E4M3_R0 E4M3_R1 E4M3_R2, "%48", "%49", "%50", "%51", "%52", E4M3_LIST(E4M3_S32(0), E4M3_S16(32)),
           E4M3_LIST(E4M3_D32(0), E4M3_D16(32)))
E4M3_SHAPE(128, E4M3_R0 E4M3_R1 E4M3_R2 E4M3_R3, "%64", "%65", "%66", "%67", "%68",
           E4M3_LIST(E4M3_S32(0), E4M3_S32(32)), E4M3_LIST(E4M3_D32(0), E4M3_D32(32)))
E4M3_SHAPE(192, E4M3_R0 E4M3_R1 E4M3_R2 E4M3_R3 E4M3_R4 E4M3_R5, "%96", "%97", "%98", "%99", "%100",
           E4M3_LIST(E4M3_S32(0), E4M3_S32(32), E4M3_S32(64)), E4M3_LIST(E4M3_D32(0), E4M3_D32(32), E4M3_D32(64)))
#undef E4M3_SHAPE
#undef E4M3_LIST
// clang-format on
