// Counts that a whole grid adds to one number: integers, so that their order does not matter.
#pragma once
#include "launch.h"

namespace gradwire_cuda {

// Adds up what lanes have counted; `target` is an int64.
__device__ __forceinline__ void count(int64_t* target, uint32_t own) {
#pragma unroll
  for (int distance = WARP / 2; distance; distance /= 2) own += __shfl_xor_sync(ALL, own, distance);
  if (lane_of_thread() == 0 && own)
    atomicAdd(reinterpret_cast<unsigned long long*>(target), (unsigned long long)own);
}

}  // namespace gradwire_cuda
