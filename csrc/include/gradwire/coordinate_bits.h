// Private random bits for stochastic rounding, 16 per coordinate; codecs/arithmetic/random.py
// defines them.
#pragma once
#include "gradwire/random.h"

GRADWIRE_NAMESPACE_BEGIN

enum { COUNTER = 8 };  // coordinates that a counter serves

struct Stream {
  Key key;
  uint32_t rank;
};

// The bits of coordinates 8·counter to 8·counter + 7: two to a word, the lower half first.
GRADWIRE_HD Words coordinate_words(const Stream& stream, int64_t counter) {
  return philox((uint32_t)counter, stream.rank, 0, 0, stream.key);
}

// A dither as the upper half of a word whose lower half is the middle of what it leaves open.
GRADWIRE_HD uint32_t word_of_dither(uint32_t dither) { return dither << 16 | 0x8000u; }

GRADWIRE_NAMESPACE_END
