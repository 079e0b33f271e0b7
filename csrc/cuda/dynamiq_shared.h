// What the threads of a block share: the quantization values of all widths, next to the cores, and where in a
// message each width is.
#pragma once
#include "gradwire/dynamiq.h"
#include "launch.h"

namespace gradwire_cuda {

using namespace gradwire;

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

// The constants of one width and one of its ε.
struct Scalars {
  float span, centre, unit, negative_factor, levels_per_octave, levels_per_step;
};

enum { COPIES = 32, WIDE = 129, MOST_COSTS = 3072 };

// Where the tables of a slot begin: those of narrower widths behind those of wider ones. Thresholds begin
// with T[-1] = 0, and those of a progression end with infinity: an estimate that is off by one finds no wrong
// level.
GRADWIRE_HD int threshold_base(int slot) {
  return slot == 2 ? 0 : slot == 3 ? 33 : slot == 4 ? 50 : slot == 5 ? 59 : 64;
}
GRADWIRE_HD int decoded_base(int slot) {
  return slot == 1   ? 0
         : slot == 2 ? 256
         : slot == 3 ? 320
         : slot == 4 ? 352
         : slot == 5 ? 368
         : slot == 6 ? 376
                     : 380;
}

enum { THRESHOLDS = 67, DECODED = 382 };

struct Tables {
  Scalars scalars[WIDTH_SLOTS][2];
  int32_t largest[WIDTH_SLOTS], points[WIDTH_SLOTS], first_cost[WIDTH_SLOTS];
  float decoded[2][DECODED];
};

// The thresholds of 8 bits are kept many times over, entry r of copy c at [r + 1][c]: lanes that look up
// different entries do not wait for each other. Two ε share the room, with half as many copies each.
struct EncodingTables : Tables {
  float quotients[128];  // 255/s by the mantissa of s, a bfloat16 in [2, 4)
  float thresholds[2][THRESHOLDS];
  alignas(16) float wide[WIDE * COPIES];
};

struct CodebookTables : EncodingTables {
  uint64_t costs[MOST_COSTS];
};

// T[r] of a slot as the tables have it, r from -1 on, given T[max(r, 0)].
__device__ __forceinline__ float padded_threshold(float given, int r, int32_t largest) {
  return r < 0 ? 0.0f : r < largest ? given : float_of(INFINITE);
}

// Filling them is most of a small chunk's time, so whatever a thread copies is asked for before any of it is
// waited for: a block waits once.
template <bool ENCODING>
struct Filling {
  enum { WIDE_STEPS = (WIDE * 4 + THREADS - 1) / THREADS, STEPS = (DECODED + THREADS - 1) / THREADS };
  Scalars scalars;
  int32_t largest, points, first_cost;
  float decoded[2][STEPS], threshold, wide[WIDE_STEPS];
  int32_t threshold_largest, wide_largest;

  static __device__ __forceinline__ int slot_of_decoded(int i) {
    int slot = 1;
#pragma unroll
    for (int next = 2; next < WIDTH_SLOTS; ++next) slot += i >= decoded_base(next);
    return slot;
  }
  static __device__ __forceinline__ int slot_of_threshold(int i) {
    int slot = 2;
#pragma unroll
    for (int next = 3; next < WIDTH_SLOTS - 1; ++next) slot += i >= threshold_base(next);
    return slot;
  }

  // Which T[r] of 8 bits, of which ε, the thread's fourth of a row has.
  static __device__ __forceinline__ int wide_row(int i, bool books, int& book) {
    book = books ? i / (WIDE * 2) : 0;
    return (books ? (i - book * (WIDE * 2)) / 2 : i / 4) - 1;
  }

  __device__ __forceinline__ void load(const gradwire_dynamiq& args) {
    const int thread = threadIdx.x;
    if (thread < 2 * WIDTH_SLOTS) {
      const gradwire_values& values = args.values[thread / 2];
      const int book = thread % 2;
      scalars = {values.span[book],
                 values.centre[book],
                 values.unit[book],
                 values.negative_factor[book],
                 values.levels_per_octave[book],
                 values.levels_per_step[book]};
      largest = values.largest;
      points = values.points;
      first_cost = values.first_cost / 2;  // those of positive coordinates alone are kept
    }
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
      const int i = thread + step * THREADS;
      if (i >= DECODED) break;
      const int slot = slot_of_decoded(i);
      decoded[0][step] = args.values[slot].decoded[0][i - decoded_base(slot)];
      decoded[1][step] = args.codebooks > 1 ? args.values[slot].decoded[1][i - decoded_base(slot)] : 0.0f;
    }
    if constexpr (ENCODING) {
      if (thread < 2 * THRESHOLDS) {
        const int i = thread % THRESHOLDS, slot = slot_of_threshold(i), r = i - threshold_base(slot) - 1;
        threshold_largest = args.values[slot].largest;
        threshold = args.values[slot].thresholds[thread / THRESHOLDS][r < 0 ? 0 : r];
      }
      wide_largest = args.values[1].largest;
#pragma unroll
      for (int step = 0; step < WIDE_STEPS; ++step) {
        const int i = thread + step * THREADS;
        if (i >= WIDE * 4) break;
        int book;
        const int r = wide_row(i, args.codebooks > 1, book);
        wide[step] = args.values[1].thresholds[book][r < 0 ? 0 : r];
      }
    }
  }

  __device__ __forceinline__ void store(Tables& tables) const {
    const int thread = threadIdx.x;
    if (thread < 2 * WIDTH_SLOTS) {
      tables.scalars[thread / 2][thread % 2] = scalars;
      tables.largest[thread / 2] = largest;
      tables.points[thread / 2] = points;
      tables.first_cost[thread / 2] = first_cost;
    }
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
      const int i = thread + step * THREADS;
      if (i >= DECODED) break;
      tables.decoded[0][i] = decoded[0][step];
      tables.decoded[1][i] = decoded[1][step];
    }
  }
  __device__ __forceinline__ void store(EncodingTables& tables, bool books) const {
    const int thread = threadIdx.x;
    store((Tables&)tables);
    if (thread < 128) tables.quotients[thread] = div(255.0f, scale_value(0x4000u + thread));
    if (thread < 2 * THRESHOLDS) {
      const int i = thread % THRESHOLDS;
      tables.thresholds[thread / THRESHOLDS][i] =
          padded_threshold(threshold, i - threshold_base(slot_of_threshold(i)) - 1, threshold_largest);
    }
#pragma unroll
    for (int step = 0; step < WIDE_STEPS; ++step) {
      const int i = thread + step * THREADS;
      if (i >= WIDE * 4) break;
      int book;
      const float value = padded_threshold(wide[step], wide_row(i, books, book), wide_largest);
      float4* target = reinterpret_cast<float4*>(tables.wide) + 2 * i;
      target[0] = target[1] = make_float4(value, value, value, value);
    }
  }
};

__device__ __forceinline__ void fill(Tables& tables, const gradwire_dynamiq& args) {
  Filling<false> filling;
  filling.load(args);
  filling.store(tables);
}
__device__ __forceinline__ void fill(EncodingTables& tables, const gradwire_dynamiq& args) {
  Filling<true> filling;
  filling.load(args);
  filling.store(tables, args.codebooks > 1);
}
__device__ __forceinline__ void fill(CodebookTables& tables, const gradwire_dynamiq& args) {
  fill((EncodingTables&)tables, args);
  for (int slot = 1; slot < WIDTH_SLOTS; ++slot) {
    const int first = args.values[slot].first_cost, points = args.values[slot].points;
    if (points)
      for (int i = threadIdx.x; i <= points; i += THREADS)
        tables.costs[first / 2 + i] = args.costs[first + i];
  }
}

__device__ __forceinline__ Scalars scalars_of(const Tables& tables, int slot, int book) {
  const Scalars& scalars = tables.scalars[slot][book];
  return {again(scalars.span),
          again(scalars.centre),
          again(scalars.unit),
          again(scalars.negative_factor),
          again(scalars.levels_per_octave),
          again(scalars.levels_per_step)};
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
  int32_t firsts[WIDTH_SLOTS], lasts[WIDTH_SLOTS], pairs[WIDTH_SLOTS + 1];
  bool possible;  // if not, there are no rows
};

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

// What `layout_of` says, by one warp: a lane has a slot.
__device__ __forceinline__ void make_plan(Plan& plan, const gradwire_dynamiq& args) {
  const int lane = lane_of_thread(), slot = lane % WIDTH_SLOTS, width = width_of_slot(slot);
  const int64_t count = lane < WIDTH_SLOTS ? args.counts[width] : 0;
  const int64_t rows = sum_up_to(count, lane), codes = sum_up_to(count * 32 * width, lane),
                pairs = sum_up_to((count + 1) / 2, lane);
  const int64_t end_of_codes = of_last_slot(codes),
                end_of_groups = end_of_codes + args.rows * bytes_of_groups(args),
                used_bytes = end_of_groups + args.rows * bytes_of_scale(args);
  const bool negative = __ballot_sync(ALL, count < 0) != 0,
             possible = is_possible(args, of_last_slot(rows), used_bytes) && !negative;
  if (lane == 0) {
    plan.incoming.groups = (const uint8_t*)((uintptr_t)args.incoming + (uintptr_t)end_of_codes);
    plan.incoming.scales = (const uint8_t*)((uintptr_t)args.incoming + (uintptr_t)end_of_groups);
    plan.outgoing.groups = (uint8_t*)((uintptr_t)args.outgoing + (uintptr_t)end_of_codes);
    plan.outgoing.scales = (uint8_t*)((uintptr_t)args.outgoing + (uintptr_t)end_of_groups);
    plan.used_bytes = possible ? used_bytes : 0;
    plan.possible = possible;
    plan.pairs[0] = 0;
  }
  if (lane >= WIDTH_SLOTS) return;
  const int64_t first = rows - count, begin = codes - count * 32 * width - first * 32 * width;
  plan.incoming.codes[slot] = (const uint8_t*)((uintptr_t)args.incoming + (uintptr_t)begin);
  plan.outgoing.codes[slot] = (uint8_t*)((uintptr_t)args.outgoing + (uintptr_t)begin);
  plan.firsts[slot] = (int32_t)(first - 2 * (pairs - (count + 1) / 2));
  plan.lasts[slot] = (int32_t)rows - 1;
  plan.pairs[slot + 1] = possible ? (int32_t)pairs : 0;
}
// Pairs that there can be, whatever the counts.
inline int64_t most_pairs(const gradwire_dynamiq& args) { return (args.rows + WIDTH_SLOTS) / 2; }

// Rows that a launch can have: sixteens of their coordinates are counted in 32 bits.
enum : int64_t { MOST_ROWS = 1 << 28 };

}  // namespace gradwire_cuda
