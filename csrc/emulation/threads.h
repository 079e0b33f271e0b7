// Threads as coroutines, and where they meet. One block runs at a time: its threads take turns, each until it
// waits for others. Blocks of a team (a cluster, or a whole cooperative grid) take turns in the same way:
// teams.h.
#pragma once
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <functional>
#include <memory>
#include <vector>

#include "accesses.h"
#include "races.h"

#if !defined(__x86_64__) || defined(__SANITIZE_ADDRESS__)
#define GRADWIRE_UCONTEXT
#include <ucontext.h>
#endif

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

// Goes on from `to`, a stack where this was called before, or that of a new thread; where it was called goes
// to `from`. It costs a twentieth of swapcontext, which asks the kernel about signals.
extern "C" void gradwire_emulation_switch(void** from, void* to);

namespace emulation {

constexpr size_t STACK = 1 << 17;

#ifdef GRADWIRE_UCONTEXT
typedef ucontext_t Context;
inline void go_on(Context& from, Context& to) { swapcontext(&from, &to); }
inline void prepare(Context& context, char* stack, Context& then, void (*entry)()) {
  getcontext(&context);
  context.uc_stack.ss_sp = stack;
  context.uc_stack.ss_size = STACK;
  context.uc_link = &then;
  makecontext(&context, entry, 0);
}
#else
typedef void* Context;
inline void go_on(Context& from, Context& to) { gradwire_emulation_switch(&from, to); }
// Below the aligned end of the stack: no return address, the entry, and six registers.
inline void prepare(Context& context, char* stack, Context&, void (*entry)()) {
  void** top = (void**)((uintptr_t)(stack + STACK) & ~(uintptr_t)15);
  memset(top - 8, 0, 8 * sizeof(void*));
  top[-2] = (void*)entry;
  context = top - 8;
}
#endif

struct Thread {
  Context context;
  std::unique_ptr<char[]> stack{new char[STACK]};  // memory only where it is written
  bool done = false;
  unsigned collectives[3] = {};
};
struct Barrier {
  int arrived = 0;
  unsigned generation = 0;
};

// What tests choose. `small`: one multiprocessor, which holds one block, so that loops over the grid turn.
inline bool reversed, small;
inline int64_t launches;  // of kernels and memsets, since the library was loaded

// One of each for the library: set by `launch`, read by the threads of the block that runs.
inline Context scheduler;
inline std::vector<Thread> threads;
inline int alive, progress;
inline std::vector<Barrier> warp_barriers;
inline Barrier block_barrier;
inline std::vector<uint64_t> slots;
inline std::function<void()> body;
inline dim3 thread_index, block_index, grid_size, block_size;

// The first thing that went wrong in launches, which end with it, until cudaGetLastError has said so.
enum { FAILED = 999 };
inline char failure[400];
inline bool told;

inline void report(const char* what) {
  if (!failure[0])
    snprintf(failure, sizeof failure, "emulated CUDA: %s (block %u, thread %d)", what, block_index.x,
             current);
}
// The thread does not go on.
inline void fail(const char* what) {
  report(what);
  go_on(threads[current].context, scheduler);
}

inline void yield() {
  const int self = current;
  go_on(threads[self].context, scheduler);
  current = self;
  thread_index.x = self;
}

inline void wait(Barrier& barrier, int count) {
  const unsigned generation = barrier.generation;
  if (accesses::counting) accesses::pass_collective(current);
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

inline void sync_warp(unsigned mask) {
  if (watched && mask != 0xffffffffu) fail("a barrier of half a warp, which races.h does not know");
  exchange(mask, 0);
  races::pass_warp_barrier(current);
}
inline void sync_block() {
  wait(block_barrier, (int)block_size.x);
  races::pass_block_barrier(current);
}

inline void entry() {
  body();
  threads[current].done = true;
  --alive;
  ++progress;
  go_on(threads[current].context, scheduler);
}

inline void start_block(unsigned index, int size) {
  block_index = dim3(index % grid_size.x, index / grid_size.x);
  alive = size;
  warp_barriers.assign(size / 32 * 3, Barrier());
  block_barrier = Barrier();
  slots.assign(size * 6, 0);
  for (const Shared& each : shared) memset(each.memory, 0xA5, each.bytes);
  races::start_block(size);
  if (accesses::counting) accesses::start_block(size);
  for (int i = 0; i < size; ++i) {
    Thread& thread = threads[i];
    thread.done = false;
    for (unsigned& count : thread.collectives) count = 0;
    prepare(thread.context, thread.stack.get(), scheduler, entry);
  }
}

// Until its threads have ended, or all wait. Tells whether any went on.
inline bool run_block(int size) {
  bool went_on = false;
  while (alive) {
    progress = 0;
    for (int i = 0; i < size; ++i) {
      current = reversed ? size - 1 - i : i;
      if (threads[current].done) continue;
      thread_index.x = current;
      races::running = true;
      go_on(scheduler, threads[current].context);
      races::running = false;
      races::settle();
      if (failure[0]) return true;
    }
    if (!progress) return went_on;
    went_on = true;
  }
  return went_on;
}
inline void deadlock() { report("deadlock: a collective or barrier that not all threads reach"); }

// `code` is the kernel, which `run` calls.
template <class Body>
void launch(const void* code, dim3 grid, int block, Body run) {
  if (told) failure[0] = 0, told = false;
  ++launches;
  if (block % 32) return report("a block that is not whole warps");
  body = std::ref(run);
  grid_size = grid;
  block_size = dim3(block);
  if (threads.size() < (size_t)block) threads.resize(block);
  if (accesses::counting) accesses::start_launch(code);
  const unsigned blocks = grid.x * grid.y;
  for (unsigned i = 0; i < blocks && !failure[0]; ++i) {
    start_block(reversed ? blocks - 1 - i : i, block);
    run_block(block);
    if (alive && !failure[0]) deadlock();
    if (accesses::counting) accesses::end_block();
  }
  body = nullptr;
}

}  // namespace emulation
