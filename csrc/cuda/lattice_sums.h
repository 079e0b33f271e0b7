// Partial sums on their way through a block: received, made to fit into a slot, written.
#pragma once
#include "lattice_slot.h"

namespace gradwire_cuda {
inline namespace lattice {

__device__ __forceinline__ Team team_of(const gradwire_lattice& args) {
  return {lane_of_thread(), (int)threadIdx.x / WARP, args.super_groups};
}

// The integers, shifts and marks of what is received, each super-group's by the warp that goes on with it.
template <class Code>
__device__ __forceinline__ void receive(const gradwire_lattice& args, int64_t slot, SlotRows& rows,
                                        SlotMemory& memory, const Team& team) {
  const Received in = received_slot(args, slot);
  Code::open(in, memory, team);
#pragma unroll 1
  for (int s = team.warp; s < team.num; s += SLOT_WARPS) {
    int32_t q[EIGHT];
    Code::read(in, s, memory, team, q);
    store_row(rows[s], team.lane, q);
  }
  __syncthreads();
  Code::read_escapes(in, rows, memory, team);
}

// Keeps a super-group's integers, zigzagged, and how they are coded.
template <class Code>
__device__ __forceinline__ void keep_row(SlotRows& rows, SlotMemory& memory, const Team& team, int s,
                                         const int32_t* q) {
  uint32_t z[EIGHT];
  zigzags_of(q, z);
  store_row(rows[s], team.lane, z);
  keep(memory, s, Code::choose(z, team.lane), team.lane);
}

// Writes the slot that was kept, whose super-groups have these marks and shifts beyond `base`.
template <class Code>
__device__ __forceinline__ void write_slot(const gradwire_lattice& args, int64_t slot, uint32_t number,
                                           uint32_t base, uint32_t used, const SlotRows& rows,
                                           SlotMemory& memory, const Team& team) {
  Outgoing out(args, slot, memory.stage);
  out.clear();
  if (team.warp < PARTS) add_up(memory.parts[team.warp], team);
  __syncthreads();
  if (threadIdx.x == 0) out.put_word(0, number | used << NUMBER_BITS);
  if ((int)threadIdx.x < team.num) {
    const int s = (int)threadIdx.x;
    out.put_byte(4 + s, Code::header_of(memory.codes[s], memory.marks[s]) | (memory.shifts[s] - base) << 6);
  }
  Code::write(out, rows, memory, team);
  out.finish(used);
}

// Has super-groups lose bits: the first ones in an order that changes from hop to hop, as few as suffice, or
// all of them several. Returns the bits in use.
template <class Code>
__device__ __forceinline__ uint32_t make_fit(const gradwire_lattice& args, const int64_t* order, Key key,
                                             uint32_t used, SlotRows& rows, SlotMemory& memory,
                                             const Team& team) {
  const uint32_t base = least_shift(memory, team), fixed = (uint32_t)fixed_bits(team.num);
  const int32_t room = args.size_out - (int32_t)fixed;
  int32_t total = (int32_t)(used - fixed);
  for (uint32_t level = 1; total > room && level <= (uint32_t)LARGEST_SHIFT; ++level) {
#pragma unroll 1
    for (int s = team.warp; s < team.num; s += SLOT_WARPS) {
      int32_t q[EIGHT];
      uint32_t z[EIGHT];
      const uint32_t shift = larger(base + level, memory.shifts[s]);
      load_unzigzagged(rows[s], team.lane, q);
      shift_row(args, order[s], key, 1, shift - memory.shifts[s], team.lane, q);
      zigzags_of(q, z);
      const uint32_t bits = Code::choose(z, team.lane).bits;
      if (team.lane == 0) memory.after[s] = bits;
    }
    __syncthreads();
    int32_t saved = 0, left = 0;
    int first = team.num;
#pragma unroll 1
    for (int begin = 0; begin < team.num; begin += WARP) {
      const int k = begin + team.lane, s = turn_of(k, team.num, args.contributions);
      const bool there = k < team.num;
      const uint32_t own = there ? memory.bits[s] - memory.after[s] : 0;
      uint32_t sum;
      const int32_t before = saved + (int32_t)sum_before(own, team.lane, sum);
      const uint32_t enough = __ballot_sync(ALL, there && before + (int32_t)own >= total - room);
      if (enough && first == team.num) first = begin + __ffs((int)enough) - 1;
      saved += (int32_t)sum;
      left += (int32_t)__reduce_add_sync(ALL, there ? memory.after[s] : 0);
    }
    if ((int)threadIdx.x < team.num) {
      const int k = (int)threadIdx.x, s = turn_of(k, team.num, args.contributions);
      memory.targets[s] = larger(base + level - (k > first), memory.shifts[s]);
    }
    __syncthreads();
    if ((int)threadIdx.x < team.num) memory.bits[threadIdx.x] = memory.after[threadIdx.x];
    total = left;
    __syncthreads();
  }
#pragma unroll 1
  for (int s = team.warp; s < team.num; s += SLOT_WARPS) {
    int32_t q[EIGHT];
    load_unzigzagged(rows[s], team.lane, q);
    const uint32_t shift = memory.targets[s];
    shift_row(args, order[s], key, 1, shift - memory.shifts[s], team.lane, q);
#pragma unroll
    for (int i = 0; i < EIGHT; ++i)
      if (total > room) q[i] = 0;  // once in a million years
    keep_row<Code>(rows, memory, team, s, q);
    __syncwarp();
    if (team.lane == 0) memory.shifts[s] = shift;
  }
  __syncthreads();
  return slot_bits(memory.bits, team);
}

}  // namespace lattice
}  // namespace gradwire_cuda
