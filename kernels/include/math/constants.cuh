// constants.cuh: numbers of more than one subject.
#pragma once

constexpr float kLog2E = 1.4426950408889634f;  // log2(e): softmax is computed in base 2
