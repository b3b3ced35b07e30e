// mbarrier.cuh: barriers in shared memory that count arrivals and the bytes of bulk copies (sm_90 and above).
//
// A phase ends when all arrivals are in and every expected byte has arrived; then the next one begins. A
// wait names the parity of a phase: the first has parity 0. Waiting for parity 1 on a fresh barrier returns at once,
// so a producer finds an empty pipeline empty. A thread must observe every phase: parity distinguishes only neighbours.
#pragma once

#include <cstdint>

#include "copy/shared_address.cuh"

__device__ __forceinline__ void mbarrier_init(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Called by the initializing thread before the block's barrier: makes the mbarriers visible to the copy engine.
__device__ __forceinline__ void mbarrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void mbarrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Arrive `count` times.
__device__ __forceinline__ void mbarrier_arrive(uint32_t barrier, uint32_t count) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

// Arrive once `loaded` is in its register: a word of what the warp has loaded of a stage. An arrival alone does not
// wait for loads: where tensor cores keep shared memory busy they are on their way for longer than the next copy, and
// have its bytes. There a word of each load is needed, combined by ^, since ptxas chooses their order; elsewhere the
// others come within tens of clocks of one. The permutation takes the barrier's address, whatever was loaded.
__device__ __forceinline__ void mbarrier_arrive_after(uint32_t barrier, uint32_t loaded, uint32_t count = 1) {
  asm volatile(
      "{\n.reg .b32 at;\n"
      "prmt.b32 at, %0, %1, 0x3210;\n"
      "mbarrier.arrive.shared::cta.b64 _, [at], %2;\n}" ::"r"(barrier),
      "r"(loaded), "r"(count)
      : "memory");
}

// Arrive as soon as all copies that this thread has started (async_copy.cuh) are done; returns at once.
__device__ __forceinline__ void mbarrier_arrive_after_copies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

// Arrive, and add the bytes that copies will deliver in this phase.
__device__ __forceinline__ void mbarrier_arrive_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

__device__ __forceinline__ void mbarrier_wait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "AGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra AGAIN;\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// Whether a phase of an mbarrier is over; may take a while where it is not.
__device__ __forceinline__ bool mbarrier_try_wait(uint32_t barrier, uint32_t parity) {
  uint32_t is_over;
  asm volatile(
      "{\n.reg .pred over;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 over, [%1], %2;\n"
      "selp.b32 %0, 1, 0, over;\n}"
      : "=r"(is_over)
      : "r"(barrier), "r"(parity)
      : "memory");
  return is_over != 0;
}
