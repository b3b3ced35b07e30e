// wgmma.cuh: wgmma, the warpgroup (four warps) matrix multiply of Hopper (sm_90a).
//
//   D[64 x N] += A[64 x 16] B[16 x N], bf16 or f16 in, float32 sums in registers.
//
// A thread's sums: d[4 g + 2 h + e] is row 16 w + l / 4 + 8 h, column 8 g + 2 (l % 4) + e of D, with w its warp in the
// warpgroup and l its lane. The order of calls:
//   wgmma_registers(d); wgmma_fence(); wgmma_ss<N>(d, a, b) ...; wgmma_commit(); wgmma_wait<0>(); wgmma_registers(d);
#pragma once

#include <cstdint>

// Rows (of A, or columns of B) of 64 bf16 along K, 128 bytes, 128-byte swizzle: eight rows are an atom of 1,024 bytes,
// aligned to that; atoms follow each other. For the next 16 of K add 32 bytes to the address.
__device__ __forceinline__ uint64_t wgmma_descriptor(uint32_t address) {
  return static_cast<uint64_t>((address & 0x3ffff) >> 4) | 1ull << 16 | 64ull << 32 | 1ull << 62;
}

// B with N contiguous (kTransposed = 1): rows of 64 columns along N, 128 bytes, a row for each of K, 128-byte swizzle;
// the next 64 columns are `stride` bytes on. For the next 16 of K add 2,048 bytes to the address.
__device__ __forceinline__ uint64_t wgmma_descriptor_transposed(uint32_t address, uint32_t stride) {
  return static_cast<uint64_t>((address & 0x3ffff) >> 4) | static_cast<uint64_t>(stride >> 4) << 16 | 64ull << 32 |
         1ull << 62;
}

__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Wait until at most kPending of the groups committed last are unfinished.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Keep the compiler from moving accesses of these registers past this line.
template <int kCount>
__device__ __forceinline__ void wgmma_registers(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; i++) asm volatile("" : "+f"(d[i])::"memory");
}

template <int N>
struct Wgmma;

// Both operands in shared memory.
template <int N, int kTransposed = 0>
__device__ __forceinline__ void wgmma_ss(float (&d)[N / 2], uint64_t a, uint64_t b) {
  Wgmma<N>::template ss<kTransposed>(d, a, b);
}

// A in registers: the lane's row l / 4 and l / 4 + 8 of columns 2 (l % 4) and the next, then the same two 8 columns on.
template <int N, int kTransposed = 0>
__device__ __forceinline__ void wgmma_rs(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b) {
  Wgmma<N>::template rs<kTransposed>(d, a, b);
}

// The same in f16. Without kAccumulates D = A B.
template <int N, bool kAccumulates = true>
__device__ __forceinline__ void wgmma_rs_f16(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b) {
  Wgmma<N>::template rs_f16<kAccumulates>(d, a, b);
}

// clang-format off
// The sums as operands %0 to %(N / 2 - 1): their names, sixteen a line, and their registers.
#define WGMMA_R0 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define WGMMA_R1 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define WGMMA_R2 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define WGMMA_R3 ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define WGMMA_R4 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"
#define WGMMA_R5 ",%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define WGMMA_R6 ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111"
#define WGMMA_R7 ",%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
#define WGMMA_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define WGMMA_D16(i) WGMMA_D4(i), WGMMA_D4(i + 4), WGMMA_D4(i + 8), WGMMA_D4(i + 12)

// N, operand names of the sums, operand names after them, the registers.
#define WGMMA_SHAPE(N, NAMES, P0, P1, P2, P3, P4, P5, ...)                                                             \
  template <>                                                                                                          \
  struct Wgmma<N> {                                                                                                    \
    template <int kTransposed>                                                                                         \
    static __device__ __forceinline__ void ss(float (&d)[N / 2], uint64_t a, uint64_t b) {                             \
      asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" NAMES "}, " P0 ", " P1                 \
                   ", 1, 1, 1, 0, " P2 ";" : __VA_ARGS__ : "l"(a), "l"(b), "n"(kTransposed));                          \
    }                                                                                                                  \
    template <int kTransposed>                                                                                         \
    static __device__ __forceinline__ void rs(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b) {                 \
      asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" NAMES "}, {" P0 ", " P1 ", " P2 ", "   \
                   P3 "}, " P4 ", 1, 1, 1, " P5 ";"                                                                    \
                   : __VA_ARGS__ : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(kTransposed));              \
    }                                                                                                                  \
    template <int kAccumulates>                                                                                        \
    static __device__ __forceinline__ void rs_f16(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b) {             \
      asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.f16.f16 {" NAMES "}, {" P0 ", " P1 ", " P2 ", "     \
                   P3 "}, " P4 ", " P5 ", 1, 1, 0;"                                                                    \
                   : __VA_ARGS__ : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(kAccumulates));             \
    }                                                                                                                  \
  };
WGMMA_SHAPE(8, "%0,%1,%2,%3", "%4", "%5", "%6", "%7", "%8", "%9", WGMMA_D4(0))
WGMMA_SHAPE(16, "%0,%1,%2,%3,%4,%5,%6,%7", "%8", "%9", "%10", "%11", "%12", "%13", WGMMA_D4(0), WGMMA_D4(4))
WGMMA_SHAPE(32, WGMMA_R0, "%16", "%17", "%18", "%19", "%20", "%21", WGMMA_D16(0))
WGMMA_SHAPE(64, WGMMA_R0 WGMMA_R1, "%32", "%33", "%34", "%35", "%36", "%37", WGMMA_D16(0), WGMMA_D16(16))
WGMMA_SHAPE(96, WGMMA_R0 WGMMA_R1 WGMMA_R2, "%48", "%49", "%50", "%51", "%52", "%53",
            WGMMA_D16(0), WGMMA_D16(16), WGMMA_D16(32))
WGMMA_SHAPE(128, WGMMA_R0 WGMMA_R1 WGMMA_R2 WGMMA_R3, "%64", "%65", "%66", "%67", "%68", "%69",
            WGMMA_D16(0), WGMMA_D16(16), WGMMA_D16(32), WGMMA_D16(48))
WGMMA_SHAPE(160, WGMMA_R0 WGMMA_R1 WGMMA_R2 WGMMA_R3 WGMMA_R4, "%80", "%81", "%82", "%83", "%84", "%85",
            WGMMA_D16(0), WGMMA_D16(16), WGMMA_D16(32), WGMMA_D16(48), WGMMA_D16(64))
WGMMA_SHAPE(192, WGMMA_R0 WGMMA_R1 WGMMA_R2 WGMMA_R3 WGMMA_R4 WGMMA_R5, "%96", "%97", "%98", "%99", "%100", "%101",
            WGMMA_D16(0), WGMMA_D16(16), WGMMA_D16(32), WGMMA_D16(48), WGMMA_D16(64), WGMMA_D16(80))
WGMMA_SHAPE(224, WGMMA_R0 WGMMA_R1 WGMMA_R2 WGMMA_R3 WGMMA_R4 WGMMA_R5 WGMMA_R6, "%112", "%113", "%114", "%115", "%116", "%117",
            WGMMA_D16(0), WGMMA_D16(16), WGMMA_D16(32), WGMMA_D16(48), WGMMA_D16(64), WGMMA_D16(80), WGMMA_D16(96))
WGMMA_SHAPE(256, WGMMA_R0 WGMMA_R1 WGMMA_R2 WGMMA_R3 WGMMA_R4 WGMMA_R5 WGMMA_R6 WGMMA_R7, "%128", "%129", "%130", "%131", "%132", "%133",
            WGMMA_D16(0), WGMMA_D16(16), WGMMA_D16(32), WGMMA_D16(48), WGMMA_D16(64), WGMMA_D16(80), WGMMA_D16(96), WGMMA_D16(112))
#undef WGMMA_SHAPE
// clang-format on
