// hang_detector.cuh: waits with a timeout. A wait that lasts longer leaves a report in memory of the host, and traps.
#pragma once

#include "model.cuh"
#include "sync/mbarrier.cuh"

// ops/cuda/persistent/ has a sentence for each.
enum WaitReason : int {
  kStageFull = 1,
  kStageEmpty,
  kActivationsFull,
  kActivationsEmpty,
  kPartialsReceived,
  kGridBarrier,
  kGridBarrierPassed,
  kRowScales,
  kPlan,
  kPreRopeQkv,
  kRouterLogits,
  kExpertList,
};

struct HangDetector {
  HangReport* report;
  unsigned* counters;  // of Args; the first is set by the first timeout, which reports
  long long timeout_clocks;

  __device__ __forceinline__ void report_hang(WaitReason reason, int phase) const {
    if (atomicExch(counters, 1u) == 0) {
      volatile HangReport* to = report;
      to->reason = reason, to->block = blockIdx.x, to->warp = threadIdx.x / 32, to->phase = phase;
      __threadfence_system();
    }
    __nanosleep(1000000);  // for the report, if another thread is writing it
    __trap();
  }

  template <class Ready>
  __device__ __forceinline__ void until(Ready ready, WaitReason reason, int phase) const {
    if (ready()) return;
    const long long begin = clock64();
    while (!ready()) {
      if (clock64() - begin > timeout_clocks) report_hang(reason, phase);
    }
  }

  // For a phase of an mbarrier. One block of assembly, trap included: a branch in C++ would make the compiler finish
  // all MMAs in flight before it.
  __device__ __forceinline__ void wait(uint32_t barrier, uint32_t parity, WaitReason reason, int phase) const {
    asm volatile(
        "{\n.reg .pred done, late, first;\n.reg .b64 begin, now;\n.reg .b32 block, warp, before;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra ENDED;\n"
        "mov.u64 begin, %%clock64;\n"
        "AGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra ENDED;\n"
        "mov.u64 now, %%clock64;\n"
        "sub.s64 now, now, begin;\n"
        "setp.gt.s64 late, now, %2;\n"
        "@!late bra AGAIN;\n"
        "atom.global.exch.b32 before, [%4], 1;\n"
        "setp.eq.u32 first, before, 0;\n"
        "mov.u32 block, %%ctaid.x;\n"
        "mov.u32 warp, %%tid.x;\n"
        "shr.u32 warp, warp, 5;\n"
        "@first st.volatile.global.v4.u32 [%3], {%5, block, warp, %6};\n"
        "fence.acq_rel.sys;\n"
        "nanosleep.u32 1000000;\n"
        "trap;\n"
        "ENDED:\n}" ::"r"(barrier),
        "r"(parity), "l"(timeout_clocks), "l"(report), "l"(counters), "r"(static_cast<int>(reason)), "r"(phase)
        : "memory");
  }
};
