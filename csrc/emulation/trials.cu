// What the emulation must find and must not, and its arithmetic one by one: for its own tests.
#include "gradwire/abi.h"
#include "launch.h"
#include "block_teams.h"

using namespace gradwire_cuda;

namespace {

struct Row {
  uint32_t words[THREADS];
  uint32_t sum;
};

enum Trial {
  READ_AFTER_SHUFFLE,     // what a lane reads after a shuffle, another has written before it
  READ_AFTER_WARP,        // the same with __syncwarp
  WRITE_AFTER_BALLOT,     // what a lane writes after a ballot, another has read before it
  OTHER_WARP_AFTER_WARP,  // what another warp has written before a __syncwarp
  OTHER_WARP_AFTER_BLOCK,
  TWO_VALUES,  // all lanes write, each its own value
  ONE_VALUE,   // all lanes write the same
  ATOMIC_SUM,  // atomics, and a barrier before the sum is read
  ATOMIC_READ_AT_ONCE,
  HALVES_OF_WORDS,  // lanes write 16 bits each, and read their neighbours' after a barrier
  MISSED_COLLECTIVE,
  MISSED_BARRIER,
  FIRST_OF_TEAMS,
  TEAM_OF_CLUSTER = FIRST_OF_TEAMS,  // what other blocks have written, after their barrier
  TEAM_OF_GRID,
  OWN_AFTER_TEAM,     // each block keeps its shared memory while others run
  READ_BEFORE_TEAM,   // a neighbour's shared memory, ordered by the barrier of a team after it was read
  MISSED_OF_CLUSTER,  // one thread of one block does not come
  MISSED_OF_GRID,
  GRID_IN_A_CLUSTER,  // a barrier of all blocks in a launch that has none
};

__global__ void try_out(Trial trial, uint32_t* out) {
  GRADWIRE_SHARED(Row, row);
  const int thread = (int)threadIdx.x, lane = lane_of_thread(),
            next = thread / WARP * WARP + (lane + 1) % WARP;
  const int other = (thread + WARP) % THREADS;
  uint32_t found = 0;
  row.words[thread] = 0;
  if (thread == 0) row.sum = 0;
  __syncthreads();
  switch (trial) {
    case READ_AFTER_SHUFFLE:
    case READ_AFTER_WARP:
      row.words[thread] = (uint32_t)thread;
      found = __shfl_xor_sync(ALL, (uint32_t)thread, 1);
      if (trial == READ_AFTER_WARP) __syncwarp();
      found += row.words[next];
      break;
    case WRITE_AFTER_BALLOT:
      found = row.words[next];
      found += __ballot_sync(ALL, found == 0);
      row.words[thread] = found;
      break;
    case OTHER_WARP_AFTER_WARP:
    case OTHER_WARP_AFTER_BLOCK:
      row.words[thread] = (uint32_t)thread;
      __syncwarp();
      if (trial == OTHER_WARP_AFTER_BLOCK) __syncthreads();
      found = row.words[other];
      break;
    case TWO_VALUES: row.words[thread / WARP] = (uint32_t)thread; break;
    case ONE_VALUE: row.words[thread / WARP] = (uint32_t)(thread / WARP); break;
    case ATOMIC_SUM:
    case ATOMIC_READ_AT_ONCE:
      atomicAdd(&row.sum, 1u);
      if (trial == ATOMIC_SUM) __syncthreads();
      found = row.sum;
      break;
    case HALVES_OF_WORDS: {
      uint16_t* const halves = reinterpret_cast<uint16_t*>(row.words);
      halves[thread] = (uint16_t)thread;
      __syncthreads();
      found = halves[next];
      break;
    }
    case MISSED_COLLECTIVE:
      if (lane) found = __ballot_sync(ALL, 1);
      break;
    case MISSED_BARRIER:
      if (thread) __syncthreads();
      break;
    default: break;
  }
  out[thread] = found;
}

constexpr int BLOCKS = 4, TEAM_THREADS = THREADS / BLOCKS;

// Every number becomes 1 for each block that has been seen.
__global__ void try_teams(Trial trial, uint32_t* out) {
  GRADWIRE_SHARED(Row, row);
  const int thread = (int)threadIdx.x, block = (int)blockIdx.x, other = (thread + WARP) % TEAM_THREADS;
  uint32_t* const own = out + block * TEAM_THREADS;
  const bool missing = block == 1 && thread == 5;
  row.words[thread] = own[thread] = (uint32_t)(block + 1);
  __syncthreads();
  switch (trial) {
    case TEAM_OF_CLUSTER: sync_cluster(); break;
    case TEAM_OF_GRID:
    case GRID_IN_A_CLUSTER: sync_grid(); break;
    case READ_BEFORE_TEAM: {
      const uint32_t found = row.words[other];
      sync_cluster();
      row.words[thread] = found;
      break;
    }
    case MISSED_OF_CLUSTER:
      if (!missing) sync_cluster();
      break;
    case MISSED_OF_GRID:
      if (!missing) sync_grid();
      break;
    default: sync_cluster();
  }
  uint32_t seen = 0;
  for (int each = 0; each < BLOCKS; ++each) seen += out[each * TEAM_THREADS + thread] == (uint32_t)(each + 1);
  if (row.words[thread] != (uint32_t)(block + 1)) seen = 0;
  trial == TEAM_OF_GRID || trial == MISSED_OF_GRID ? sync_grid() : sync_cluster();
  own[thread] = seen;
}

}  // namespace

// 0, or the code of an error. `out` has 256 numbers.
GRADWIRE_API int gradwire_emulation_try(int trial, uint32_t* out) {
  if (trial < FIRST_OF_TEAMS)
    GRADWIRE_LAUNCH(try_out, 1, THREADS, nullptr, (Trial)trial, out);
  else if (trial == TEAM_OF_GRID || trial == MISSED_OF_GRID)
    GRADWIRE_LAUNCH_COOPERATIVE(try_teams, BLOCKS, TEAM_THREADS, nullptr, (Trial)trial, out);
  else
    GRADWIRE_LAUNCH_CLUSTERS(try_teams, BLOCKS, BLOCKS, TEAM_THREADS, nullptr, (Trial)trial, out);
  return cudaGetLastError();
}

// A function of intrinsics.h, by number, of these bits.
GRADWIRE_API uint32_t gradwire_emulation_compute(int function, uint32_t a, uint32_t b, uint32_t c) {
  const float x = __uint_as_float(a), y = __uint_as_float(b);
  switch (function) {
    case 0: return __float_as_uint(__fadd_rz(x, y));
    case 1: return ptx::cvt_rn_bf16x2(x, y);
    case 2: return ptx::add_rn_f16x2(a, b);
    case 3: return __float_as_uint(ptx::max_nan(x, y));
    case 4: return __byte_perm(a, b, c);
    case 5: return __float_as_uint(__fmul_rn(x, y));
    case 6: return __float_as_uint(ptx::lg2_approx_ftz(x));
    case 7: return __funnelshift_l(a, b, c);
    case 8: return __funnelshift_r(a, b, c);
    default: return __umulhi(a, b);
  }
}
