// How much memory a warp's accesses move, over what they need: sectors of 32 bytes of the device's memory,
// and turns that the 32 banks of shared memory take.
//
// The compiler's hooks (races.cpp) tell of each lane's accesses, with the place in the code. An access of a
// warp is what its lanes do at one place, for the k-th time since they last met: loops without collectives
// count from the kernel's beginning. The fewest sectors are the distinct bytes over 32, rounded up.
//
// - Stores count as they are: halves of sectors that different instructions store travel apart.
// - What a warp has loaded lately lies in the L1 cache: `fetched` leaves out the sectors, and `new_bytes` the
//   bytes, that are among the latest KEPT sectors of the warp. `touched` is without a cache.
// - Lanes whose words differ and share a bank take turns, in shared memory and in the L1 cache, which are one
//   memory (ncu's l1tex__data_bank_conflicts_pipe_lsu counts both). Accesses of 8 bytes go by halves of a
//   warp, those of 16 by quarters.
// - Each access is what the source says: where nvcc merges several it takes fewer turns, where it takes one
//   apart, more.
//
// Not counted: atomics, kernels' parameters and tables in constant memory, what half a warp's collectives
// put out of step.
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace emulation {
namespace accesses {

inline bool counting;  // chosen by tests

enum Direction { LOAD, STORE, DIRECTIONS };
enum { SECTOR = 32, KEPT = 128, BANKS = 32, BANK_BYTES = 4, LANES = 32 };

// Sums over all launches of a kernel, by direction.
struct Totals {
  uint64_t requests[DIRECTIONS], touched[DIRECTIONS], fewest[DIRECTIONS];
  uint64_t fetched, new_bytes;                           // of loads; whole sectors where any is fetched
  uint64_t turns[DIRECTIONS], fewest_turns[DIRECTIONS];  // of the device's memory in the cache,
  uint64_t shared_turns[DIRECTIONS], fewest_shared_turns[DIRECTIONS];  // and of shared memory
};

void start_launch(const void* kernel);
void start_block(int size);
void end_block();
void pass_collective(int thread);
void note(const void* at, size_t size, Direction direction, const void* place);

// Forgets all launches; how many kernels there have been since; one of them, and its totals.
void forget();
int kernels();
const Totals& totals_of(int kernel, const void** code);

}  // namespace accesses
}  // namespace emulation
