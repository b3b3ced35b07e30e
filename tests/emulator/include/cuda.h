// cuda.h: a tensor map of two dimensions, as emulated_kernel.py fills it in.
#pragma once

#include <cstdint>

struct alignas(64) CUtensorMap {
  const char* base;
  int64_t rows, columns;  // of elements of two bytes, rows one after the other
  int32_t box_rows, box_columns;
  char unused[96];
};
static_assert(sizeof(CUtensorMap) == 128);
