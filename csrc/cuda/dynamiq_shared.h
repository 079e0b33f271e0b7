// What the threads of a block share: the quantization values of all widths, next to the cores, the round
// keys, and where in a message each width is.
#pragma once
#include "dynamiq_tables.h"

namespace gradwire_cuda {

// Loads from shared memory once more: kept from row to row, what is the same for all rows would take
// registers that there are not.
template <class T>
__device__ __forceinline__ T again(const T& shared) {
  return *(const volatile T*)&shared;
}

// A pointer that was kept in shared memory: the compiler cannot see where it leads.
template <class T>
__device__ __forceinline__ T* in_global_memory(T* pointer) {
#if !defined(GRADWIRE_EMULATED)
  __builtin_assume(__isGlobal(pointer));
#endif
  return pointer;
}

// The round keys in shared memory, for a key that lies in global memory: two words a load, once more for
// every row. RoundKeys, which are kernel parameters, need no instruction.
struct SharedKeys {
  uint64_t pairs[PHILOX_ROUNDS];
};
__device__ __forceinline__ Key round_key(const SharedKeys& keys, int round) {
  const uint64_t pair = again(keys.pairs[round]);
  return {(uint32_t)pair, (uint32_t)(pair >> 32)};
}
// The key itself, where the kernel has it.
__device__ __forceinline__ Key key_itself(const gradwire_dynamiq& args, const RoundKeys&) {
  return {args.key0, args.key1};
}
__device__ __forceinline__ Key key_itself(const gradwire_dynamiq&, const SharedKeys& keys) {
  return round_key(keys, 0);
}
__device__ __forceinline__ void fill(SharedKeys& keys, const gradwire_dynamiq& args) {
  const int round = threadIdx.x;
  if (round >= PHILOX_ROUNDS) return;
  const Key own = round_key(key_of(args), round);
  keys.pairs[round] = own.first | (uint64_t)own.second << 32;
}

// By the block, before its first barrier: copies the tables from where the caller has them.
template <class Shared>
__device__ __forceinline__ void fill(Shared& tables, const gradwire_dynamiq& args) {
  constexpr int ALL_PARTS = sizeof(Shared) / 16, STEPS = (ALL_PARTS + THREADS - 1) / THREADS;
  const uint4* source = reinterpret_cast<const uint4*>(args.tables);
  uint4* target = reinterpret_cast<uint4*>(&tables);
  uint4 parts[STEPS];  // all are asked for before one is waited for
#pragma unroll
  for (int step = 0; step < STEPS; ++step) {
    const int i = threadIdx.x + step * THREADS;
    if (i < ALL_PARTS) parts[step] = source[i];
  }
#pragma unroll
  for (int step = 0; step < STEPS; ++step) {
    const int i = threadIdx.x + step * THREADS;
    if (i < ALL_PARTS) target[i] = parts[step];
  }
}

// All but what belongs to estimates.
__device__ __forceinline__ Scalars scalars_of(const Tables& tables, int slot, int book) {
  const Scalars& scalars = tables.scalars[slot][book];
  return {again(scalars.span),
          again(scalars.centre),
          again(scalars.unit),
          again(scalars.negative_factor),
          again(scalars.levels_per_octave),
          again(scalars.levels_per_step),
          0.0f,
          0};
}

// T[level] of 8 bits, from -1 on; `copy` is the lane.
__device__ __forceinline__ float wide_threshold(const EncodingTables& tables, bool books, int book, int level,
                                                int copy) {
  return tables.wide[books ? (book * WIDE + level + 1) * (COPIES / 2) + (copy & (COPIES / 2 - 1))
                           : (level + 1) * COPIES + copy];
}

// Where the rows of a message would begin, if all were of slot s: row r of that slot is 32·width·r bytes
// behind.
template <class Byte>
struct Message {
  Byte *codes[WIDTH_SLOTS], *groups, *scales;
};

// Where a chunk's rows are. A warp has two of one width at a time: `pairs` says where a slot's begin. The
// first row of pair p is `firsts` + 2p; `lasts` is a slot's last row.
struct Plan {
  Message<const uint8_t> incoming;
  Message<uint8_t> outgoing;
  int64_t used_bytes;
  int32_t stride;  // from a warp's pair to its next one
  int32_t firsts[WIDTH_SLOTS], lasts[WIDTH_SLOTS], pairs[WIDTH_SLOTS + 1];
  bool possible;  // if not, there are no rows
};

// Which of the launch's rows and bytes a chunk has. Blocks with the same blockIdx.y have one.
struct Part {
  int64_t first_byte, incoming_bytes, outgoing_bytes;
  int32_t first_row, rows;
};

__device__ __forceinline__ bool is_possible(const gradwire_dynamiq& args, const Part& part, int64_t rows,
                                            int64_t used_bytes) {
  return rows == part.rows && (!args.incoming || used_bytes <= part.incoming_bytes) &&
         (!args.outgoing || used_bytes <= part.outgoing_bytes);
}

// The sum up to and with this lane's, over the first eight lanes.
__device__ __forceinline__ int64_t sum_up_to(int64_t value, int lane) {
  uint64_t sum = (uint64_t)value;
#pragma unroll
  for (int distance = 1; distance < WIDTH_SLOTS; distance *= 2) {
    const uint64_t before = __shfl_sync(ALL, sum, (lane + WARP - distance) % WARP);
    if (lane >= distance) sum += before;
  }
  return (int64_t)sum;
}
__device__ __forceinline__ int64_t of_last_slot(int64_t value) {
  return (int64_t)__shfl_sync(ALL, (uint64_t)value, WIDTH_SLOTS - 1);
}

// What `layout_of` says of the block's chunk, by one warp: a lane has a slot. Rows are counted over all
// chunks of the launch.
__device__ __forceinline__ void make_plan(Plan& plan, const gradwire_dynamiq& args, const Part& part) {
  const int lane = lane_of_thread(), slot = lane % WIDTH_SLOTS, width = width_of_slot(slot);
  const int64_t count = lane < WIDTH_SLOTS ? args.counts[COUNTED * blockIdx.y + width] : 0;
  const int64_t rows = sum_up_to(count, lane), codes = sum_up_to(count * 32 * width, lane),
                pairs = sum_up_to((count + 1) / 2, lane);
  const int64_t end_of_codes = of_last_slot(codes),
                end_of_groups = end_of_codes + part.rows * bytes_of_groups(args),
                used_bytes = end_of_groups + part.rows * bytes_of_scale(args);
  const bool negative = __ballot_sync(ALL, count < 0) != 0,
             possible = is_possible(args, part, of_last_slot(rows), used_bytes) && !negative;
  const uintptr_t incoming = (uintptr_t)args.incoming + (uintptr_t)part.first_byte,
                  outgoing = (uintptr_t)args.outgoing + (uintptr_t)part.first_byte;
  if (lane == 0) {
    const int64_t groups = end_of_codes - part.first_row * bytes_of_groups(args),
                  scales = end_of_groups - part.first_row * bytes_of_scale(args);
    plan.incoming.groups = (const uint8_t*)(incoming + (uintptr_t)groups);
    plan.incoming.scales = (const uint8_t*)(incoming + (uintptr_t)scales);
    plan.outgoing.groups = (uint8_t*)(outgoing + (uintptr_t)groups);
    plan.outgoing.scales = (uint8_t*)(outgoing + (uintptr_t)scales);
    plan.used_bytes = possible ? used_bytes : 0;
    plan.possible = possible;
    plan.pairs[0] = 0;
    plan.stride = (int32_t)warps_of_grid();
  }
  if (lane >= WIDTH_SLOTS) return;
  const int64_t first = part.first_row + rows - count, begin = codes - (count + first) * 32 * width;
  plan.incoming.codes[slot] = (const uint8_t*)(incoming + (uintptr_t)begin);
  plan.outgoing.codes[slot] = (uint8_t*)(outgoing + (uintptr_t)begin);
  plan.firsts[slot] = (int32_t)(first - 2 * (pairs - (count + 1) / 2));
  plan.lasts[slot] = part.first_row + (int32_t)rows - 1;
  plan.pairs[slot + 1] = possible ? (int32_t)pairs : 0;
}
// From here on the incoming message is the one that the block's warps have written: by the block.
__device__ __forceinline__ void read_back(Plan& plan) {
  __syncthreads();
  if (threadIdx.x < WIDTH_SLOTS) plan.incoming.codes[threadIdx.x] = plan.outgoing.codes[threadIdx.x];
  if (threadIdx.x == WIDTH_SLOTS) plan.incoming.groups = plan.outgoing.groups;
  if (threadIdx.x == WIDTH_SLOTS + 1) plan.incoming.scales = plan.outgoing.scales;
  __syncthreads();
}

// Pairs that there can be in a chunk of `rows` rows, whatever the counts.
inline int64_t most_pairs(int64_t rows) { return (rows + WIDTH_SLOTS) / 2; }

// Rows that a launch can have: sixteens of their coordinates are counted in 32 bits.
enum : int64_t { MOST_ROWS = 1 << 28 };

}  // namespace gradwire_cuda
