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

// The end of assembly whose register `block` has the block's number: leave a report and trap. The load comes back when
// the report is in the host's memory. This stands in the middle of every loop that waits, and a layer's code is longer
// than an SM's instruction cache: each instruction counts.
#define WISP_LEAVE_REPORT(report, reason, phase)                               \
  "mov.u32 thread, %%tid.x;\n"                                                 \
  "st.volatile.global.v4.u32 [" report "], {" reason ", block, thread, " phase \
  "};\n"                                                                       \
  "ld.volatile.global.u32 block, [" report "];\nnanosleep.u32 block;\ntrap;\n"

struct HangDetector {
  HangReport* report;
  long long timeout_clocks;

  __device__ __forceinline__ void report_hang(WaitReason reason, int phase) const {
    asm volatile("{\n.reg .b32 block, thread;\nmov.u32 block, %%ctaid.x;\n" WISP_LEAVE_REPORT("%0", "%1",
                                                                                              "%2") "}" ::"l"(report),
                 "r"(static_cast<int>(reason)), "r"(phase)
                 : "memory");
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
        "{\n.reg .pred done, late;\n.reg .b64 begin, now;\n.reg .b32 block, thread;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra ENDED;\n"
        "mov.u64 begin, %%clock64;\n"
        "AGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra ENDED;\n"
        "mov.u64 now, %%clock64;\n"
        "sub.s64 now, now, begin;\n"
        "setp.gt.s64 late, now, %2;\n"
        "@!late bra AGAIN;\n"
        "mov.u32 block, %%ctaid.x;\n" WISP_LEAVE_REPORT("%3", "%4", "%5") "ENDED:\n}" ::"r"(barrier),
        "r"(parity), "l"(timeout_clocks), "l"(report), "r"(static_cast<int>(reason)), "r"(phase)
        : "memory");
  }
};
