// From a lane's sixteen coordinates to codes, for the paper's values: a sign and a level of a progression.
// What can be done for several codes in one word is done once.
#pragma once
#include "dynamiq_lane.h"

namespace gradwire_cuda {

// Adding it to a number of at most 2^22 leaves the nearest integer in the last bits of the sum.
enum : uint32_t { NEAREST = 0x4B400000u };

// a + b, or the smaller one of that and c: one instruction from sm_90 on.
__device__ __forceinline__ uint32_t smaller_sum(uint32_t a, uint32_t b, uint32_t c) {
  return __viaddmin_u32(a, b, c);
}
// The upper word of (high, low) << shift.
__device__ __forceinline__ uint32_t shifted_in(uint32_t high, uint32_t low, int shift) {
  return __funnelshift_l(low, high, shift);
}

// The dither of up to 64 workers, with the sign of x. 2V + 1 < 2^23 is the mantissa of a float, so that
// neither an integer is converted nor a half is added: w = centre ± (2V + 1 - N)·(unit/2), each product and
// sum as exact or rounded as `scaled_dither`'s.
struct LaneDither {
  uint32_t shift, key;  // the interval's beginning; what the private key is below the exponent
  uint32_t doubled_workers, range;
  float middle, half_unit, centre;

  __device__ __forceinline__ LaneDither(uint32_t workers, uint32_t order, uint32_t within,
                                        const Scalars& scalars)
      : shift(order << 17),
        key(0x4B000001u | within << 1),
        doubled_workers(2 * workers),
        range(0u - (workers << 17)),
        middle(float_of(0x4B000000u | workers << 16)),
        half_unit(mul(scalars.unit, 0.5f)),
        centre(scalars.centre) {}

  __device__ __forceinline__ float of(uint32_t half, float x) const {
    const uint32_t interval = half * doubled_workers + shift;
    const uint32_t doubled = smaller_sum(interval, range, interval) ^ key;
    const float scaled = mul(sub(float_of(doubled), middle), half_unit);
    return add(float_of(bits_of(scaled) ^ (bits_of(x) & SIGN)), centre);
  }
};

// Codes of several coordinates in a word, gathered from the last one to the first: a field of WIDTH bits has
// a level and above it what brings a sign along.
template <int WIDTH>
struct Fields {
  static constexpr int EACH = WIDTH == 2 ? 16 : WIDTH == 3 || WIDTH == 4 ? 8 : WIDTH == 8 ? 4 : 1;
  static constexpr uint32_t ONES = WIDTH == 2   ? 0x55555555u
                                   : WIDTH == 3 ? 0x00249249u
                                   : WIDTH == 4 ? 0x11111111u
                                   : WIDTH == 8 ? 0x01010101u
                                                : 1u;
  static constexpr uint32_t SIGNS = ONES << (WIDTH - 1);
  uint32_t levels = 0, signs = 0;

  // Adds the level #{k : t > T[k]·w} and the sign of x.
  __device__ __forceinline__ void add(const EncodingTables& tables, const Scalars& scalars, int copy, float x,
                                      float t, float w) {
    signs = shifted_in(signs, bits_of(x), WIDTH);
    if constexpr (WIDTH == 2) {  // T[0] = 1
      levels = shifted_in(levels, bits_of(sub(w, t)), 2);
    } else if constexpr (WIDTH == 3) {
      const float* thresholds = tables.thresholds[0] + threshold_base(5) + 1;
      levels = levels << 3;
      if (t > w) levels += 1;
      if (t > mul(thresholds[1], w)) levels += 1;
      if (t > mul(thresholds[2], w)) levels += 1;
    } else {
      levels = (levels << WIDTH) + level(tables, scalars, copy, t, w);
    }
  }
  // Once the word is full it goes to coordinate k's place.
  __device__ __forceinline__ void put(int k, Codes<WIDTH>& codes) {
    if (k % EACH) return;
    uint32_t found;
    if constexpr (WIDTH == 2)  // `levels` are the signs of w - t
      found = (levels >> 1 & ONES) | (signs & levels & SIGNS);
    else  // there is no negative zero
      found = levels | (signs & (levels + (SIGNS - ONES)) & SIGNS);
    codes.put_word(k * WIDTH, found, EACH * WIDTH);
    levels = signs = 0;
  }

 private:
  // See `nearest_level`: here the tables have a threshold on either side that changes nothing.
  __device__ __forceinline__ static uint32_t level(const EncodingTables& tables, const Scalars& scalars,
                                                   int copy, float t, float w) {
    const float log2_w = about(w, -scalars.levels_per_step, scalars.levels_per_step);
    const float estimate = about(approximate_log2(t), scalars.levels_per_octave, log2_w);
    const uint32_t nearest = bits_of(gradwire::add(estimate, float_of(NEAREST))) - NEAREST;
    const float threshold = WIDTH == 8
                                ? wide_threshold(tables, false, 0, (int32_t)nearest, copy)
                                : tables.thresholds[0][threshold_base(8 - WIDTH) + 1 + (int32_t)nearest];
    return nearest + (bits_of(sub(mul(threshold, w), t)) >> 31);
  }
};

}  // namespace gradwire_cuda
