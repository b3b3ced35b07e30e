// quantized_decode.cu: the persistent decode kernel for WIDTH sequences alone, which compiles in a quarter of the time.
#include "layers.cuh"
#include "step.cuh"

#define KERNEL(N) \
  PERSISTENT_DECODE(N, formats::WISP_WEIGHT_FORMAT, formats::WISP_HEAD_FORMAT, kv_formats::WISP_KV_FORMAT)
KERNEL(WIDTH)
