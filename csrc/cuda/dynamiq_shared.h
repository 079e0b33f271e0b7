// What the threads of a block share: the quantization values of all widths, next to the cores.
#pragma once
#include "gradwire/dynamiq.h"
#include "launch.h"

namespace gradwire_cuda {

using namespace gradwire;

// The constants of one width and one of its ε.
struct Scalars {
  float span, centre, unit, negative_factor, levels_per_octave, levels_per_step;
};

enum { COPIES = 32, WIDE = 128, MOST_COSTS = 3072 };

// Where the tables of a slot begin: those of narrower widths behind those of wider ones.
GRADWIRE_HD int threshold_base(int slot) {
  return slot == 2 ? 0 : slot == 3 ? 32 : slot == 4 ? 48 : slot == 5 ? 56 : 60;
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

enum { THRESHOLDS = 62, DECODED = 382 };

struct Tables {
  Scalars scalars[WIDTH_SLOTS][2];
  int32_t largest[WIDTH_SLOTS], points[WIDTH_SLOTS], first_cost[WIDTH_SLOTS];
  float decoded[2][DECODED];
};

// The thresholds of 8 bits are kept many times over, entry r of copy c at [r][c]: lanes that look up
// different entries do not wait for each other. Two ε share the room, with half as many copies each.
struct EncodingTables : Tables {
  float thresholds[2][THRESHOLDS];
  float wide[WIDE * COPIES];
};

struct CodebookTables : EncodingTables {
  uint64_t costs[MOST_COSTS];
};

// Where the scales of a chunk's messages lie: behind the codes.
struct Sections {
  int64_t end_of_codes, end_of_groups;
  int groups, wide;  // groups of a super-group; 1, or 2 if groups have 32 coordinates
};

// A warp has two rows of one width: where a slot's pairs begin.
struct Plan {
  Layout layout;
  Sections sections;
  int64_t pairs[WIDTH_SLOTS + 1];
};

__device__ inline Plan plan_of(const gradwire_dynamiq& args) {
  Plan plan;
  plan.layout = layout_of(args);
  const Layout& layout = plan.layout;
  plan.sections = {layout.codes[WIDTH_SLOTS], layout.end_of_groups, SUPER_GROUP / args.group,
                   args.group / 16};
  plan.pairs[0] = 0;
  for (int slot = 0; slot < WIDTH_SLOTS; ++slot)
    plan.pairs[slot + 1] = plan.pairs[slot] + (layout.rows[slot + 1] - layout.rows[slot] + 1) / 2;
  return plan;
}
// Pairs that there can be, whatever the counts.
inline int64_t most_pairs(const gradwire_dynamiq& args) { return (args.rows + WIDTH_SLOTS) / 2; }

__device__ inline void fill(Tables& tables, const gradwire_dynamiq& args) {
  for (int i = threadIdx.x; i < 2 * WIDTH_SLOTS; i += THREADS) {
    const int slot = i / 2, book = i % 2;
    const gradwire_values& values = args.values[slot];
    tables.scalars[slot][book] = {values.span[book],
                                  values.centre[book],
                                  values.unit[book],
                                  values.negative_factor[book],
                                  values.levels_per_octave[book],
                                  values.levels_per_step[book]};
    tables.largest[slot] = values.largest;
    tables.points[slot] = values.points;
    tables.first_cost[slot] = values.first_cost / 2;  // those of positive coordinates alone are kept
  }
  for (int slot = 1; slot < WIDTH_SLOTS; ++slot)
    for (int i = threadIdx.x; i < 2 << width_of_slot(slot); i += THREADS) {
      const int book = i >> width_of_slot(slot), code = i & ((1 << width_of_slot(slot)) - 1);
      tables.decoded[book][decoded_base(slot) + code] = args.values[slot].decoded[book][code];
    }
}

__device__ inline void fill(EncodingTables& tables, const gradwire_dynamiq& args) {
  fill((Tables&)tables, args);
  for (int slot = 2; slot < WIDTH_SLOTS - 1; ++slot)
    for (int i = threadIdx.x; i < 1 << width_of_slot(slot); i += THREADS) {
      const int levels = 1 << (width_of_slot(slot) - 1);
      tables.thresholds[i / levels][threshold_base(slot) + i % levels] =
          args.values[slot].thresholds[i / levels][i % levels];
    }
  const gradwire_values& eight = args.values[1];
  for (int i = threadIdx.x; i < WIDE * COPIES; i += THREADS)
    tables.wide[i] = eight.points ? eight.thresholds[i / (WIDE * COPIES / 2)][i / (COPIES / 2) % WIDE]
                                  : eight.thresholds[0][i / COPIES];
}

__device__ inline void fill(CodebookTables& tables, const gradwire_dynamiq& args) {
  fill((EncodingTables&)tables, args);
  for (int slot = 1; slot < WIDTH_SLOTS; ++slot) {
    const int first = args.values[slot].first_cost, points = args.values[slot].points;
    if (points)
      for (int i = threadIdx.x; i <= points; i += THREADS)
        tables.costs[first / 2 + i] = args.costs[first + i];
  }
}

// An entry of the thresholds of 8 bits; `copy` is the lane.
__device__ __forceinline__ float wide_threshold(const EncodingTables& tables, bool books, int book, int level,
                                                int copy) {
  return tables
      .wide[books ? (book * WIDE + level) * (COPIES / 2) + (copy & (COPIES / 2 - 1)) : level * COPIES + copy];
}

}  // namespace gradwire_cuda
