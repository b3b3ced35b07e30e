// embed.cuh: the residual before the first layer: rows of the embeddings, which are packed as bf16 weights.
#pragma once

#include "../compute.cuh"

// Activations: type of its results, the first layer's.
template <class Activations>
struct Embed : Phase {
  template <class Compute>
  static __device__ __forceinline__ void compute(Compute& c) {
    constexpr int kKBlocks = (kHidden + 63) / 64;
    const Args& args = c.args;
    const bf16* input_norm = args.layers[0].input_norm;
    float norm[kResidualMBlocks];
#pragma unroll
    for (int m = 0; m < kResidualMBlocks; m++) {
      const int row = c.residual_row(m);
      norm[m] = load_norm(input_norm, row, kHidden);
#pragma unroll
      for (int g = 0; g < Compute::kGroups; g++) {
        c.residual[m][g] = 0.f;
        if (row >= kHidden || c.token(g) >= args.sequences) continue;
        int id = args.tokens[c.token(g)];
        if (id < 0 && args.sampled_rows > 0) id = args.sampled[min(-1 - id, args.sampled_rows - 1)];
        id = min(max(id, 0), args.vocab - 1);
        const int64_t block = static_cast<int64_t>(id / 64) * kKBlocks + row / 64;
        const int chunk = (row % 64 / 8) ^ (id % 8);
        c.residual[m][g] = __bfloat162float(args.embeddings[block * 4096 + id % 64 * 64 + chunk * 8 + row % 8]);
      }
    }
    c.template publish_residual<Activations>(norm, kEmbed);
  }
};
