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

// What is shared must be dynamic; kernels that are not launched may be compiled.
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
