// From a lane's sixteen coordinates to codes, for the paper's values: a sign and a level of a progression.
// What can be done for several codes in one word is done once.
#pragma once
#include "dynamiq_lane.h"

namespace gradwire_cuda {

// The upper word of (high, low) << shift.
__device__ __forceinline__ uint32_t shifted_in(uint32_t high, uint32_t low, int shift) {
  return __funnelshift_l(low, high, shift);
}

// The dithers of up to 64 workers as whole numbers of 24 bits at most: V·2^k, where n·2^k, a byte, lies above
// 64. A half of a word times that byte and the worker's beginning are one instruction.
struct DitherScale {
  uint32_t interval;       // n·2^k twice, in the first byte and in the last
  uint32_t range, worker;  // n·2^(16 + k) and 2^(16 + k)
  uint32_t private_key;    // 2^k
  uint32_t exponent;       // 2^23, and the half
  float middle, unit;      // 2^23 + n·2^(15 + k) and 2^-k
};
inline DitherScale dither_scale(uint32_t workers) {
  uint32_t k = 1;
  while (workers << k <= 64) ++k;
  const uint32_t interval = workers << k;
  return {interval | interval << 24,
          interval << 16,
          1u << (16 + k),
          1u << k,
          0x4B000000u | 1u << (k - 1),
          float_of(0x4B000000u | interval << 15),
          power_of_two(127 - (int32_t)k)};
}

// The dither with the sign of x. V = (h·n + σ·2^16) mod n·2^16, to which the private key is put. It is the
// mantissa of a float, with a half behind it, so that neither an integer is converted nor a half is added: w
// = centre ± (V + 1/2 - N/2)·unit, each product and sum as exact or rounded as `scaled_dither`'s.
struct LaneDither {
  const DitherScale& scale;
  uint32_t beginning, key;
  float unit, centre;

  __device__ __forceinline__ LaneDither(const DitherScale& scale, uint32_t order, uint32_t within,
                                        const Tables& tables, int slot)
      : scale(scale),
        beginning(order * scale.worker),
        key(within * scale.private_key + scale.exponent),
        unit(mul(again(tables.scalars[slot][0].unit), scale.unit)),
        centre(again(tables.scalars[slot][0].centre)) {}

  // 2^23 + (V + 1/2)·2^k of a coordinate whose random bits are the lower or the upper half of a word.
  __device__ __forceinline__ float number(uint32_t word, bool upper) const {
    const uint32_t place = upper ? __dp2a_hi(word, scale.interval, beginning)  // its last byte
                                 : __dp2a_lo(word, scale.interval, beginning);
    return float_of(smaller(place, place - scale.range) ^ key);  // what wraps below zero is the larger one
  }
  __device__ __forceinline__ float of(uint32_t word, bool upper, float x) const {
    return add(signed_as(mul(sub(number(word, upper), scale.middle), unit), x), centre);
  }
  // Rounds once.
  __device__ __forceinline__ float estimate(uint32_t word, bool upper, float x) const {
    return about(signed_as(sub(number(word, upper), scale.middle), x), unit, centre);
  }
  static __device__ __forceinline__ float signed_as(float value, float x) {
    return float_of(bits_of(value) ^ (bits_of(x) & SIGN));
  }
};

// The thresholds of 3 bits and more, and which of them a level is found by: see `nearest_level`. There is one
// more at either end, which changes nothing, so that an estimate needs no limits. It is the last bits of a
// float, a sum with a number so large that they count bytes of the table: those of a threshold, a power of
// two, are 2^PLACE, and what is below them is cut off.
template <int SLOT>
struct Thresholds {
  static constexpr int WIDTH = Width<SLOT>::BITS, PLACE = WIDTH == 8 ? 7 : 2;
  static constexpr uint32_t LARGE = WIDTH == 8 ? 0x47C00000u : 0x4A400000u;  // 1.5·2^(23 - PLACE)
  static constexpr uint32_t MASK = (1u << (PLACE + WIDTH)) - (1u << PLACE);

  const uint8_t* table;
  uint32_t copy;
  float levels_per_octave, levels_per_step, beginning;

  __device__ __forceinline__ Thresholds(const EncodingTables& tables, int warp_lane)
      : table((const uint8_t*)(WIDTH == 8 ? tables.wide : tables.thresholds[0] + threshold_base(SLOT))),
        copy(WIDTH == 8 ? 4 * warp_lane : 0),
        levels_per_octave(again(tables.scalars[SLOT][0].levels_per_octave)),
        levels_per_step(again(tables.scalars[SLOT][0].levels_per_step)),
        // T[-1] is the first one, and a half is added to cut off at the nearest.
        beginning(gradwire::add(levels_per_step, add(float_of(LARGE), 1.5f))) {}

  // Where T[r] is, with the level's bits from bit PLACE on: r + 1.
  __device__ __forceinline__ uint32_t near(float t, float w) const {
    const float log2_w = about(w, -levels_per_step, beginning);
    return (bits_of(about(approximate_log2(t), levels_per_octave, log2_w)) & MASK) | copy;
  }
  __device__ __forceinline__ float at(uint32_t place) const {
    return *reinterpret_cast<const float*>(table + place);
  }
};

// The lowest bits of `count` fields of `width` bits.
GRADWIRE_HD constexpr uint32_t ones_of(int width, int count) {
  uint32_t ones = 0;
  for (int i = 0; i < count; ++i) ones = ones << width | 1u;
  return ones;
}

// Codes of several coordinates in a word, gathered from the last one to the first: a field of WIDTH bits has
// a level and above it what brings a sign along.
template <int SLOT>
struct Fields {
  static constexpr int WIDTH = Width<SLOT>::BITS;
  static constexpr int EACH = WIDTH == 2 ? 16 : WIDTH == 3 || WIDTH == 4 ? 8 : WIDTH == 8 ? 4 : 1;
  static constexpr uint32_t ONES = ones_of(WIDTH, EACH);
  static constexpr uint32_t SIGNS = ONES << (WIDTH - 1);
  uint32_t levels = 0, signs = 0;

  // Adds the level #{r : t > T[r]·w} and the sign of x.
  __device__ __forceinline__ void add(const Thresholds<SLOT>& thresholds, float x, float t, float w) {
    signs = shifted_in(signs, bits_of(x), WIDTH);
    if constexpr (WIDTH == 2) {  // T[0] = 1
      levels = shifted_in(levels, bits_of(sub(w, t)), 2);
    } else {
      const uint32_t near = thresholds.near(t, w);
      const uint32_t above = bits_of(sub(mul(thresholds.at(near), w), t)) >> 31;
      levels = (levels << WIDTH) + (near >> Thresholds<SLOT>::PLACE) + above;
    }
  }
  // Once the word is full it goes to coordinate k's place.
  __device__ __forceinline__ void put(int k, Codes<WIDTH>& codes) {
    if (k % EACH) return;
    uint32_t found;
    if constexpr (WIDTH == 2) {  // `levels` are the signs of w - t
      found = (levels >> 1 & ONES) | (signs & levels & SIGNS);
    } else {
      levels -= ONES;
      found = levels | (signs & (levels + (SIGNS - ONES)) & SIGNS);  // there is no negative zero
    }
    codes.put_word(k * WIDTH, found, EACH * WIDTH);
    levels = signs = 0;
  }
};

}  // namespace gradwire_cuda
