// One super-group to its part of a message.
#pragma once
#include "dynamiq_codes.h"
#include "lookup.h"
#include "philox_vectors.h"

namespace gradwire {
inline namespace GRADWIRE_LEVEL {

struct Row {
  alignas(64) float values[SUPER_GROUP];
};

// What encoding keeps from one step to the next.
struct Encoding {
  const gradwire_dynamiq* args;
  uint32_t super_group;
  float factor[GROUPS];                      // powers of two that coordinates are scaled by, by group of 16
  float reference[GROUPS];                   // 0: the group is sent as zeros
  uint32_t within[GROUPS];                   // keys within an interval
  alignas(64) float magnitude[SUPER_GROUP];  // scaled
};

inline void group_maxima(const Row& row, uint32_t* maxima) {
  for (int group = 0; group < GROUPS; ++group) {
    uint32_t maximum = 0;
#pragma omp simd reduction(max : maximum)
    for (int k = 0; k < 16; ++k) maximum = larger(maximum, magnitude_bits(row.values[16 * group + k]));
    maxima[group] = maximum;
  }
}

// Writes the scales of all groups; returns false if the whole super-group is sent as zeros, or as NaN.
inline bool encode_scales(Encoding& work, const Row& row, uint8_t* group_scales, uint8_t* scale,
                          uint32_t* scale_pattern) {
  const gradwire_dynamiq& args = *work.args;
  const int wide = args.group / 16, halved = wide - 1, groups = GROUPS / wide;
  alignas(64) uint32_t maxima[GROUPS], noise[GROUPS];
  group_maxima(row, maxima);
  const uint32_t base = private_base(work.super_group, args.rank, key_of(args));
  GRADWIRE_SIMD
  for (int group = 0; group < GROUPS; ++group) {
    const uint32_t word = private_word(base, (uint32_t)group >> halved);
    work.within[group] = word & 0xFFFFu;
    noise[group] = word >> 16;
  }
  if (wide == 2)
    for (int group = 0; group < GROUPS; group += 2)
      maxima[group] = maxima[group + 1] = larger(maxima[group], maxima[group + 1]);
  if (args.bf16_scales) {
    bool alive = false;
    for (int group = 0; group < GROUPS; ++group) {
      const uint32_t pattern = rounded_scale(maxima[group], args.ceil_scales ? 0xFFFFu : noise[group], 0);
      const uint16_t stored = (uint16_t)pattern;
      memcpy(group_scales + group / wide * 2, &stored, 2);
      work.factor[group] = normalizer_of_scale(pattern);
      const float value = args.ceil_scales ? scale_value(pattern) : float_of(maxima[group]);
      work.reference[group] = is_dead(pattern) ? 0.0f : mul(value, work.factor[group]);
      alive |= !is_dead(pattern);
    }
    return alive;
  }
  uint32_t largest = 0;
  for (int group = 0; group < GROUPS; ++group) largest = larger(largest, maxima[group]);
  const uint32_t spare = args.codebooks > 1,
                 pattern = rounded_scale(largest, (1u << (16 + spare)) - 1, spare);
  *scale_pattern = pattern;
  const uint16_t stored = (uint16_t)pattern;
  memcpy(scale, &stored, 2);
  if (is_dead(pattern)) {
    memset(group_scales, 0, groups);
    return false;
  }
  const float factor = normalizer_of_scale(pattern), normalized = mul(scale_value(pattern), factor);
  const float quotient_unit = div(255.0f, normalized);
  const bool ceil = args.ceil_scales;
  alignas(64) uint32_t codes[GROUPS];
  if (ceil) {
    GRADWIRE_SIMD
    for (int group = 0; group < GROUPS; ++group) {
      const GroupScale one =
          group_scale(mul(float_of(maxima[group]), factor), normalized, quotient_unit, true, 0);
      codes[group] = one.code;
      work.reference[group] = one.reference;
    }
  } else {
    GRADWIRE_SIMD
    for (int group = 0; group < GROUPS; ++group) {
      const GroupScale one =
          group_scale(mul(float_of(maxima[group]), factor), normalized, quotient_unit, false, noise[group]);
      codes[group] = one.code;
      work.reference[group] = one.reference;
    }
  }
  for (int group = 0; group < GROUPS; ++group) work.factor[group] = factor;
  for (int group = 0; group < groups; ++group) group_scales[group] = (uint8_t)codes[wide * group];
  return true;
}

// |x| times the groups' factors; zeros in groups that are sent as zeros.
inline void scale_magnitudes(Encoding& work, const Row& row) {
  for (int group = 0; group < GROUPS; ++group) {
    const float factor = work.factor[group];
    const uint32_t kept = work.reference[group] > 0.0f ? MAGNITUDE : 0u;
    const float* values = row.values + 16 * group;
    float* magnitude = work.magnitude + 16 * group;
    GRADWIRE_SIMD
    for (int k = 0; k < 16; ++k) magnitude[k] = mul(float_of(bits_of(values[k]) & kept), factor);
  }
}

// The codebook with the least expected error; WIDE sixteens of coordinates are a group.
template <int WIDE>
inline uint32_t choose_codebook(const Encoding& work, const Row& row, const gradwire_values& values,
                                const uint64_t* costs) {
  enum { ALL = GROUPS / WIDE };
  const uint64_t* table = costs + values.first_cost;
  const int32_t points = values.points;
  alignas(64) int32_t point[SUPER_GROUP];
  alignas(64) float per_point[GROUPS];
  GRADWIRE_SIMD
  for (int group = 0; group < GROUPS; ++group) {
    const float reference = work.reference[group];
    per_point[group] = reference > 0.0f ? div((float)points, reference) : 0.0f;
  }
  for (int group = 0; group < GROUPS; ++group) {
    const float each = per_point[group];
    const float *magnitude = work.magnitude + 16 * group, *x = row.values + 16 * group;
    int32_t* target = point + 16 * group;
    GRADWIRE_SIMD
    for (int k = 0; k < 16; ++k) {  // negative coordinates have costs of their own
      const int32_t nearest = smaller((int32_t)nearest_even(mul(magnitude[k], each)), points);
      target[k] = nearest + ((points + 1) & ((int32_t)bits_of(x[k]) >> 31));
    }
  }
  uint64_t sums[ALL];  // of all four codebooks, sixteen bits each
  for (int group = 0; group < ALL; ++group) {
    uint64_t sum = 0;
    for (int k = 0; k < 16 * WIDE; ++k) sum += table[point[16 * WIDE * group + k]];
    sums[group] = sum;
  }
  alignas(64) uint16_t units[4 * ALL];
  alignas(64) float cost[4 * ALL];
  memcpy(units, sums, sizeof units);
  for (int group = 0; group < ALL; ++group) {
    const float reference = work.reference[WIDE * group], energy = mul(reference, reference);
    for (int book = 0; book < 4; ++book) cost[4 * group + book] = energy;
  }
  for (int k = 0; k < 4 * ALL; ++k) cost[k] = mul((float)(int32_t)units[k], cost[k]);
#pragma GCC unroll 4
  for (int half = 2 * ALL; half >= 4; half /= 2)
    for (int k = 0; k < half; ++k) cost[k] = add(cost[k], cost[k + half]);
  uint32_t best = 0;
  for (uint32_t book = 1; book < 4; ++book) best = cost[book] < cost[best] ? book : best;
  return best;
}

// The shared or private sixteen bits of all coordinates, one in each word: `coordinate_words`.
inline void coordinate_halves(uint32_t super_group, uint32_t stream, Key key, uint32_t* halves) {
  enum { PARTS = SUPER_GROUP / 8 };
  alignas(64) uint32_t words[4 * PARTS];
  Wide parts = wide_sequence(0, 1);
  for (int part = 0; part < PARTS; part += COUNTERS, parts += (uint64_t)COUNTERS)
    philox_words(Wide{} + super_group, stream, parts, key, words + 4 * part);
  alignas(64) uint16_t narrow[SUPER_GROUP];
  memcpy(narrow, words, sizeof narrow);
  for (int k = 0; k < SUPER_GROUP; ++k) halves[k] = narrow[k];
}

// V of every coordinate.
inline void dither(const Encoding& work, uint32_t* halves) {
  const gradwire_dynamiq& args = *work.args;
  const Key key = key_of(args);
  coordinate_halves(work.super_group, args.correlated ? 0 : args.rank + 1, key, halves);
  if (!args.correlated) return;
  const uint32_t base = order_base(work.super_group, key), own = order_hash(base, args.rank);
  uint32_t order = 0;
  for (uint32_t worker = 0; worker < args.workers; ++worker) order += order_hash(base, worker) < own;
  const uint32_t workers = args.workers;
  for (int group = 0; group < GROUPS; ++group) {
    const uint32_t within = work.within[group];
    uint32_t* half = halves + 16 * group;
    GRADWIRE_SIMD
    for (int k = 0; k < 16; ++k) half[k] = correlated_dither(half[k], workers, order, within);
  }
}

// An estimate of log2 on [1, 2^127), off by less than 8e-4: a cubic of the mantissa.
inline __attribute__((always_inline)) float estimated_log2(float t) {
  const uint32_t bits = bits_of(t);
  const float m = float_of((bits & 0x7FFFFFu) | 0x3F800000u), exponent = (float)((int32_t)(bits >> 23) - 127);
  return add(exponent,
             sub(mul(add(mul(sub(mul(0.15824871f, m), 1.0518750f), m), 3.0478842f), m), 2.1536207f));
}

// The levels of one group's t and w: #{k < largest : t > T[k]·w}.
template <int WIDTH>
struct Levels {
  static constexpr int SIZE = WIDTH <= 4 ? 16 : 1 << (WIDTH - 1);
  Table<SIZE> thresholds;
  const float* few;
  float levels_per_octave, levels_per_step;
  int32_t largest;
  Levels(const gradwire_values& values, int book)
      : thresholds(values.thresholds[book]),
        few(values.thresholds[book]),
        levels_per_octave(values.levels_per_octave[book]),
        levels_per_step(values.levels_per_step[book]),
        largest(values.largest) {}
  __attribute__((always_inline)) void count(const float* t, const float* w, int32_t* level) const {
    if constexpr (WIDTH <= 3) {
      GRADWIRE_SIMD
      for (int k = 0; k < 16; ++k) {
        int32_t counted = 0;
        for (int r = 0; r < (1 << (WIDTH - 1)); ++r)
          counted += r < largest && t[k] > mul(few[r], w[k]) ? 1 : 0;
        level[k] = counted;
      }
    } else {
      alignas(64) int32_t nearest[16];
      alignas(64) float threshold[16];
      GRADWIRE_SIMD
      for (int k = 0; k < 16; ++k)
        nearest[k] = nearest_level(estimated_log2(t[k]), w[k], levels_per_octave, levels_per_step, largest);
      thresholds.find(nearest, threshold);
      GRADWIRE_SIMD
      for (int k = 0; k < 16; ++k) level[k] = exact_level(nearest[k], t[k], w[k], threshold[k]);
    }
  }
};

// Codes of all coordinates; `mirror` is the sign bit that the codebook changes.
template <int WIDTH>
inline void codes_of(const Encoding& work, const Row& row, const gradwire_values& values, uint32_t codebook,
                     const uint32_t* dithers, uint32_t* codes) {
  const int book = (int)(codebook >> 1);
  const uint32_t mirror = codebook << 31;
  const float unit = values.unit[book], centre = values.centre[book], span = values.span[book];
  const float middle =
      mul((float)(int32_t)(work.args->correlated ? (work.args->workers << 16) - 1 : 0xFFFF), 0.5f);
  const int32_t kind = values.kind, largest = values.largest;
  const float negative_factor = values.negative_factor[book];
  const Levels<WIDTH == 1 || WIDTH == 16 ? 2 : WIDTH> levels(values, book);
  for (int group = 0; group < GROUPS; ++group) {
    const float reference = work.reference[group], inverse = reference > 0.0f ? div(span, reference) : 0.0f;
    const float *x = row.values + 16 * group, *magnitude = work.magnitude + 16 * group;
    const uint32_t* v = dithers + 16 * group;
    uint32_t* code = codes + 16 * group;
    alignas(64) float t[16], w[16];
    GRADWIRE_SIMD
    for (int k = 0; k < 16; ++k) {
      t[k] = mul(magnitude[k], inverse);
      w[k] = scaled_dither(v[k], middle, unit, centre, bits_of(x[k]) & SIGN);
    }
    if (WIDTH == 1) {
      const int wide = work.args->group / 16;  // a group lives if any of its coordinates does
      bool alive = false;
      for (int part = group / wide * wide; part < group / wide * wide + wide; ++part)
        for (int k = 0; k < 16; ++k) alive |= mul(work.magnitude[16 * part + k], inverse) > 0.0f;
      for (int k = 0; k < 16; ++k) code[k] = sign_code(t[k], w[k], bits_of(x[k]) & SIGN, alive);
    } else if (WIDTH == 16 || kind == GRADWIRE_UNIFORM) {
      GRADWIRE_SIMD
      for (int k = 0; k < 16; ++k) code[k] = uniform_code(t[k], w[k], bits_of(x[k]) & SIGN, largest, WIDTH);
    } else {
      alignas(64) int32_t level[16];
      if (kind == GRADWIRE_DISTINCT) {
        GRADWIRE_SIMD
        for (int k = 0; k < 16; ++k) {
          const uint32_t sign = (bits_of(x[k]) ^ mirror) & SIGN;
          t[k] = add(mul(t[k], sign ? negative_factor : 1.0f), 1.0f);
        }
        levels.count(t, w, level);
        GRADWIRE_SIMD
        for (int k = 0; k < 16; ++k) {
          const uint32_t sign = (bits_of(x[k]) ^ mirror) & SIGN;
          code[k] = signed_code(smaller(level[k], largest - (int32_t)(sign >> 31)), sign, WIDTH);
        }
      } else {
        GRADWIRE_SIMD
        for (int k = 0; k < 16; ++k) t[k] = add(t[k], 1.0f);
        levels.count(t, w, level);
        GRADWIRE_SIMD
        for (int k = 0; k < 16; ++k) code[k] = signed_code(level[k], bits_of(x[k]) & SIGN, WIDTH);
      }
    }
  }
}

template <int WIDTH>
inline void encode(const gradwire_dynamiq& args, const Row& row, const gradwire_values& values,
                   uint32_t super_group, uint8_t* out, uint8_t* group_scales, uint8_t* scale) {
  Encoding work;
  work.args = &args;
  work.super_group = super_group;
  uint32_t pattern = 0, codebook = 0;
  if (!encode_scales(work, row, group_scales, scale, &pattern)) {
    memset(out, 0, 32 * WIDTH);
    return;
  }
  scale_magnitudes(work, row);
  if (values.points) {
    codebook = args.group == 16 ? choose_codebook<1>(work, row, values, args.costs)
                                : choose_codebook<2>(work, row, values, args.costs);
    const uint16_t marked = (uint16_t)(pattern | codebook >> 1 | codebook << 15);
    memcpy(scale, &marked, 2);
  }
  alignas(64) uint32_t dithers[SUPER_GROUP], codes[SUPER_GROUP];
  dither(work, dithers);
  codes_of<WIDTH>(work, row, values, codebook, dithers, codes);
  pack_codes<WIDTH>(codes, out);
}

}  // namespace GRADWIRE_LEVEL
}  // namespace gradwire
