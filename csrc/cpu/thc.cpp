#include "gradwire/thc.h"

#include "lookup.h"
#include "rotation.h"
#include "thc_random.h"

using namespace gradwire;

#define GRADWIRE_INLINE __attribute__((always_inline))
static_assert((int)GRADWIRE_THC_SMALL_BLOCK <= (int)TILE, "small blocks are transformed in one pass");

namespace {

// Calls act(range, first, width) for every block, or part of one, in a unit that lies in blocks of 2^log.
template <class Arguments, class Act>
GRADWIRE_HD void for_blocks(const Arguments& args, const Blocks& blocks, int64_t unit, int log,
                            const Act& act) {
  const float* block = args.root_mean_squares + index_at(blocks, unit * UNIT, log);
  if (log >= UNIT_LOG) return act(range_of(*block, args.t_p), 0, UNIT);
  for (int first = 0; first < UNIT; first += 1 << log) act(range_of(*block++, args.t_p), first, 1 << log);
}

// The `count` coordinates of a unit, as if zeros followed up to UNIT.
template <class T>
GRADWIRE_HD void load_unit(const T* x, int64_t count, float* values) {
  if (count >= UNIT) {
    GRADWIRE_SIMD
    for (int k = 0; k < UNIT; ++k) values[k] = load(x + k);
  } else {
    for (int k = 0; k < UNIT; ++k) values[k] = k < count ? load(x + k) : 0.0f;
  }
}

// How a rotated unit becomes integers, with one kind of table.
struct Uniform {
  explicit Uniform(const gradwire_thc_in&) {}
  void round(const float* places, const float* dither, int32_t* integers) const {
    GRADWIRE_SIMD
    for (int k = 0; k < UNIT; ++k) {
      const int32_t low = (int32_t)places[k];
      integers[k] = low + (goes_up(places[k], (float)low, dither[k]) ? 1 : 0);
    }
  }
};
GRADWIRE_HD void round_to(const float* places, const float* dither, const float* entries,
                          const float* distances, int count, int32_t* integers) {
  GRADWIRE_SIMD
  for (int k = 0; k < count; ++k) {
    const bool up = goes_up(places[k], entries[k], distances[k], dither[k]);
    integers[k] = (int32_t)entries[k] + (up ? (int32_t)distances[k] : 0);
  }
}
struct Small {  // g < 32
  explicit Small(const gradwire_thc_in& args)
      : padded_entries(args.table, args.granularity + 1),
        padded_distances(args.table + args.granularity + 1, args.granularity + 1),
        entries(padded_entries.values),
        distances(padded_distances.values) {}
  void round(const float* places, const float* dither, int32_t* integers) const {
    for (int first = 0; first < UNIT; first += 16) {
      alignas(64) int32_t index[16];
      alignas(64) float below[16], distance[16];
      GRADWIRE_SIMD
      for (int k = 0; k < 16; ++k) index[k] = (int32_t)places[first + k];
      entries.find(index, below);
      distances.find(index, distance);
      round_to(places + first, dither + first, below, distance, 16, integers + first);
    }
  }
  struct Padded {
    Padded(const float* source, int count) {
      for (int i = 0; i < count; ++i) values[i] = source[i];
    }
    alignas(64) float values[32] = {};
  };
  Padded padded_entries, padded_distances;
  Table<32> entries, distances;
};
struct Large {
  explicit Large(const gradwire_thc_in& args)
      : entries(args.table), distances(args.table + args.granularity + 1) {}
  void round(const float* places, const float* dither, int32_t* integers) const {
    alignas(64) float below[UNIT], distance[UNIT];
    GRADWIRE_SIMD
    for (int k = 0; k < UNIT; ++k) {
      const int32_t index = (int32_t)places[k];
      below[k] = entries[index];
      distance[k] = distances[index];
    }
    round_to(places, dither, below, distance, UNIT, integers);
  }
  const float *entries, *distances;
};

template <class T, class Table>
struct Quantize {
  static constexpr bool IN_PLACE = false;
  explicit Quantize(const gradwire_thc_in& args)
      : args(args), blocks(blocks_of(args)), between((float*)args.integers), table(args) {}

  void load(int64_t unit, int count, float* values) const {
    const Signs signs(unit, 1, count, key_of(args));
    for (int i = 0; i < count; ++i, ++unit, values += UNIT) {
      alignas(64) float x[UNIT];
      alignas(64) uint32_t flips[UNIT];
      load_unit((const T*)args.x + unit * UNIT, args.numel - unit * UNIT, x);
      signs.flips(i, flips);
      for_blocks(args, blocks, unit, log_at(blocks, unit * UNIT),
                 [&](const Range& range, int first, int width) GRADWIRE_INLINE {
                   const float normalizer = range.normalizer;
                   GRADWIRE_SIMD
                   for (int k = first; k < first + width; ++k)
                     values[k] = flipped(mul(x[k], normalizer), flips[k]);
                 });
    }
  }
  void finish(int log, int64_t unit, int64_t step, int count, const float* values) const {
    const float granularity = (float)args.granularity, half = mul(granularity, 0.5f);
    for (int i = 0; i < count; ++i, unit += step, values += UNIT) {
      alignas(64) float places[UNIT], dither[UNIT];
      for_blocks(args, blocks, unit, log, [&](const Range& range, int first, int width) GRADWIRE_INLINE {
        const float factor = div(half, range.limit);
        const uint32_t alive = range.alive;
        GRADWIRE_SIMD
        for (int k = first; k < first + width; ++k)
          places[k] = place_of(values[k], factor, alive, half, granularity);
      });
      unit_dither(unit, args.rank, key_of(args), dither);
      table.round(places, dither, args.integers + unit * UNIT);
    }
  }

  const gradwire_thc_in& args;
  Blocks blocks;
  float* between;
  Table table;
};

template <class T>
struct Dequantize {
  static constexpr bool IN_PLACE = false;
  explicit Dequantize(const gradwire_thc_out& args)
      : args(args), blocks(blocks_of(args)), between(args.between) {}

  void load(int64_t unit, int count, float* values) const {
    const float whole = (float)(2 * args.peak);
    const int32_t peak = args.peak;
    for (int i = 0; i < count; ++i, ++unit, values += UNIT) {
      const int32_t* sums = args.sums + unit * UNIT;
      for_blocks(args, blocks, unit, log_at(blocks, unit * UNIT),
                 [&](const Range& range, int first, int width) GRADWIRE_INLINE {
                   const float step = div(range.limit, whole);
                   GRADWIRE_SIMD
                   for (int k = first; k < first + width; ++k) values[k] = mul(centred(sums[k], peak), step);
                 });
    }
  }
  void finish(int log, int64_t unit, int64_t step, int count, const float* values) const {
    const Signs signs(unit, step, count, key_of(args));
    for (int i = 0; i < count; ++i, unit += step, values += UNIT) {
      T* mean = (T*)args.mean + unit * UNIT;
      alignas(64) uint32_t flips[UNIT];
      signs.flips(i, flips);
      for_blocks(args, blocks, unit, log, [&](const Range& range, int first, int width) GRADWIRE_INLINE {
        const float restorer = range.restorer;
        GRADWIRE_SIMD
        for (int k = first; k < first + width; ++k)
          store(mean + k, restored(flipped(values[k], flips[k]), restorer));
      });
    }
  }

  const gradwire_thc_out& args;
  Blocks blocks;
  float* between;
};

// Calls act with the Work that fits the arguments.
template <class T, class Act>
GRADWIRE_HD void with_table(const gradwire_thc_in& args, const Act& act) {
  if (!args.table)
    act(Quantize<T, Uniform>(args));
  else if (args.granularity < 32)
    act(Quantize<T, Small>(args));
  else
    act(Quantize<T, Large>(args));
}
template <class Act>
GRADWIRE_HD void with_work(const gradwire_thc_in& args, const Act& act) {
  if (args.call.dtype == GRADWIRE_FLOAT32)
    with_table<float>(args, act);
  else
    with_table<uint16_t>(args, act);
}
template <class Act>
GRADWIRE_HD void with_work(const gradwire_thc_out& args, const Act& act) {
  if (args.call.dtype == GRADWIRE_FLOAT32)
    act(Dequantize<float>(args));
  else
    act(Dequantize<uint16_t>(args));
}

GRADWIRE_HD int64_t items_thc_quantize_near(const gradwire_thc_in& args) {
  return regions_of(blocks_of(args));
}
GRADWIRE_HD int64_t items_thc_quantize_far(const gradwire_thc_in& args) {
  return far_regions_of(blocks_of(args));
}
GRADWIRE_HD int64_t items_thc_dequantize_near(const gradwire_thc_out& args) {
  return regions_of(blocks_of(args));
}
GRADWIRE_HD int64_t items_thc_dequantize_far(const gradwire_thc_out& args) {
  return far_regions_of(blocks_of(args));
}

}  // namespace

GRADWIRE_CPU_PASS(thc_quantize, near, gradwire_thc_in) {
  with_work(args, [&](const auto& work) { rotate_near(work, begin, end); });
}
GRADWIRE_CPU_PASS(thc_quantize, far, gradwire_thc_in) {
  with_work(args, [&](const auto& work) { rotate_far(work, begin, end); });
}
GRADWIRE_CPU_PASSES(thc_quantize, gradwire_thc_in, near, 1, far, 1)

GRADWIRE_CPU_PASS(thc_dequantize, near, gradwire_thc_out) {
  with_work(args, [&](const auto& work) { rotate_near(work, begin, end); });
}
GRADWIRE_CPU_PASS(thc_dequantize, far, gradwire_thc_out) {
  with_work(args, [&](const auto& work) { rotate_far(work, begin, end); });
}
GRADWIRE_CPU_PASSES(thc_dequantize, gradwire_thc_out, near, 1, far, 1)
