// shared_address.cuh: pointers to shared memory as 32-bit addresses, for copies, barriers and ldmatrix.
#pragma once

#include <cstdint>

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}
