// How a kernel for CUDA is launched; the same source is compiled for the CPU over emulation.h for tests.
//
// An exported function checks its arguments, makes the caller's device current for its duration, and launches
// on the caller's stream. It neither allocates nor waits, so it can be captured in a CUDA graph. Structs are
// passed by value, in the constant bank.
#pragma once
#ifdef GRADWIRE_EMULATED
#include "emulation.h"
#else
#include <cuda_runtime.h>

#include "ptx.h"
#define GRADWIRE_LAUNCH(kernel, grid, block, stream, ...) kernel<<<grid, block, 0, stream>>>(__VA_ARGS__)
#define GRADWIRE_GRID_CONSTANT __grid_constant__
// A variable in shared memory; the emulation spoils it before every block.
#define GRADWIRE_SHARED(Type, name) __shared__ Type name
// One whose size the launch gives, beyond what a kernel may declare. The emulation has the whole type.
#define GRADWIRE_LARGE_SHARED(Type, name)   \
  extern __shared__ uint4 gradwire_large[]; \
  Type& name = *reinterpret_cast<Type*>(gradwire_large)
#define GRADWIRE_LAUNCH_LARGE(kernel, grid, block, bytes, stream, ...) \
  kernel<<<grid, block, bytes, stream>>>(__VA_ARGS__)
#endif
#include "gradwire/abi.h"
#include "gradwire/arithmetic.h"

namespace gradwire_cuda {

constexpr int WARP = 32, THREADS = 256, WARPS = THREADS / WARP;
constexpr unsigned ALL = 0xffffffffu;

// Leaves the caller's current device as it was.
class OnDevice {
 public:
  explicit OnDevice(int device) {
    error = cudaGetDevice(&previous_);
    if (error == cudaSuccess && previous_ != device) {
      error = cudaSetDevice(device);
      changed_ = error == cudaSuccess;
    }
  }
  ~OnDevice() {
    if (changed_) cudaSetDevice(previous_);
  }
  int error = 0;

 private:
  int previous_ = 0;
  bool changed_ = false;
};

// How many blocks a place for one gets, one after another, in a large launch; and how many turns of its loop
// each of them has at least.
constexpr int WAVES = 4, TURNS = 8;

// As many blocks of THREADS as the current device holds at a time, some times over, or fewer if `blocks` are
// enough: kernels stride over the grid. Equal shares for all places would end together on a device of their
// own; where another kernel holds some places, the shares left over would take as long again, smaller ones a
// part of that. A kernel whose blocks each have much to begin or end with asks for one wave. The device's
// answer is remembered by each host thread; it costs more than a launch.
template <class Kernel>
int grid_of(Kernel kernel, int64_t blocks, int waves = WAVES) {
  struct Known {
    Kernel kernel;
    int device, resident;
  };
  constexpr int PLACES = 64;  // kernels of one signature on all devices; beyond, the oldest is forgotten
  static thread_local Known known[PLACES];
  static thread_local int count = 0;
  int device = 0, held = 0;
  cudaGetDevice(&device);
  for (int i = 0; i < count && i < PLACES && !held; ++i)
    if (known[i].kernel == kernel && known[i].device == device) held = known[i].resident;
  if (!held) {
    int processors = 1, each = 1;
    cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
    cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, kernel, THREADS, 0);
    held = processors * (each > 0 ? each : 1);
    known[count++ % PLACES] = {kernel, device, held};
  }
  const int64_t most = (int64_t)held * waves, large = blocks / TURNS < most ? blocks / TURNS : most;
  const int64_t grid = blocks < held ? blocks : large > held ? large : held;
  return (int)(grid > 0 ? grid : 1);
}

// Lets a kernel have this much memory in a variable of GRADWIRE_LARGE_SHARED; an error where the device has
// less.
template <class Kernel>
int allow_large_shared(Kernel kernel, int bytes) {
#ifdef GRADWIRE_EMULATED
  (void)kernel, (void)bytes;
  return cudaSuccess;
#else
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
#endif
}

inline bool aligned(const void* pointer, int bytes = 16) {
  return ((uintptr_t)pointer & (uintptr_t)(bytes - 1)) == 0;
}

// log2 for an estimate that need not be good: what depends on its last bits must not reach a result. The
// emulation answers with noise.
__device__ __forceinline__ float approximate_log2(float x) {
#if defined(GRADWIRE_EMULATED)
  return ptx::lg2_approx_ftz(x) + 5e-4f * ptx::noise();
#else
  return ptx::lg2_approx_ftz(x);
#endif
}

__device__ __forceinline__ int lane_of_thread() { return (int)(threadIdx.x % WARP); }
// The warp's number in the grid, and how many warps there are.
__device__ __forceinline__ int64_t warp_of_grid() { return (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP; }
__device__ __forceinline__ int64_t warps_of_grid() { return (int64_t)gridDim.x * WARPS; }

// COUNT consecutive elements at a 16-byte boundary as float32, by 16-byte loads. COUNT is a multiple of 4, of
// 8 for bfloat16.
template <int COUNT>
__device__ __forceinline__ void load_aligned(const float* source, float* values) {
#pragma unroll
  for (int i = 0; i < COUNT / 4; ++i) {
    const float4 part = reinterpret_cast<const float4*>(source)[i];
    values[4 * i] = part.x;
    values[4 * i + 1] = part.y;
    values[4 * i + 2] = part.z;
    values[4 * i + 3] = part.w;
  }
}
template <int COUNT>
__device__ __forceinline__ void load_aligned(const uint16_t* source, float* values) {
#pragma unroll
  for (int i = 0; i < COUNT / 8; ++i) {
    const uint4 part = reinterpret_cast<const uint4*>(source)[i];
    const uint32_t words[4] = {part.x, part.y, part.z, part.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      values[8 * i + 2 * j] = gradwire::float_of(words[j] << 16);
      values[8 * i + 2 * j + 1] = gradwire::float_of(words[j] & 0xffff0000u);
    }
  }
}
// Four consecutive elements at a multiple of their size, by one load.
__device__ __forceinline__ void load_four(const float* source, float* values) {
  load_aligned<4>(source, values);
}
__device__ __forceinline__ void load_four(const uint16_t* source, float* values) {
  const uint2 part = *reinterpret_cast<const uint2*>(source);
  values[0] = gradwire::float_of(part.x << 16);
  values[1] = gradwire::float_of(part.x & 0xffff0000u);
  values[2] = gradwire::float_of(part.y << 16);
  values[3] = gradwire::float_of(part.y & 0xffff0000u);
}
template <int COUNT>
__device__ __forceinline__ void store_aligned(float* target, const float* values) {
#pragma unroll
  for (int i = 0; i < COUNT / 4; ++i)
    reinterpret_cast<float4*>(target)[i] =
        make_float4(values[4 * i], values[4 * i + 1], values[4 * i + 2], values[4 * i + 3]);
}
// Two bfloat16 in a word, `low` in its lower half; a NaN is some NaN.
__device__ __forceinline__ uint32_t two_bfloat16(float low, float high) {
  return ptx::cvt_rn_bf16x2(high, low);
}
template <int COUNT>
__device__ __forceinline__ void store_aligned(uint16_t* target, const float* values) {
#pragma unroll
  for (int i = 0; i < COUNT / 8; ++i) {
    uint32_t words[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) words[j] = two_bfloat16(values[8 * i + 2 * j], values[8 * i + 2 * j + 1]);
    reinterpret_cast<uint4*>(target)[i] = make_uint4(words[0], words[1], words[2], words[3]);
  }
}

// Loads from any address, `valid` values: the rest is read as zeros and not written. Loops are unrolled so
// that `values` stay in registers.
template <int COUNT, class T>
__device__ __forceinline__ void load_some(const T* source, int64_t valid, float* values) {
#pragma unroll
  for (int i = 0; i < COUNT; ++i) values[i] = i < valid ? gradwire::load(source + i) : 0.0f;
}
template <int COUNT, class T>
__device__ __forceinline__ void store_some(T* target, int64_t valid, const float* values) {
#pragma unroll
  for (int i = 0; i < COUNT; ++i)
    if (i < valid) gradwire::store(target + i, values[i]);
}

}  // namespace gradwire_cuda

// Begins an exported function: checks the struct, then the arguments with the family's check_<name>.
#define GRADWIRE_CUDA_BEGIN(name, args)                                           \
  if ((args)->call.bytes != (int32_t)sizeof(*(args))) return GRADWIRE_WRONG_SIZE; \
  if (const int error = gradwire::check_##name(*(args))) return error;            \
  if (gradwire::items_##name(*(args)) == 0) return GRADWIRE_OK;                   \
  gradwire_cuda::OnDevice on_device((args)->call.device);                         \
  if (on_device.error) return on_device.error;                                    \
  const cudaStream_t stream = (cudaStream_t)(args)->call.stream
