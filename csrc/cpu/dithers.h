// Random bits of coordinates (gradwire/coordinate_bits.h), whole rows of them, for kernels for CPUs.
#pragma once
#include "gradwire/coordinate_bits.h"
#include "philox_vectors.h"

GRADWIRE_NAMESPACE_BEGIN

// The dithers of a row of coordinates from `first` on, a multiple of 8.
static inline void dithers_of_row(Stream stream, int64_t first, uint32_t* dithers) {
  enum { PART = COUNTERS * COUNTER };
  Wide counters = wide_sequence((uint32_t)(first / COUNTER), 1);
  for (int k = 0; k < ROW; k += PART, counters += (uint64_t)COUNTERS) {
    alignas(64) uint32_t words[PART / 2];
    philox_words(counters, stream.rank, Wide{}, stream.key, words);
    alignas(64) uint16_t halves[PART];
    memcpy(halves, words, sizeof halves);
    GRADWIRE_SIMD
    for (int i = 0; i < PART; ++i) dithers[k + i] = halves[i];
  }
}

GRADWIRE_NAMESPACE_END
