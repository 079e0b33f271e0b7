// See races.h; compiled without the hooks that it defines.
#include "races.h"

#include <stdio.h>
#include <string.h>

#include "threads.h"
#include "vectors.h"

namespace emulation {
namespace races {

static std::vector<Stamp> now;  // of each thread
static uint32_t latest;         // block_epoch: blocks have their own

void start_block(int size) {
  ++latest;
  now.assign(size, Stamp());
  for (int i = 0; i < size; ++i) now[i] = {latest, 0, (uint16_t)i, (uint16_t)(i / 32)};
}
void pass_warp_barrier(int thread) { ++now[thread].warp_epoch; }
void pass_block_barrier(int thread) {
  if (++now[thread].block_epoch > latest) latest = now[thread].block_epoch;
}

// Whether nothing orders an earlier access and one of this thread now.
static bool unordered(const Stamp& before, const Stamp& own) {
  if (before.thread == Stamp::NOBODY || before.block_epoch != own.block_epoch) return false;
  if (before.thread == Stamp::WARPS || before.warp != own.warp) return true;
  return before.warp_epoch == own.warp_epoch && before.thread != own.thread;
}
// Adds an access to those that the stamp stands for: the latest ones say all.
static void add(Stamp& to, const Stamp& own) {
  if (!unordered(to, own))
    to = own;
  else
    to.thread = to.warp == own.warp && to.thread != Stamp::WARPS ? Stamp::LANES : Stamp::WARPS;
}

static void tell(const Stamp& before, Access earlier, Access access, const Shared& of, size_t byte) {
  static const char* const did[] = {"read", "wrote", "added to"};
  char who[40], text[200];
  if (before.thread == Stamp::LANES || before.thread == Stamp::WARPS)
    snprintf(who, sizeof who, "several %s", before.thread == Stamp::LANES ? "lanes of the warp" : "warps");
  else
    snprintf(who, sizeof who, "thread %d", before.thread);
  snprintf(text, sizeof text, "%s %s byte %zu of %zu of a shared variable, and no barrier came before it %s",
           who, did[earlier], byte, of.bytes,
           access == READ    ? "was read"
           : access == WRITE ? "was written"
                             : "was added to");
  report(text);
}

// A write over one that nothing orders it with; it may write what is there.
static struct {
  const char* at = nullptr;
  size_t bytes;
  char before[16];
  Stamp other;
  const Shared* of;
} doubtful;

void settle() {
  if (!doubtful.at) return;
  if (memcmp(doubtful.at, doubtful.before, doubtful.bytes) != 0)
    tell(doubtful.other, WRITE, WRITE, *doubtful.of, doubtful.at - doubtful.of->memory);
  doubtful.at = nullptr;
}

static void check(Shared& of, Cell& cell, size_t byte, size_t bytes, Access access) {
  const Stamp& own = now[current];
  if (unordered(cell.write, own)) {
    if (access != WRITE) return tell(cell.write, WRITE, access, of, byte);
    if (!doubtful.at) {
      doubtful.at = of.memory + byte, doubtful.bytes = bytes, doubtful.other = cell.write, doubtful.of = &of;
      memcpy(doubtful.before, doubtful.at, bytes);
    } else {
      doubtful.bytes = (of.memory + byte + bytes) - doubtful.at;
      memcpy(doubtful.before + doubtful.bytes - bytes, of.memory + byte, bytes);
    }
  }
  if (access != READ && unordered(cell.read, own)) return tell(cell.read, READ, access, of, byte);
  if (access != ATOMIC && unordered(cell.atomic, own)) return tell(cell.atomic, ATOMIC, access, of, byte);
  if (access == WRITE)
    cell.write = own;
  else
    add(access == READ ? cell.read : cell.atomic, own);
}

static void check(Shared& of, size_t first, size_t size, Access access) {
  const size_t end = first + size < of.bytes ? first + size : of.bytes;
  for (size_t byte = first; byte < end;) {
    const size_t word = byte / 4;
    const bool whole = byte % 4 == 0 && end - byte >= 4;
    if (whole && !of.split[word]) {
      check(of, of.words[word], byte, 4, access);
      byte += 4;
      continue;
    }
    if (!of.split[word]) {
      of.split[word] = true;
      for (int i = 0; i < 4; ++i) of.cells[4 * word + i] = of.words[word];
    }
    check(of, of.cells[byte], byte, 1, access);
    ++byte;
  }
}

void watch(const void* address, size_t size, Access access) {
  static bool within;  // functions of templates may be those that kernels are compiled with, hooks and all
  const char* const begin = (const char*)address;
  if (!running || within) return;
  within = true;
  settle();
  static size_t last;
  if (last >= shared.size() || (size_t)(begin - shared[last].memory) >= shared[last].bytes)
    for (last = 0; last < shared.size() && (size_t)(begin - shared[last].memory) >= shared[last].bytes;)
      ++last;
  if (last < shared.size()) check(shared[last], begin - shared[last].memory, size, access);
  within = false;
}

}  // namespace races
}  // namespace emulation

#ifdef GRADWIRE_WATCHED
// -fsanitize=thread calls these for accesses to memory that other threads may know.
#define GRADWIRE_HOOK extern "C" __attribute__((visibility("hidden"))) void
static inline void hook(const void* at, size_t size, emulation::races::Access access, const void* place) {
  using namespace emulation;
  if (watched && at >= first_shared && at < last_shared) races::watch(at, size, access);
  if (accesses::counting)
    accesses::note(at, size, access == races::READ ? accesses::LOAD : accesses::STORE, place);
}
#define GRADWIRE_TELL(name, size, access)                                  \
  GRADWIRE_HOOK __tsan_##name(void* at) {                                  \
    hook(at, size, emulation::races::access, __builtin_return_address(0)); \
  }
#define GRADWIRE_ACCESS(name, size)               \
  GRADWIRE_TELL(read##name, size, READ)           \
  GRADWIRE_TELL(write##name, size, WRITE)         \
  GRADWIRE_TELL(unaligned_read##name, size, READ) \
  GRADWIRE_TELL(unaligned_write##name, size, WRITE)
GRADWIRE_ACCESS(1, 1)
GRADWIRE_ACCESS(2, 2)
GRADWIRE_ACCESS(4, 4)
GRADWIRE_ACCESS(8, 8)
GRADWIRE_ACCESS(16, 16)
GRADWIRE_HOOK __tsan_read_range(void* at, size_t size) {
  hook(at, size, emulation::races::READ, __builtin_return_address(0));
}
GRADWIRE_HOOK __tsan_write_range(void* at, size_t size) {
  hook(at, size, emulation::races::WRITE, __builtin_return_address(0));
}
GRADWIRE_HOOK __tsan_init() {}
GRADWIRE_HOOK __tsan_vptr_update(void**, void*) {}
#else
static inline void hook(const void*, size_t, emulation::races::Access, const void*) {}
#endif

__attribute__((noinline)) void emulation::copy_vector(void* to, const void* from, size_t bytes) {
  hook(from, bytes, races::READ, __builtin_return_address(0));
  hook(to, bytes, races::WRITE, __builtin_return_address(0));
  memcpy(to, from, bytes);
}
