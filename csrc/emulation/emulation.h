// Runs the CUDA sources on the CPU, for tests: each CUDA thread is a coroutine, collectives of a warp and
// __syncthreads are where they meet, blocks run one after another (threads.h), those of a cluster or of a
// cooperative launch by turns (teams.h). Branches for devices run, over the arithmetic that intrinsics.h
// defines.
//
// A lane that misses a collective, a partial mask or a missing partner at a barrier makes the launch fail
// with a message. Shared memory is filled with garbage before every block. Built with
// -fsanitize=address,undefined it finds what compute-sanitizer would. Tests choose (library.cpp):
//
// - the order: backwards, what works only because blocks and threads run forwards shows up;
// - the device: two multiprocessors with two blocks each, or one with one, on which loops over the grid turn
//   several times for a few thousand coordinates; backwards it is a device without clusters;
// - whether shared memory is watched: coroutines meet in shuffles and ballots, which order memory by that and
//   do not on a device; races.h finds accesses that no barrier orders;
// - whether a warp's accesses to memory are counted: accesses.h has sectors and turns of banks.
//
// Not covered: races in the device's memory that only other orders of threads would show, timing, occupancy.
#pragma once
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "intrinsics.h"
#include "teams.h"
#include "threads.h"
#include "vectors.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __restrict__
#define GRADWIRE_GRID_CONSTANT

typedef void* cudaStream_t;
typedef int cudaError_t;
enum {
  cudaSuccess = 0,
  cudaDevAttrMultiProcessorCount = 16,
  cudaDevAttrCooperativeLaunch = 95,
  cudaDevAttrClusterLaunch = 120
};
// They are different devices: what is remembered of one is not true of another.
enum { EMULATED_DEVICE, SMALL_DEVICE, DEVICE_WITHOUT_CLUSTERS, EMULATED_DEVICES };
inline cudaError_t cudaGetDevice(int* device) {
  *device = emulation::small ? SMALL_DEVICE : emulation::reversed ? DEVICE_WITHOUT_CLUSTERS : EMULATED_DEVICE;
  return cudaSuccess;
}
inline cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}
inline cudaError_t cudaDriverGetVersion(int* version) { return cudaRuntimeGetVersion(version); }
inline cudaError_t cudaSetDevice(int) { return cudaSuccess; }
inline cudaError_t cudaGetDeviceCount(int* count) {
  *count = EMULATED_DEVICES;
  return cudaSuccess;
}
inline cudaError_t cudaDeviceGetAttribute(int* value, int attribute, int device) {
  switch (attribute) {
    case cudaDevAttrCooperativeLaunch: *value = 1; break;
    case cudaDevAttrClusterLaunch: *value = device != DEVICE_WITHOUT_CLUSTERS; break;
    default: *value = device == SMALL_DEVICE ? 1 : 2;
  }
  return cudaSuccess;
}
struct cudaFuncAttributes {
  int ptxVersion;
};
template <class Kernel>
inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, Kernel) {
  attributes->ptxVersion = 90;
  return cudaSuccess;
}
inline cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t) {
  memset(memory, value, bytes);
  ++emulation::launches;
  return cudaSuccess;
}
inline cudaError_t cudaGetLastError() {
  if (!emulation::failure[0] || emulation::told) return cudaSuccess;
  emulation::told = true;
  return emulation::FAILED;
}
inline const char* cudaGetErrorString(cudaError_t) {
  return emulation::failure[0] ? emulation::failure : "no error";
}
template <class Kernel>
inline cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, Kernel, int, int) {
  *blocks = emulation::small ? 1 : 2;
  return cudaSuccess;
}

namespace emulation {

inline uint64_t pattern(float v) {
  uint32_t bits;
  memcpy(&bits, &v, 4);
  return bits;
}
inline uint64_t pattern(double v) {
  uint64_t bits;
  memcpy(&bits, &v, 8);
  return bits;
}
inline uint64_t pattern(uint32_t v) { return v; }
inline uint64_t pattern(int v) { return (uint32_t)v; }
inline uint64_t pattern(uint64_t v) { return v; }
template <class T>
T value_of(uint64_t bits) {
  T v;
  memcpy(&v, &bits, sizeof v);
  return v;
}

}  // namespace emulation

#define threadIdx emulation::thread_index
#define blockIdx emulation::block_index
#define gridDim emulation::grid_size
#define blockDim emulation::block_size

namespace gradwire_cuda {
namespace ptx {
inline int laneid() { return (int)(threadIdx.x % 32); }
}  // namespace ptx
}  // namespace gradwire_cuda

// Shared memory: GRADWIRE_SHARED(Type, name) in CUDA is `__shared__ Type name`.
#define GRADWIRE_SHARED(Type, name)           \
  static emulation::Registered<Type> name##_; \
  Type& name = name##_.value

inline void __syncthreads() { emulation::sync_block(); }
inline void __syncwarp(unsigned mask = 0xffffffffu) { emulation::sync_warp(mask); }
template <class T>
T __shfl_xor_sync(unsigned mask, T v, int distance) {
  return emulation::value_of<T>(
      emulation::exchange(mask, emulation::pattern(v))[(emulation::current % 32) ^ distance]);
}
template <class T>
T __shfl_sync(unsigned mask, T v, int lane, int width = 32) {
  const int base = emulation::current % 32 / width * width;
  return emulation::value_of<T>(
      emulation::exchange(mask, emulation::pattern(v))[base + (lane & (width - 1))]);
}
template <class T>
T __shfl_up_sync(unsigned mask, T v, int distance) {
  const int lane = emulation::current % 32;
  const uint64_t* values = emulation::exchange(mask, emulation::pattern(v));
  return emulation::value_of<T>(values[lane < distance ? lane : lane - distance]);
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
  const uint64_t* votes = emulation::exchange(mask, predicate != 0);
  unsigned result = 0;
  for (int i = 0; i < 32; ++i)
    if (mask >> i & 1) result |= (unsigned)votes[i] << i;
  return result;
}
namespace emulation {
template <class Join>
uint32_t joined(unsigned mask, uint32_t v, Join join) {
  const uint64_t* values = exchange(mask, v);
  uint32_t result = (uint32_t)values[0];
  for (int i = 1; i < 32; ++i) result = join(result, (uint32_t)values[i]);
  return result;
}
}  // namespace emulation
inline uint32_t __reduce_add_sync(unsigned mask, uint32_t v) {
  return emulation::joined(mask, v, [](uint32_t a, uint32_t b) { return a + b; });
}
inline uint32_t __reduce_or_sync(unsigned mask, uint32_t v) {
  return emulation::joined(mask, v, [](uint32_t a, uint32_t b) { return a | b; });
}
inline uint32_t __reduce_min_sync(unsigned mask, uint32_t v) {
  return emulation::joined(mask, v, [](uint32_t a, uint32_t b) { return a < b ? a : b; });
}
inline uint32_t __reduce_max_sync(unsigned mask, uint32_t v) {
  return emulation::joined(mask, v, [](uint32_t a, uint32_t b) { return a > b ? a : b; });
}
template <class T, class U>
__attribute__((no_sanitize("thread"))) T atomicOr(T* target, U value) {
  if (emulation::watched) emulation::races::watch(target, sizeof(T), emulation::races::ATOMIC);
  const T before = *target;
  *target = before | (T)value;
  return before;
}
template <class T, class U>
__attribute__((no_sanitize("thread"))) T atomicAdd(T* target, U value) {
  if (emulation::watched) emulation::races::watch(target, sizeof(T), emulation::races::ATOMIC);
  const T before = *target;
  *target = before + (T)value;
  return before;
}

#define GRADWIRE_LAUNCH_CLUSTERS(kernel, grid, cluster, block, stream, ...)                                 \
  ((void)(stream), emulation::launch_teams((const void*)(kernel), emulation::CLUSTER, grid, cluster, block, \
                                           [&] { kernel(__VA_ARGS__); }))
#define GRADWIRE_LAUNCH_COOPERATIVE(kernel, grid, block, stream, ...)                                        \
  ((void)(stream), emulation::launch_teams((const void*)(kernel), emulation::COOPERATIVE, grid, grid, block, \
                                           [&] { kernel(__VA_ARGS__); }))

#define GRADWIRE_LARGE_SHARED(Type, name) GRADWIRE_SHARED(Type, name)
#define GRADWIRE_LAUNCH_LARGE(kernel, grid, block, bytes, stream, ...) \
  ((void)(bytes), GRADWIRE_LAUNCH(kernel, grid, block, stream, __VA_ARGS__))
#define GRADWIRE_LAUNCH(kernel, grid, block, stream, ...) \
  ((void)(stream), emulation::launch((const void*)(kernel), grid, block, [&] { kernel(__VA_ARGS__); }))
