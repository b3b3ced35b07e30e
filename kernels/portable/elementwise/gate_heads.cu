// gate_heads.cu: out[i] = mixed[rows[i]] * sigmoid(gate[rows[i]]): attention's output gate, of all rows or of some.
//
//   mixed : [N, C] bf16, row-major     gate : [N, C] bf16, rows `gate_stride` elements apart
//   rows : [R] int64 or null (R = N)     out : [R, C] bf16, row-major; without rows it may be mixed
//   math : float32, rounded once
//   grid : (R, ceil(C / 1024), 1)    block : (128, 1, 1)    shared : none
//   needs: C % 8 == 0, gate_stride % 8 == 0, 16-byte aligned arrays; with rows out must not overlap mixed
//          (ops/cuda/elementwise/gate.py checks); rows inside of mixed
//   check: tests/gpu/elementwise/test_gate_heads.py against ops/reference/dense.py, max |err| 1 bf16 ulp
#include "math/bf16.cuh"
#include "sync/pdl.cuh"

constexpr int kThreads = WISP_ROW_THREADS;

extern "C" __global__ void __launch_bounds__(kThreads)
    gate_heads(const bf16* mixed, const bf16* gate, const int64_t* rows, bf16* out, int64_t gate_stride, int columns) {
  pdl_launch_dependents();
  const int64_t index = blockIdx.x;
  const int column = (blockIdx.y * kThreads + threadIdx.x) * kBf16Vec;
  pdl_wait();
  if (column >= columns) return;
  const int64_t row = rows == nullptr ? index : rows[index];
  float values[8], gates[8];
  load8(mixed + row * columns + column, values);
  load8(gate + row * gate_stride + column, gates);
#pragma unroll
  for (int i = 0; i < 8; i++) values[i] /= 1.f + __expf(-gates[i]);
  store8(out + index * columns + column, values);
}
