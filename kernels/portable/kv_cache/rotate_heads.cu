// rotate_heads.cu: Walsh-Hadamard transform of each head of decode tokens, in place: queries before attention over a
// rotated cache, and its results.
//
//   x : rows of H * Dh bf16, `stride` elements apart
//   query_starts : [B + 1] int32; rows of sequences with another number of queries than one stay as they are
//   math : float32, rounded once
//   grid : (ceil(B * H * lanes / 128), 1, 1)    block : (128, 1, 1)    shared : none
//   needs: Dh % 16 == 0, Dh <= 256; 16-byte aligned rows (ops/cuda/kv_cache/quantized_kv.py checks)
//   check: tests/gpu/kv_cache/test_quantized_kv.py against ops/reference/kv_cache/hadamard.py, max |err| 2^-7 of the
//   row
#include "kv_cache/rows.cuh"
#include "sync/pdl.cuh"

constexpr int kThreads = WISP_KV_THREADS;

extern "C" __global__ void __launch_bounds__(kThreads)
    rotate_heads(bf16* x, const int* query_starts, int64_t stride, int sequences, int heads, RowShape shape) {
  pdl_launch_dependents();
  const int index = blockIdx.x * kThreads + threadIdx.x, row = index / shape.lanes, unit = index % shape.lanes;
  const int sequence = row / heads, head = row % heads;
  pdl_wait();
  bool exists = sequence < sequences && unit * kGroupChannels < shape.head_size;
  bf16* mine = x;
  if (exists) {
    const int first = query_starts[sequence];
    exists = query_starts[sequence + 1] - first == 1;
    mine += first * stride + head * shape.head_size + unit * kGroupChannels;
  }
  float values[kGroupChannels] = {};
  if (exists) load_group(mine, values);
  rotate_row(values, unit, shape);
  if (exists) store_group(mine, values);
}
