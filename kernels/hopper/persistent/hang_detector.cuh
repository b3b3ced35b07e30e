// hang_detector.cuh: how a step that would never end is noticed: a warp that copies activations has waited too long.
//
// It comes last: whichever other warp hangs, activations are not taken, a block never arrives at the grid's barrier, or
// not all warps of a block end the step. All other waits are without a limit (spin_until, mbarrier_wait): what a wait
// does when it is late stands in the middle of the loop, and code is what a step of few sequences waits for
// (docs/decisions/0007-one-launch-a-step.md).
#pragma once

#include "model.cuh"

enum WaitReason : int {  // ops/cuda/persistent/ has a sentence for each
  kGridBarrier = 1,
  kActivationsTaken,
  kStepEnd,
};

struct HangDetector {
  HangReport* report;
  unsigned* counters;  // of Args; the first is set by the first timeout, which reports
  unsigned timeout_clocks;

  // `seen`: arrivals at the grid's barrier, of all phases.
  template <class Ready>
  __device__ __forceinline__ void until(Ready ready, WaitReason reason, int phase, const unsigned& seen) const {
    const unsigned begin = static_cast<unsigned>(clock64());
    while (!ready()) {
      if (static_cast<unsigned>(clock64()) - begin > timeout_clocks) report_hang(reason, phase, seen);
    }
  }

 private:
  // The first leaves a report, and all trap after a millisecond, in which that reaches the host's memory. One block of
  // assembly is less code than C++; it begins with an instruction of its own, by which tests/emulator tells it from
  // others.
  __device__ __forceinline__ void report_hang(WaitReason reason, int phase, unsigned seen) const {
    asm volatile(
        "{\n.reg .pred first;\n.reg .b32 before, block;\nmov.u32 before, 0;\n"
        "atom.global.exch.b32 before, [%1], 1;\nsetp.eq.u32 first, before, 0;\n"
        "mov.u32 block, %%ctaid.x;\n"
        "@first st.volatile.global.v4.u32 [%0], {%2, block, %3, %4};\n"
        "nanosleep.u32 1000000;\ntrap;\n}" ::"l"(report),
        "l"(counters), "r"(static_cast<int>(reason)), "r"(phase), "r"(seen)
        : "memory");
  }
};
