// decode_step_watch.cuh: waits that cannot last for ever. Who waits longer than allowed leaves a report and traps.
#pragma once

#include "decode_step_model.cuh"
#include "sync/mbarrier.cuh"

// ops/cuda/persistent/decode_step_arguments.py has a sentence for each.
enum Waited : int {
  kRingFull = 1,
  kRingEmpty,
  kColumnsFull,
  kColumnsEmpty,
  kExchanged,
  kGrid,
  kPassed,
  kScaled,
  kPlanned,
  kRaw,
};

struct Watch {
  Report* report;
  unsigned* has_given_up;  // on the device: the first to give up reports
  long long patience;

  __device__ __forceinline__ void give_up(Waited what, int phase) const {
    if (atomicExch(has_given_up, 1u) == 0) {
      volatile Report* to = report;
      to->what = what, to->block = blockIdx.x, to->warp = threadIdx.x / 32, to->phase = phase;
      __threadfence_system();
    }
    __nanosleep(1000000);  // for the report, if another thread has it in hand
    __trap();
  }

  template <class Ready>
  __device__ __forceinline__ void until(Ready ready, Waited what, int phase) const {
    if (ready()) return;
    const long long begin = clock64();
    while (!ready()) {
      if (clock64() - begin > patience) give_up(what, phase);
    }
  }

  // For a phase of an mbarrier. One piece of assembly, trap and all: a branch in C++ would make the compiler finish
  // all products in flight before it.
  __device__ __forceinline__ void wait(uint32_t barrier, uint32_t parity, Waited what, int phase) const {
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
        "r"(parity), "l"(patience), "l"(report), "l"(has_given_up), "r"(static_cast<int>(what)), "r"(phase)
        : "memory");
  }
};

// A place in a ring of kCount stages: which one, and the parity of its next phase.
template <int kCount>
struct Place {
  int index = 0;
  uint32_t parity;

  __device__ __forceinline__ explicit Place(uint32_t first_parity) : parity(first_parity) {}
  __device__ __forceinline__ void advance() {
    if (++index == kCount) index = 0, parity ^= 1;
  }
  __device__ __forceinline__ void advance(int stages) {
    index += stages;
    parity ^= index / kCount & 1;
    index %= kCount;
  }
};
