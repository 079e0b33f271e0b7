// THC's random bits for whole units of 128 coordinates.
#pragma once
#include "gradwire/thc.h"
#include "philox_vectors.h"

namespace gradwire {
inline namespace GRADWIRE_LEVEL {

// The signs of up to MOST units, `step` apart.
class Signs {
 public:
  enum { MOST = 128 };
  Signs(int64_t unit, int64_t step, int count, Key key) {
    const uint32_t first = (uint32_t)unit, apart = (uint32_t)step;
    for (int i = 0; i < count; i += COUNTERS)
      philox_words(wide_sequence(first + (uint32_t)i * apart, apart), 0, Wide{}, key, words_[i]);
  }
  // SIGN or 0 for each of the coordinates of the i-th unit.
  void flips(int i, uint32_t* flips) const {
    for (int part = 0; part < 4; ++part) {
      const uint32_t word = words_[i][part];
      GRADWIRE_SIMD
      for (int k = 0; k < 32; ++k) flips[32 * part + k] = flip_of(word, k);
    }
  }

 private:
  alignas(64) uint32_t words_[MOST][4];
};

// The dither of a unit's coordinates.
GRADWIRE_HD void unit_dither(int64_t unit, uint32_t rank, Key key, float* dither) {
  enum { PARTS = UNIT / 8 };
  alignas(64) uint32_t words[PARTS][4];
  for (int part = 0; part < PARTS; part += COUNTERS)
    philox_words(Wide{} + (uint32_t)unit, rank + 1, wide_sequence(part, 1), key, words[part]);
  alignas(64) uint16_t halves[UNIT];
  memcpy(halves, words, sizeof halves);
  GRADWIRE_SIMD
  for (int k = 0; k < UNIT; ++k) dither[k] = dither_of(halves[k]);
}

}  // namespace GRADWIRE_LEVEL
}  // namespace gradwire
