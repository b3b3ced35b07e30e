// expert_list.cuh: the experts that a step's sequences have chosen, in shared memory; each block makes the same list.
//
// An entry is an expert and up to eight of its sequences, ascending; an expert of more has several. Sequences of all
// entries, one behind the other, are slots: a row of `gated` each. A shared expert is the last, chosen by all.
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
  static constexpr int kMaxSlots = N * kExpertsOfToken;
  static constexpr int kMaxRead = kMaxSlots < kAllExperts ? kMaxSlots : kAllExperts;
  static constexpr int kMaxEntries = (kMaxSlots + (kEntrySequences - 1) * kMaxRead) / kEntrySequences;

  uint32_t live;  // bits of the sequences that are no padding: only these choose
  int count;
  ExpertEntry entries[kMaxEntries + 1];
  uint32_t sequences_of[kAllExperts];  // bits of those that have chosen it
  uint16_t first_slot[kAllExperts];
  uint16_t chosen[N][kExpertsOfToken];
  float weights[N][kExpertsOfToken];
  float slot_weight[kMaxSlots];
  uint8_t slot_sequence[kMaxSlots];

  // By one warp: the entries, from sequences_of.
  __device__ __forceinline__ void list_entries() {
    constexpr int kEach = (kAllExperts + 31) / 32;  // of a lane: every 32nd expert
    const int lane = threadIdx.x % 32;
    int mine[kEach], sums[kEach];  // of experts up to the lane's: slots << 16 | entries
#pragma unroll
    for (int i = 0; i < kEach; i++) {
      const int expert = i * 32 + lane;
      mine[i] = expert < kAllExperts ? __popc(sequences_of[expert]) : 0;
      sums[i] = mine[i] << 16 | (mine[i] + kEntrySequences - 1) / kEntrySequences;
    }
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
#pragma unroll
      for (int i = 0; i < kEach; i++) {
        const int other = __shfl_up_sync(kWholeWarp, sums[i], distance);
        if (lane >= distance) sums[i] += other;
      }
    }
    int before = 0;
#pragma unroll
    for (int i = 0; i < kEach; i++) {
      const int total = __shfl_sync(kWholeWarp, sums[i], 31), expert = i * 32 + lane;
      const int groups = (mine[i] + kEntrySequences - 1) / kEntrySequences;
      const int end = before + sums[i], slot = (end >> 16) - mine[i], entry = (end & 0xffff) - groups;
      if (expert < kAllExperts) first_slot[expert] = slot;
#pragma unroll 1
      for (int j = 0; j < groups; j++) {
        const int left = min(mine[i] - j * kEntrySequences, kEntrySequences);
        entries[entry + j].word = expert << 16 | (slot + j * kEntrySequences) << 4 | left;
      }
      before += total;
    }
    if (lane == 0) count = before & 0xffff;
  }

  // By one warp, without waiting for memory: [2, E], sequences that chose each, steps that read it. A shared expert is
  // not counted.
  __device__ __forceinline__ void add_to_counts(unsigned long long* counts) const {
#pragma unroll 1
    for (int expert = threadIdx.x % 32; expert < kExperts; expert += 32) {
      const int mine = __popc(sequences_of[expert]);
      if (mine > 0) atomicAdd(counts + expert, mine), atomicAdd(counts + kExperts + expert, 1);
    }
  }

  // By the compute threads: each choice to its slot.
  __device__ __forceinline__ void fill_slots(int sequences) {
#pragma unroll 1
    for (int i = threadIdx.x; i < sequences * kExpertsOfToken; i += kComputeThreads) {
      const int sequence = i / kExpertsOfToken, place = i % kExpertsOfToken, expert = chosen[sequence][place];
      if (!(live >> sequence & 1)) continue;
      const int slot = first_slot[expert] + __popc(sequences_of[expert] & ((1u << sequence) - 1));
      slot_sequence[slot] = sequence, slot_weight[slot] = weights[sequence][place];
    }
  }
};
