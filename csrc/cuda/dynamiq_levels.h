// From a lane's sixteen coordinates to codes, for the paper's values: a sign and a level of a progression.
// What can be done for several codes in one word is done once.
#pragma once
#include "dynamiq_lane.h"

namespace gradwire_cuda {

// The upper word of (high, low) << shift.
__device__ __forceinline__ uint32_t shifted_in(uint32_t high, uint32_t low, int shift) {
  return __funnelshift_l(low, high, shift);
}

// The dither of up to 64 workers, with the sign of x. V = (h·n + σ·2^16) mod n·2^16 is n·2^16 times the
// fraction (h/2^16 + σ/n) mod 1: a sum of words that wraps by itself. σ·⌈2^32/n⌉ for σ/n is too large by less
// than 2^12/n of its last bits, which reaches no bit of 2V. 2V + 1 < 2^23 is the mantissa of a float, so that
// neither an integer is converted nor a half is added: w = centre ± (2V + 1 - N)·(unit/2), each product and
// sum as exact or rounded as `scaled_dither`'s.
struct LaneDither {
  uint32_t shift, key;  // where the worker's fraction begins; what the private key is below the exponent
  uint32_t range;
  float middle, half_unit, centre;

  __device__ __forceinline__ LaneDither(uint32_t workers, uint32_t part_of_worker, uint32_t order,
                                        uint32_t within, const Scalars& scalars)
      : shift(order * part_of_worker),
        key(0x4B000001u | within << 1),
        range(workers << 17),
        middle(float_of(0x4B000000u | workers << 16)),
        half_unit(mul(scalars.unit, 0.5f)),
        centre(scalars.centre) {}

  // Returns the dither of a coordinate whose random bits are the lower or the upper half of a word.
  __device__ __forceinline__ float of(uint32_t word, bool upper, float x) const {
    const uint32_t fraction = (upper ? word & 0xFFFF0000u : word << 16) + shift;
    const uint32_t doubled = upper_product(fraction, range) ^ key;
    const float scaled = mul(sub(float_of(doubled), middle), half_unit);
    return add(float_of(bits_of(scaled) ^ (bits_of(x) & SIGN)), centre);
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

  __device__ __forceinline__ Thresholds(const EncodingTables& tables, const Scalars& scalars, int warp_lane)
      : table((const uint8_t*)(WIDTH == 8 ? tables.wide : tables.thresholds[0] + threshold_base(SLOT))),
        copy(WIDTH == 8 ? 4 * warp_lane : 0),
        levels_per_octave(scalars.levels_per_octave),
        levels_per_step(scalars.levels_per_step),
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

// Codes of several coordinates in a word, gathered from the last one to the first: a field of WIDTH bits has
// a level and above it what brings a sign along.
template <int SLOT>
struct Fields {
  static constexpr int WIDTH = Width<SLOT>::BITS;
  static constexpr int EACH = WIDTH == 2 ? 16 : WIDTH == 3 || WIDTH == 4 ? 8 : WIDTH == 8 ? 4 : 1;
  static constexpr uint32_t ONES = WIDTH == 2   ? 0x55555555u
                                   : WIDTH == 3 ? 0x00249249u
                                   : WIDTH == 4 ? 0x11111111u
                                   : WIDTH == 8 ? 0x01010101u
                                                : 1u;
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
