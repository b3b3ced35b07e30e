// pipeline_state.cuh: where a producer or a consumer is in a pipeline whose number of stages the host chooses.
#pragma once

#include <cstdint>

// The next stage, and the parity of its barrier's next phase.
struct PipelineState {
  int stage = 0;
  uint32_t parity;

  __device__ explicit PipelineState(uint32_t first_parity) : parity(first_parity) {}
  __device__ void advance(int stages) {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};
