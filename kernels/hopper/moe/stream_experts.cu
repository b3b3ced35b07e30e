// stream_experts.cu: both GEMMs of a mixture's experts that have few tokens each; see stream_experts.cuh.
//
//   x    : [N, in] bf16, rows apart by any multiple of 16 bytes, row rows[position]
//   W    : [E, out, in] of both GEMMs, each matrix packed (kernels/README.md), all equally far apart
//   bias, y, tiles : as in ../../portable/gemm/experts.cu
//   math : that of ../../portable/gemm/experts.cu and ../../portable/quantized/experts_mma_*.cu, bit by bit
//   grid : (blocks that are resident at once, at most an item each, 1, 1)     block: (192, 1, 1)
//   shared: 256 B of barriers, stages x 9,344 B (bf16), 10,400 B (fp8_block) or 12,928 B (mxfp4_fields)
//   needs: all blocks resident at once: no second process under MPS (stream_experts.py asks); in % 64 == 0,
//           out % 64 == 0 (stream_experts.py), 16-byte aligned rows of x (experts.py checks)
//   check: tests/gpu/moe/test_stream_experts.py against the portable kernels, equal
#include "stream_experts.cuh"

STREAM_EXPERTS(stream_experts, Tiled)
STREAM_EXPERTS(stream_experts_fp8_block, Packed<portable::Fp8BlockWords>)
STREAM_EXPERTS(stream_experts_mxfp4_fields, Packed<portable::Mxfp4FieldWords>)
