// packed_row.cuh: a checkpoint's row's position among a packed matrix's (ops/protocol/weights/row_permutation.py).
#pragma once

// `order`: 0 plain; 1 gate, 2 up: one half of a gate_up matrix, interleaved by eight rows; else the rows of a head, its
// halves interleaved by 32.
__device__ __forceinline__ int packed_row(int row, int order) {
  if (order == 0) return row;
  if (order <= 2) return row / 8 * 16 + row % 8 + (order == 2 ? 8 : 0);
  const int within = row % order, half = within / (order / 2), channel = within - half * (order / 2);
  return row - within + channel / 32 * 64 + half * 32 + channel % 32;
}
