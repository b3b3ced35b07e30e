// expert_list.cuh: the experts that a step's sequences have chosen, in shared memory; each block makes the same list.
//
// An entry is an expert and up to eight of its sequences, ascending; an expert of more has several. Sequences of all
// entries, one behind the other, are slots: a row of `gated` each.
#pragma once

#include "../model.cuh"
#include "math/reduce.cuh"

constexpr int kEntrySequences = 8;  // the N of an expert's MMAs

struct ExpertEntry {
  uint32_t word;  // expert, first slot, sequences

  __device__ __forceinline__ int expert() const { return word >> 16; }
  __device__ __forceinline__ int first_slot() const { return word >> 4 & 0xfff; }
  __device__ __forceinline__ int count() const { return word & 15; }
};

template <int N>
struct ExpertList {
  static_assert(N <= 32, "a bit for each sequence");
  static constexpr int kMaxSlots = N * kChosenExperts;
  static constexpr int kMaxRead = kMaxSlots < kExperts ? kMaxSlots : kExperts;
  static constexpr int kMaxEntries = (kMaxSlots + (kEntrySequences - 1) * kMaxRead) / kEntrySequences;

  uint32_t live;  // bits of the sequences that are no padding: only these choose
  int count;
  ExpertEntry entries[kMaxEntries + 1];
  uint32_t sequences_of[kExperts];  // bits of those that have chosen it
  uint16_t first_slot[kExperts];
  uint16_t chosen[N][kChosenExperts];
  float weights[N][kChosenExperts];
  float slot_weight[kMaxSlots];
  uint8_t slot_sequence[kMaxSlots];

  // By one warp: the entries, from sequences_of. `counts`: of the layer, or null.
  __device__ __forceinline__ void list_entries(unsigned long long* counts) {
    const int lane = threadIdx.x % 32;
    int slots_before = 0, entries_before = 0;
#pragma unroll 1
    for (int base = 0; base < kExperts; base += 32) {
      const int expert = base + lane, mine = expert < kExperts ? __popc(sequences_of[expert]) : 0;
      const int groups = (mine + kEntrySequences - 1) / kEntrySequences;
      int sums = mine << 16 | groups;  // both at once
#pragma unroll
      for (int distance = 1; distance < 32; distance *= 2) {
        const int other = __shfl_up_sync(kWholeWarp, sums, distance);
        if (lane >= distance) sums += other;
      }
      const int slot = slots_before + (sums >> 16) - mine, entry = entries_before + (sums & 0xffff) - groups;
      if (expert < kExperts) first_slot[expert] = slot;
#pragma unroll 1
      for (int i = 0; i < groups; i++) {
        const int left = min(mine - i * kEntrySequences, kEntrySequences);
        entries[entry + i].word = expert << 16 | (slot + i * kEntrySequences) << 4 | left;
      }
      if (counts != nullptr && mine > 0) counts[expert] += mine, counts[kExperts + expert]++;
      const int total = __shfl_sync(kWholeWarp, sums, 31);
      slots_before += total >> 16, entries_before += total & 0xffff;
    }
    if (lane == 0) count = entries_before;
  }

  // By the compute threads: each choice to its slot.
  __device__ __forceinline__ void fill_slots(int sequences) {
#pragma unroll 1
    for (int i = threadIdx.x; i < sequences * kChosenExperts; i += kComputeThreads) {
      const int sequence = i / kChosenExperts, place = i % kChosenExperts, expert = chosen[sequence][place];
      if (!(live >> sequence & 1)) continue;
      const int slot = first_slot[expert] + __popc(sequences_of[expert] & ((1u << sequence) - 1));
      slot_sequence[slot] = sequence, slot_weight[slot] = weights[sequence][place];
    }
  }
};
