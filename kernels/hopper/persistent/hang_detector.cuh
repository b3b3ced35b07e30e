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

// What a wait that has timed out does, as the end of assembly that has a predicate `first` and registers `before`,
// `block` and `thread`: the first such wait leaves a report, and all trap after a millisecond, in which that reaches
// the host's memory. It stands in the middle of every loop that waits, and a layer's code is longer than an SM's
// instruction cache: each instruction counts.
#define WISP_LEAVE_REPORT(report, counters, reason, phase)                            \
  "atom.global.exch.b32 before, [" counters                                           \
  "], 1;\nsetp.eq.u32 first, before, 0;\n"                                            \
  "mov.u32 block, %%ctaid.x;\nmov.u32 thread, %%tid.x;\n"                             \
  "@first st.volatile.global.v4.u32 [" report "], {" reason ", block, thread, " phase \
  "};\n"                                                                              \
  "nanosleep.u32 1000000;\ntrap;\n"

struct HangDetector {
  HangReport* report;
  unsigned* counters;  // of Args; the first is set by the first timeout, which reports
  long long timeout_clocks;

  // It begins with an instruction of its own, by which tests/emulator tells one block of assembly from another.
  __device__ __forceinline__ void report_hang(WaitReason reason, int phase) const {
    asm volatile("{\n.reg .pred first;\n.reg .b32 before, block, thread;\nmov.u32 before, 0;\n" WISP_LEAVE_REPORT(
                     "%0", "%1", "%2", "%3") "}" ::"l"(report),
                 "l"(counters), "r"(static_cast<int>(reason)), "r"(phase)
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
        "{\n.reg .pred done, late, first;\n.reg .b64 begin, now;\n.reg .b32 before, block, thread;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra ENDED;\n"
        "mov.u64 begin, %%clock64;\n"
        "AGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra ENDED;\n"
        "mov.u64 now, %%clock64;\n"
        "sub.s64 now, now, begin;\n"
        "setp.gt.s64 late, now, %2;\n"
        "@!late bra AGAIN;\n" WISP_LEAVE_REPORT("%3", "%4", "%5", "%6") "ENDED:\n}" ::"r"(barrier),
        "r"(parity), "l"(timeout_clocks), "l"(report), "l"(counters), "r"(static_cast<int>(reason)), "r"(phase)
        : "memory");
  }
};
