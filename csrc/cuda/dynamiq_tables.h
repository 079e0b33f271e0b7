// The quantization values of all widths as kernels have them in shared memory. They are made once, by the
// host, and every block copies as much of them as it needs.
#pragma once
#include "gradwire/dynamiq.h"
#include "launch.h"

namespace gradwire_cuda {

using namespace gradwire;

// The constants of one width and one of its ε.
struct Scalars {
  float span, centre, unit, negative_factor, levels_per_octave, levels_per_step;
  float beginning;  // of estimates, and the largest fraction that is in doubt: see `Tolerance`
  uint32_t doubt;
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

// For decoding.
struct alignas(16) Tables {
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

static_assert(sizeof(CodebookTables) == GRADWIRE_DYNAMIQ_TABLE_BYTES, "the caller has room for the tables");

// ---- Made by the host

// What dynamiq_estimate.h adds up is 128 + the level + a fraction in units of 2^-16. The level is the nearest
// whole number above log_a(t/w), so that only what lies close to a whole number can be wrong: by the bound
// below. `beginning` has 1 for that next whole number, and so many units that the fractions in doubt are 0 to
// `doubt`.
//
// In units of 2^-24: t, w, and a threshold times w are rounded 7.25 times in all, here and in `exact_level`'s
// definition, with the factor 1/ln 2 in the logarithm; both logarithms err by 4 (CUDA Programming Guide:
// 2^-22 from 1/2 to 2, elsewhere 2 units in the last place); their difference by 1; 1/log2 a by 1.
struct Tolerance {
  float beginning;
  uint32_t doubt;
};
inline Tolerance tolerance_of(double levels_per_octave, double largest) {
  const double logarithm = levels_per_octave > largest ? levels_per_octave : largest,
               units = ((7.25 * 1.4427 + 4) * levels_per_octave + (4 + 1) * logarithm + largest) / 256;
  if (!(units < 1000)) return {129.0f, 0xFFFFu};  // all are
  int32_t before = 1;
  while (before < units) ++before;
  return {129.0f + (float)before / 65536, (uint32_t)(before + units + 0.5)};
}

// T[r] of a slot, r from -1 on.
inline float padded_threshold(const gradwire_values& values, int book, int r) {
  return r < 0 ? 0.0f : r < values.largest ? values.thresholds[book][r] : float_of(INFINITE);
}

// Returns false where there are more costs than room.
inline bool make_tables(CodebookTables& tables, const gradwire_dynamiq_values& args) {
  const bool books = args.codebooks > 1;
  for (int slot = 0; slot < WIDTH_SLOTS; ++slot) {
    const gradwire_values& values = args.values[slot];
    if (slot && values.points && values.first_cost / 2 + values.points >= MOST_COSTS) return false;
    tables.largest[slot] = values.largest;
    tables.points[slot] = values.points;
    tables.first_cost[slot] = values.first_cost / 2;  // those of positive coordinates alone are kept
    for (int i = 0; slot && values.points && i <= values.points; ++i)
      tables.costs[values.first_cost / 2 + i] = args.costs[values.first_cost + i];
    for (int book = 0; book < 2; ++book) {
      const Tolerance tolerance = tolerance_of(values.levels_per_octave[book], values.largest);
      tables.scalars[slot][book] = {values.span[book],
                                    values.centre[book],
                                    values.unit[book],
                                    values.negative_factor[book],
                                    values.levels_per_octave[book],
                                    values.levels_per_step[book],
                                    tolerance.beginning,
                                    tolerance.doubt};
      const int codes = slot == 0 ? 0 : 1 << width_of_slot(slot);
      for (int code = 0; code < codes; ++code)
        tables.decoded[book][decoded_base(slot) + code] = values.decoded[book][code];
      if (slot < 2 || slot == WIDTH_SLOTS - 1) continue;
      const int first = threshold_base(slot), end = slot == 6 ? THRESHOLDS : threshold_base(slot + 1);
      for (int i = first; i < end; ++i)
        tables.thresholds[book][i] = padded_threshold(values, book, i - first - 1);
    }
  }
  for (int i = 0; i < WIDE * COPIES; ++i) {
    const int row = books ? i / (COPIES / 2) : i / COPIES, book = row / WIDE;
    tables.wide[i] = padded_threshold(args.values[1], book, row % WIDE - 1);
  }
  for (int i = 0; i < 128; ++i) tables.quotients[i] = div(255.0f, scale_value(0x4000u + i));
  return true;
}

}  // namespace gradwire_cuda
