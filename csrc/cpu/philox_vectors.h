// Philox for several counters at a time, whose words lie in 64-bit lanes: products of 32 bits are then single
// instructions, which compilers do not find by themselves. What is above the lower half of a lane has no
// meaning. Words are taken from memory low half first, as little-endian machines keep them.
#pragma once
#include "gradwire/random.h"
#include "kernel.h"
#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace gradwire {
inline namespace GRADWIRE_LEVEL {

#if defined(__AVX512F__)
enum { COUNTERS = 8 };
#define GRADWIRE_WIDE_LANES 0, 1, 2, 3, 4, 5, 6, 7
#elif defined(__AVX2__)
enum { COUNTERS = 4 };
#define GRADWIRE_WIDE_LANES 0, 1, 2, 3
#else
enum { COUNTERS = 2 };
#define GRADWIRE_WIDE_LANES 0, 1
#endif
typedef uint64_t Wide __attribute__((vector_size(8 * COUNTERS)));
typedef uint32_t Narrow __attribute__((vector_size(8 * COUNTERS)));

GRADWIRE_HD Wide wide_product(Wide a, uint32_t b) {
#if defined(__AVX512F__)
  return (Wide)_mm512_mul_epu32((__m512i)a, _mm512_set1_epi64(b));
#elif defined(__AVX2__)
  return (Wide)_mm256_mul_epu32((__m256i)a, _mm256_set1_epi64x(b));
#elif defined(__SSE2__)
  return (Wide)_mm_mul_epu32((__m128i)a, _mm_set1_epi64x(b));
#else
  return (a & 0xffffffffu) * b;
#endif
}

// first, first + step, …
GRADWIRE_HD Wide wide_sequence(uint32_t first, uint32_t step) {
  return Wide{GRADWIRE_WIDE_LANES} * step + first;
}

// Four words for each of COUNTERS counters (c0, c1, c2, c3), one counter's after the other's.
GRADWIRE_HD void philox_words(Wide c0, uint32_t c1, Wide c2, Key key, uint32_t* words, uint32_t c3 = 0) {
  Wide x = c0, y = Wide{} + c1, z = c2, w = Wide{} + c3;
#pragma GCC unroll 7
  for (int round = 0; round < PHILOX_ROUNDS; ++round) {
    const Wide low = wide_product(x, 0xD2511F53u), high = wide_product(z, 0xCD9E8D57u);
    const Key own = round_key(key, round);
    x = high >> 32 ^ y ^ own.first;
    z = low >> 32 ^ w ^ own.second;
    y = high;
    w = low;
  }
  const Wide lanes = {GRADWIRE_WIDE_LANES}, order = lanes / 2 + lanes % 2 * (uint64_t)COUNTERS;
  const Narrow pairs = (Narrow)(2 * lanes | (2 * lanes + (uint64_t)(2 * COUNTERS)) << 32);
  const Wide first = (Wide)__builtin_shuffle((Narrow)x, (Narrow)y, pairs);
  const Wide second = (Wide)__builtin_shuffle((Narrow)z, (Narrow)w, pairs);
  const Wide results[2] = {__builtin_shuffle(first, second, order),
                           __builtin_shuffle(first, second, order + (uint64_t)COUNTERS / 2)};
  memcpy(words, results, sizeof results);
}

}  // namespace GRADWIRE_LEVEL
}  // namespace gradwire
