// launch.h: how a kernel is launched on the emulated machine. translate.py puts it before each kernel.
#pragma once

#include <string>
#include <utility>

#include "ptx.h"

namespace emulator {

template <class T>
T* dynamic_shared() {
  return reinterpret_cast<T*>(machine.current->block->shared);
}

// Shared memory of a fixed size, a number a declaration: behind what may be dynamic.
template <class T, int kDeclaration>
T& fixed_shared() {
  static const uint32_t begin = machine.fixed_bytes += (sizeof(T) + 15) / 16 * 16;
  if (begin > kFixedBytes) machine.fault("too much shared memory of a fixed size");
  return *reinterpret_cast<T*>(machine.current->block->shared + kSharedBytes - begin);
}

// What has an initializer is not translated; kernels that are not launched may be compiled.
inline void refuse_static_shared() {
  machine.fault("shared memory of a fixed size is not emulated");
}

template <class... A, size_t... kIndex>
void call(void (*kernel)(A...), void** arguments, std::index_sequence<kIndex...>) {
  kernel(*static_cast<A*>(arguments[kIndex])...);
}

// Returns why the grid, of three counts of blocks, did not come to its end, or "".
template <class... A>
const char* launch(void (*kernel)(A...), const unsigned* grid, int threads, int cluster, unsigned seed,
                   void** arguments) {
  static std::string ended;
  machine.grid = {grid[0], grid[1], grid[2]}, machine.block_shape = {unsigned(threads), 1, 1};
  machine.cluster_size = cluster;
  machine.seed(seed);
  ended = machine.run([&] { call(kernel, arguments, std::index_sequence_for<A...>{}); });
  return ended.c_str();
}

}  // namespace emulator
