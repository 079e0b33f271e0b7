// Blocks that wait for one another: those of a cluster, or of a cooperative launch. The blocks of a team take
// turns, each until all of its threads wait or have ended; what a block leaves for the next one's turn, its
// shared memory too, is kept.
#pragma once
#include "threads.h"

namespace emulation {

// What a block has while another one runs.
struct Resting {
  std::vector<Thread> threads;
  std::vector<Barrier> warp_barriers;
  Barrier block_barrier;
  std::vector<uint64_t> slots;
  std::vector<std::vector<char>> memory;  // of `shared`, as many as there were
  int alive = 0;

  // Exchanges it with the block that runs.
  void exchange() {
    std::swap(threads, emulation::threads);
    std::swap(warp_barriers, emulation::warp_barriers);
    std::swap(block_barrier, emulation::block_barrier);
    std::swap(slots, emulation::slots);
    std::swap(alive, emulation::alive);
  }
  void keep_memory() {
    memory.clear();
    for (const Shared& each : shared) memory.emplace_back(each.memory, each.memory + each.bytes);
  }
  void restore_memory() const {
    for (size_t i = 0; i < shared.size(); ++i)
      if (i < memory.size())
        memcpy(shared[i].memory, memory[i].data(), shared[i].bytes);
      else  // the block has not come to this variable yet
        memset(shared[i].memory, 0xA5, shared[i].bytes);
  }
};

// How many blocks the teams of the launch have; which barrier they may wait at.
enum Team { NO_TEAM, CLUSTER, COOPERATIVE };
inline Team team_kind;
inline int team_blocks = 1;
inline Barrier team_barrier;

// All threads of the team's blocks wait here. Every block has its own shared memory, so that what races.h
// knows of it stays the same.
inline void sync_team(Team kind) {
  if (team_kind != kind) fail("a barrier of blocks that this launch does not have");
  wait(team_barrier, team_blocks * (int)block_size.x);
  races::pass_block_barrier(current);
}

inline void run_team(unsigned first, int block) {
  static std::vector<Resting> resting;
  if (resting.size() < (size_t)team_blocks) resting.resize(team_blocks);
  team_barrier = Barrier();
  for (int i = 0; i < team_blocks; ++i) {
    Resting& own = resting[i];
    own.exchange();
    if (threads.size() < (size_t)block) threads.resize(block);
    start_block(first + i, block);
    own.exchange();
    own.memory.clear();
  }
  for (bool left = true; left && !failure[0];) {
    bool went_on = left = false;
    for (int i = 0; i < team_blocks && !failure[0]; ++i) {
      const int turn = reversed ? team_blocks - 1 - i : i;
      Resting& own = resting[turn];
      block_index.x = first + turn;
      own.restore_memory();
      races::start_block(block);  // all that the block did comes before a barrier
      own.exchange();
      if (accesses::counting) accesses::start_block(block);
      went_on |= run_block(block);
      if (accesses::counting) accesses::end_block();  // what waits does so at barriers of the team alone
      left |= alive > 0;
      own.exchange();
      own.keep_memory();
    }
    if (left && !went_on && !failure[0]) deadlock();
  }
}

// Teams of `blocks` consecutive blocks each, one team after another. `code` is the kernel, which `run` calls.
template <class Body>
void launch_teams(const void* code, Team kind, dim3 grid, int blocks, int block, Body run) {
  if (told) failure[0] = 0, told = false;
  ++launches;
  if (block % 32) return report("a block that is not whole warps");
  if (grid.x % blocks) return report("a grid that is not whole clusters");
  body = std::ref(run);
  grid_size = grid;
  block_size = dim3(block);
  team_kind = kind, team_blocks = blocks;
  if (accesses::counting) accesses::start_launch(code);
  const unsigned teams = grid.x / blocks;
  for (unsigned i = 0; i < teams && !failure[0]; ++i)
    run_team((reversed ? teams - 1 - i : i) * blocks, block);
  team_kind = NO_TEAM, team_blocks = 1;
  body = nullptr;
}

}  // namespace emulation
