// pdl.cuh: programmatic dependent launch, so that a kernel's start overlaps the end of the one before it.
//
// The rule here: a kernel calls pdl_launch_dependents() as soon as it runs, and pdl_wait() before it reads or writes
// any global memory other than weights and a step's inputs (those that the host uploads before the step's first
// kernel). Every thread that touches global memory waits. Below sm_90 both do nothing.
#pragma once

__device__ __forceinline__ void pdl_launch_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__device__ __forceinline__ void pdl_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
