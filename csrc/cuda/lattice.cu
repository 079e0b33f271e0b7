// One block per slot, one warp per super-group at a time. Integers stay in shared memory, from where they are
// written again; what a slot's super-groups take is known before the first one is written.
#include "gradwire/lattice.h"

#include "lattice_packed.h"
#include "lattice_rice.h"
#include "lattice_sums.h"

using namespace gradwire;
using namespace gradwire_cuda;

namespace {

// The shift of a super-group's sum.
__device__ __forceinline__ uint32_t shift_of_sum(const gradwire_lattice& args, uint32_t received,
                                                 uint32_t held) {
  if (args.message_in && args.held) return args.exact ? 0u : larger(received, held);
  return args.message_in ? received : held;
}

// Adds integers that are held to those received: with the larger shift of both, or exactly.
__device__ __forceinline__ void add_sums(const gradwire_lattice& args, int64_t super_group, Key key, int lane,
                                         uint32_t received, uint32_t held, int32_t* own, int32_t* q) {
  if (args.exact) {
#pragma unroll
    for (int i = 0; i < EIGHT; ++i)
      q[i] = (int32_t)(((uint32_t)own[i] << held) + ((uint32_t)q[i] << received));
    return;
  }
  const uint32_t most = larger(received, held);
  shift_row(args, super_group, key, (uint32_t)args.turn, most - held, lane, own);
  shift_row(args, super_group, key, (uint32_t)args.turn, most - received, lane, q);
#pragma unroll
  for (int i = 0; i < EIGHT; ++i) q[i] += own[i];
}

// What a hop does: a worker's own integers, or these and a message's, are sent; or whatever is asked for.
enum { OWN, PASSED_ON, ANY };

template <class Code, int KIND>
__global__ void __launch_bounds__(SLOT_THREADS, 2)
    hop(const GRADWIRE_GRID_CONSTANT gradwire_lattice args, bool vectors, bool sum_vectors) {
  SlotMemory& memory = slot_memory();
  SlotRows& rows = slot_rows();
  const Team team = team_of(args);
  const int64_t slot = blockIdx.x, first = slot * team.num;
  const int64_t* const order = args.order + first;
  const Key key = key_of(args.key_place, args.key0, args.key1);
  const float step = power_of_units(-*args.step), each = div(1.0f, (float)(args.count << 16));
  const bool received = KIND == ANY ? args.message_in != nullptr : KIND == PASSED_ON,
             held = KIND == ANY && args.held, stored = KIND == ANY && args.sums && !(held && !received);
  if (received) receive<Code>(args, slot, rows, memory, team);
  uint32_t highest = 0;
#pragma unroll 1
  for (int s = team.lane; s < team.num; s += WARP) {
    const uint32_t shift = received ? memory.shifts[s] : 0, own = held ? args.shifts[first + s] : 0;
    highest = larger(highest, KIND == ANY ? shift_of_sum(args, shift, own) : shift);
  }
  highest = __reduce_max_sync(ALL, highest);
  __syncthreads();  // until nobody reads what shifts there were
#pragma unroll 1
  for (int s = team.warp; s < team.num; s += SLOT_WARPS) {
    int32_t q[EIGHT] = {};
    uint32_t shift = 0, mark = 0;
    const int64_t super_group = order[s];
    if (received) {
      load_row(rows[s], team.lane, q);
      shift = memory.shifts[s], mark = memory.marks[s];
    }
    if (held) {
      int32_t own[EIGHT];
      const uint32_t own_shift = args.shifts[first + s], own_mark = args.marks[first + s];
      load_eight(args.sums + (first + s) * SUPER_GROUP, sum_vectors, team.lane, own);
      if (received) {
        add_sums(args, super_group, key, team.lane, shift, own_shift, own, q);
        mark = joined_marks(mark, own_mark);
      } else {
#pragma unroll
        for (int i = 0; i < EIGHT; ++i) q[i] = own[i];
        mark = own_mark;
      }
      shift = shift_of_sum(args, shift, own_shift);
    }
    if (KIND != ANY || args.values) {
      float x[EIGHT], noise[EIGHT];
      int32_t own[EIGHT];
      const uint32_t own_mark = load_super_group(args, super_group, KIND != ANY || vectors, team.lane, x);
      if (!received) shift = 0;
      strata_of(args, super_group, key, each, team.lane, noise);
      rounded_down(x, mul(step, power_of_two(127 - (int32_t)shift)), noise, own);
#pragma unroll
      for (int i = 0; i < EIGHT; ++i) q[i] = own[i] + (received ? q[i] : 0);
      mark = received ? joined_marks(own_mark, mark) : own_mark;
    }
    __syncwarp();
    if (stored) {
      uint32_t words[EIGHT];
#pragma unroll
      for (int i = 0; i < EIGHT; ++i) words[i] = (uint32_t)q[i];
      store_eight(reinterpret_cast<uint32_t*>(args.sums) + (first + s) * SUPER_GROUP, sum_vectors, team.lane,
                  words);
      if (team.lane == 0) {
        args.shifts[first + s] = (uint8_t)shift;
        args.marks[first + s] = (uint8_t)mark;
      }
    }
    if (KIND == ANY && !args.message_out) continue;
    if (mark == BROKEN_MARK) {
#pragma unroll
      for (int i = 0; i < EIGHT; ++i) q[i] = 0;
    }
    if (highest > shift + MOST_FURTHER) {
      shift_row(args, super_group, key, 0, highest - MOST_FURTHER - shift, team.lane, q);
      shift = highest - MOST_FURTHER;
    }
    keep_row<Code>(rows, memory, team, s, q);
    if (team.lane == 0) memory.shifts[s] = shift, memory.marks[s] = mark;
  }
  if (KIND == ANY && !args.message_out) return;
  __syncthreads();
  uint32_t used = slot_bits(memory.bits, team);
  if (threadIdx.x == 0) args.wanted[slot] = used;
  if (used > (uint32_t)args.size_out) {
    __syncthreads();
    used = make_fit<Code>(args, order, key, used, rows, memory, team);
  }
  const uint32_t base = least_shift(memory, team);
  write_slot<Code>(args, slot, base, base, used, rows, memory, team);
}

template <class Code>
int launch(const gradwire_lattice& args, cudaStream_t stream) {
  const bool usual = args.values && aligned(args.values) && args.message_out && !args.sums && !args.held;
  const auto kernel = !usual ? hop<Code, ANY> : args.message_in ? hop<Code, PASSED_ON> : hop<Code, OWN>;
  const int bytes = args.super_groups * (int)sizeof(Row);
  if (const int error = allow_large_shared(kernel, bytes)) return error;
  GRADWIRE_LAUNCH_LARGE(kernel, (unsigned)args.slots, SLOT_THREADS, bytes, stream, args, aligned(args.values),
                        aligned(args.sums));
  return cudaGetLastError();
}

}  // namespace

// One hop: what is received, what is held and this worker's gradients become sums, or the next message.
GRADWIRE_API int gradwire_lattice_hop(const gradwire_lattice* args) {
  GRADWIRE_CUDA_BEGIN(lattice_hop, args);
  return args->packed ? launch<PackedCode>(*args, stream) : launch<RiceCode>(*args, stream);
}
