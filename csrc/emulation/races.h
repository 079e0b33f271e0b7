// Which accesses to shared memory nothing orders. On a device shuffles, ballots and atomics order nothing,
// nor do warps run in step: of two accesses to one byte by different threads, one of which writes, the later
// must come after a barrier that both threads have passed: __syncwarp within a warp, __syncthreads in a
// block.
//
// The compiler tells of each access (-fsanitize=thread, whose hooks library.cpp defines), so what is missing
// shows in any order of threads: a read after a write, a write after a read, two writes, unless of the
// same value. Atomics race with
// plain accesses alone. Memory of the device is not watched.
#pragma once
#include <stdint.h>
#include <string.h>

#include <vector>

namespace emulation {

inline bool watched;  // chosen by tests
namespace races {
inline bool running;  // a thread of a kernel
}
inline int current;  // thread of the block
inline void report(const char* what);

// Who had a byte, after which barriers.
struct Stamp {
  enum : uint16_t {
    NOBODY = 0xffff,
    LANES = 0xfffe,
    WARPS = 0xfffd
  };  // several lanes of a warp, several warps
  uint32_t block_epoch = 0, warp_epoch = 0;
  uint16_t thread = NOBODY, warp = 0;
};
struct Cell {
  Stamp write, read, atomic;
};

struct Shared {
  char* memory;
  size_t bytes;
  std::vector<Cell> words;  // of four bytes each
  std::vector<char> split;  // words whose bytes differ in who had them: each has a cell in `cells`
  std::vector<Cell> cells;
};
inline std::vector<Shared> shared;
inline const char *first_shared, *last_shared;  // where variables begin and end

// A __shared__ variable tells where it is, unwatched: the list of them may lie between two of them.
template <class T>
struct Registered {
  T value;
  Registered() {
    const bool was_running = races::running;
    races::running = false;
    char* const begin = (char*)&value;
    memset(begin, 0xA5, sizeof(T));
    constexpr size_t words = (sizeof(T) + 3) / 4;
    static_assert(alignof(T) % 4 == 0, "shared memory is watched by words");
    shared.push_back(
        {begin, sizeof(T), std::vector<Cell>(words), std::vector<char>(words), std::vector<Cell>(4 * words)});
    if (!first_shared || begin < first_shared) first_shared = begin;
    if (begin + sizeof(T) > last_shared) last_shared = begin + sizeof(T);
    races::running = was_running;
  }
};

namespace races {

void start_block(int size);
void pass_warp_barrier(int thread);
void pass_block_barrier(int thread);

// When a thread stops: whether its last write over another's has changed anything.
void settle();

enum Access { READ, WRITE, ATOMIC };
void watch(const void* address, size_t size, Access access);

}  // namespace races
}  // namespace emulation
