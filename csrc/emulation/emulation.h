// Runs the CUDA sources on the CPU, for tests: each CUDA thread is a coroutine, collectives of a warp and
// __syncthreads are where they meet, blocks run one after another.
//
// A lane that misses a collective, a partial mask or a missing partner at a barrier ends the process with a
// message. Built with -fsanitize=address,undefined it finds what compute-sanitizer would. In reverse order
// blocks and threads run backwards: what works only because of the order shows up. Shared memory is filled
// with garbage before every block. Not covered: races that only other orders of threads would show, timing,
// occupancy.
#pragma once
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include <functional>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __restrict__
#define GRADWIRE_GRID_CONSTANT

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
struct alignas(8) uint2 {
  uint32_t x, y;
};
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
inline uint2 make_uint2(uint32_t a, uint32_t b) { return {a, b}; }
inline uint4 make_uint4(uint32_t a, uint32_t b, uint32_t c, uint32_t d) { return {a, b, c, d}; }
inline float2 make_float2(float a, float b) { return {a, b}; }
inline float4 make_float4(float a, float b, float c, float d) { return {a, b, c, d}; }
inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline int __clz(int v) { return v ? __builtin_clz((unsigned)v) : 32; }
inline int __ffs(int v) { return __builtin_ffs(v); }

typedef void* cudaStream_t;
typedef int cudaError_t;
enum { cudaSuccess = 0, cudaDevAttrMultiProcessorCount = 16 };
inline cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
inline cudaError_t cudaSetDevice(int) { return cudaSuccess; }
inline cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
inline cudaError_t cudaDeviceGetAttribute(int* value, int, int) {
  *value = 2;
  return cudaSuccess;
}
inline cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t) {
  memset(memory, value, bytes);
  return cudaSuccess;
}
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline const char* cudaGetErrorString(cudaError_t) { return "emulated CUDA knows no errors"; }
template <class Kernel>
inline cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, Kernel, int, int) {
  *blocks = 2;
  return cudaSuccess;
}

namespace emulation {

struct Thread {
  ucontext_t context;
  std::vector<char> stack;
  bool done = false;
  unsigned collectives[3] = {};
};
struct Barrier {
  int arrived = 0;
  unsigned generation = 0;
};

// One of each for the library: set by `launch`, read by the threads of the block that runs.
inline ucontext_t scheduler;
inline std::vector<Thread> threads;
inline int current, alive, progress;
inline std::vector<Barrier> warp_barriers;
inline Barrier block_barrier;
inline std::vector<uint64_t> slots;
inline std::function<void()> body;
inline dim3 thread_index, block_index, grid_size, block_size;
inline bool reversed;

struct Shared {
  void* memory;
  size_t bytes;
};
inline std::vector<Shared> shared;

// A __shared__ variable tells where it is, so that `launch` can spoil it.
template <class T>
struct Registered {
  T value;
  Registered() {
    memset((void*)&value, 0xA5, sizeof(T));
    shared.push_back({&value, sizeof(T)});
  }
};

[[noreturn]] inline void fail(const char* what) {
  fprintf(stderr, "emulated CUDA: %s (block %u, thread %d)\n", what, block_index.x, current);
  abort();
}

inline void yield() {
  const int self = current;
  swapcontext(&threads[self].context, &scheduler);
  current = self;
  thread_index.x = self;
}

inline void wait(Barrier& barrier, int count) {
  const unsigned generation = barrier.generation;
  ++progress;
  if (++barrier.arrived == count) {
    barrier.arrived = 0;
    ++barrier.generation;
    return;
  }
  while (barrier.generation == generation) yield();
}

// What all lanes of a warp, or of one half of it, have given: an array indexed by lane.
inline uint64_t* exchange(unsigned mask, uint64_t value) {
  const int warp = current / 32, lane = current % 32;
  const int kind = mask == 0xffffffffu ? 0 : mask == 0xffffu ? 1 : mask == 0xffff0000u ? 2 : -1;
  if (kind < 0 || !(mask >> lane & 1)) fail("a mask that is neither a warp nor this lane's half of one");
  const unsigned turn = threads[current].collectives[kind]++ & 1;
  uint64_t* values = &slots[((warp * 3 + kind) * 2 + turn) * 32];
  values[lane] = value;
  wait(warp_barriers[warp * 3 + kind], kind ? 16 : 32);
  return values;
}

inline void entry() {
  body();
  threads[current].done = true;
  --alive;
  ++progress;
  swapcontext(&threads[current].context, &scheduler);
}

inline void start_block(unsigned index, int size) {
  block_index.x = index;
  alive = size;
  warp_barriers.assign(size / 32 * 3, Barrier());
  block_barrier = Barrier();
  slots.assign(size * 6, 0);
  for (const Shared& each : shared) memset(each.memory, 0xA5, each.bytes);
  for (int i = 0; i < size; ++i) {
    Thread& thread = threads[i];
    thread.done = false;
    for (unsigned& count : thread.collectives) count = 0;
    getcontext(&thread.context);
    thread.context.uc_stack.ss_sp = thread.stack.data();
    thread.context.uc_stack.ss_size = thread.stack.size();
    thread.context.uc_link = &scheduler;
    makecontext(&thread.context, entry, 0);
  }
}

inline void run_block(int size) {
  while (alive) {
    progress = 0;
    for (int i = 0; i < size; ++i) {
      current = reversed ? size - 1 - i : i;
      if (threads[current].done) continue;
      thread_index.x = current;
      swapcontext(&scheduler, &threads[current].context);
    }
    if (!progress) fail("deadlock: a collective or barrier that not all threads reach");
  }
}

template <class Body>
void launch(dim3 grid, int block, Body kernel) {
  if (block % 32) fail("a block that is not whole warps");
  body = kernel;
  grid_size = grid;
  block_size = dim3(block);
  if (threads.size() < (size_t)block) {
    threads.resize(block);
    for (Thread& thread : threads) thread.stack.resize(1 << 17);
  }
  for (unsigned i = 0; i < grid.x; ++i) {
    start_block(reversed ? grid.x - 1 - i : i, block);
    run_block(block);
  }
  body = nullptr;
}

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

// A GPU's log2 is not reproducible: this one errs by up to 1e-3, so that no result can depend on it.
inline float noisy_log2(float x) {
  static uint32_t state = 1;
  state = state * 1664525u + 1013904223u;
  return log2f(x) + 1e-3f * ((int32_t)state * 4.6566129e-10f);
}

// A sum of finite float16 numbers, rounded to nearest.
inline double half_value(uint32_t half) {
  const int field = half >> 10 & 31, mantissa = half & 1023;
  const double value = field ? ldexp(1024 + mantissa, field - 25) : ldexp(mantissa, -24);
  return half & 0x8000 ? -value : value;
}
inline uint32_t add_half(uint32_t a, uint32_t b) {
  const double sum = half_value(a & 0xffff) + half_value(b & 0xffff);
  int exponent;
  frexp(sum, &exponent);
  const int step = sum != 0 && exponent > -13 ? exponent - 11 : -24;  // what the last bit is worth: 2^step
  const uint32_t steps = (uint32_t)nearbyint(ldexp(fabs(sum), -step));
  // Steps of a normal number begin at 1024, which is the first of its exponent field.
  return (steps + (uint32_t)(step + 24) * 1024) | (signbit(sum) ? 0x8000u : 0u);
}
inline uint32_t add_halves(uint32_t a, uint32_t b) {
  return add_half(a >> 16, b >> 16) << 16 | add_half(a, b);
}

}  // namespace emulation

#define threadIdx emulation::thread_index
#define blockIdx emulation::block_index
#define gridDim emulation::grid_size
#define blockDim emulation::block_size

// Shared memory: GRADWIRE_SHARED(Type, name) in CUDA is `__shared__ Type name`.
#define GRADWIRE_SHARED(Type, name)           \
  static emulation::Registered<Type> name##_; \
  Type& name = name##_.value

inline void __syncthreads() { emulation::wait(emulation::block_barrier, (int)emulation::block_size.x); }
inline void __syncwarp(unsigned mask = 0xffffffffu) { emulation::exchange(mask, 0); }
template <class T>
T __shfl_xor_sync(unsigned mask, T v, int distance) {
  return emulation::value_of<T>(
      emulation::exchange(mask, emulation::pattern(v))[(emulation::current % 32) ^ distance]);
}
template <class T>
T __shfl_sync(unsigned mask, T v, int lane, int width = 32) {
  const int base = emulation::current % 32 / width * width;
  return emulation::value_of<T>(emulation::exchange(mask, emulation::pattern(v))[base + lane % width]);
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
  const uint64_t* votes = emulation::exchange(mask, predicate != 0);
  unsigned result = 0;
  for (int i = 0; i < 32; ++i)
    if (mask >> i & 1) result |= (unsigned)votes[i] << i;
  return result;
}
template <class T, class U>
T atomicAdd(T* target, U value) {
  const T before = *target;
  *target = before + (T)value;
  return before;
}

#define GRADWIRE_LAUNCH(kernel, grid, block, stream, ...) \
  ((void)(stream), emulation::launch(grid, block, [&] { kernel(__VA_ARGS__); }))
