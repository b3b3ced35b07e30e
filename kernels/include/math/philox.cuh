// philox.cuh: counter-based random numbers, the same bits on every device for the same counter and key.
//
// Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3", Philox4x32-10; the reference
// implementation is ops/reference/philox.py.
#pragma once

#include <cstdint>

__device__ __forceinline__ uint4 philox4x32(uint4 counter, uint2 key) {
#pragma unroll
  for (int round = 0; round < 10; round++) {
    const uint32_t even_low = counter.x * 0xD2511F53u, even_high = __umulhi(counter.x, 0xD2511F53u);
    const uint32_t odd_low = counter.z * 0xCD9E8D57u, odd_high = __umulhi(counter.z, 0xCD9E8D57u);
    counter = make_uint4(odd_high ^ counter.y ^ key.x, odd_low, even_high ^ counter.w ^ key.y, even_low);
    key.x += 0x9E3779B9u;
    key.y += 0xBB67AE85u;
  }
  return counter;
}
