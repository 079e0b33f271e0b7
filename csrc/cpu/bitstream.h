// Bit streams (gradwire/bitpack.h) of values in memory, for kernels for CPUs: pack_array and unpack_array of
// values in blocks, every width compiled for itself. `with_width` chooses one when the program runs.
//
// Packing joins neighbours: two 32-bit values become one of twice the bits in a 64-bit word, these two become
// four, and so on, whole vectors at a time. Unpacking parts them again, or looks every value's bytes up by a
// byte shuffle.
#pragma once
#include "gradwire/bitpack.h"
#include "kernel.h"
#ifdef __AVX2__
#include <immintrin.h>
#endif

GRADWIRE_NAMESPACE_BEGIN

typedef uint64_t __attribute__((may_alias, aligned(4))) two_values;

// Eights that are processed at a time, and what a stream of them is read or written beyond its end.
enum { EIGHTS = 16, BEYOND = 16 };

template <int BITS>
struct Width {
  static constexpr int value = BITS;
};

// f(Width<bits>()).
template <class Function>
static inline void with_width(int bits, Function f) {
  switch (bits) {
#define GRADWIRE_WIDTH(B) \
  case B: return f(Width<B>());
#define GRADWIRE_EIGHT_WIDTHS(B) \
  GRADWIRE_WIDTH(B)              \
  GRADWIRE_WIDTH(B + 1)          \
  GRADWIRE_WIDTH(B + 2)          \
  GRADWIRE_WIDTH(B + 3)          \
  GRADWIRE_WIDTH(B + 4)          \
  GRADWIRE_WIDTH(B + 5)          \
  GRADWIRE_WIDTH(B + 6)          \
  GRADWIRE_WIDTH(B + 7)
    GRADWIRE_EIGHT_WIDTHS(1)
    GRADWIRE_EIGHT_WIDTHS(9)
    GRADWIRE_EIGHT_WIDTHS(17)
    GRADWIRE_EIGHT_WIDTHS(25)
#undef GRADWIRE_EIGHT_WIDTHS
#undef GRADWIRE_WIDTH
  }
}

// PARTS numbers of WIDTH bits as a stream; the last word may reach beyond its end.
template <int WIDTH, int PARTS>
GRADWIRE_HD void store_parts(const uint64_t* parts, uint8_t* out) {
  uint64_t word = 0;
  GRADWIRE_UNROLL
  for (int k = 0; k < PARTS; ++k) {
    const int begin = k * WIDTH / 64, shift = k * WIDTH % 64;
    word |= parts[k] << shift;
    if (shift + WIDTH < 64 && k + 1 < PARTS) continue;
    memcpy(out + 8 * begin, &word, 8);
    word = shift ? parts[k] >> (64 - shift) % 64 : 0;
    if (k + 1 == PARTS && shift + WIDTH > 64) memcpy(out + 8 * begin + 8, &word, 8);
  }
}
template <int WIDTH, int PARTS>
GRADWIRE_HD void load_parts(const uint8_t* in, uint64_t* parts) {
  GRADWIRE_UNROLL
  for (int k = 0; k < PARTS; ++k) {
    const int begin = k * WIDTH / 64, shift = k * WIDTH % 64;
    uint64_t word, next;
    memcpy(&word, in + 8 * begin, 8);
    word >>= shift;
    if (shift + WIDTH > 64) {
      memcpy(&next, in + 8 * begin + 8, 8);
      word |= next << (64 - shift) % 64;
    }
    parts[k] = WIDTH == 64 ? word : word & ((1ull << WIDTH % 64) - 1);
  }
}

// 8·EIGHTS values to their stream, and up to BEYOND bytes more.
template <int BITS>
static inline void pack_block(const uint32_t* codes, uint8_t* out) {
  constexpr int PAIRS = 4 * EIGHTS, FOURS = 2 * EIGHTS;
  if constexpr (BITS == 32) {
    memcpy(out, codes, 32 * EIGHTS);
  } else if constexpr (BITS > 16) {
    alignas(64) uint64_t pairs[PAIRS];
    const two_values* two = (const two_values*)codes;
    GRADWIRE_SIMD
    for (int i = 0; i < PAIRS; ++i) pairs[i] = (uint32_t)two[i] | two[i] >> 32 << BITS;
    for (int i = 0; i < EIGHTS; ++i) store_parts<2 * BITS, 4>(pairs + 4 * i, out + i * BITS);
  } else {
    alignas(64) uint32_t pairs[PAIRS];
    alignas(64) uint64_t fours[FOURS];
    const two_values* two = (const two_values*)codes;
    GRADWIRE_SIMD
    for (int i = 0; i < PAIRS; ++i) pairs[i] = (uint32_t)(two[i] | two[i] >> (32 - BITS));
    two = (const two_values*)pairs;
    GRADWIRE_SIMD
    for (int i = 0; i < FOURS; ++i) fours[i] = (uint32_t)two[i] | two[i] >> 32 << 2 * BITS;
    for (int i = 0; i < EIGHTS; ++i) store_parts<4 * BITS, 2>(fours + 2 * i, out + i * BITS);
  }
}

#ifdef __AVX2__
// Where the bits of eight values lie: each has four bytes of the 16 that its half's load takes, and is
// shifted.
template <int BITS>
struct Places {
  static constexpr int HALF = BITS / 2, REST = 4 * BITS % 8;
  // Values that four bytes can hold wherever they begin.
  static constexpr bool fit = BITS <= 26 || BITS == 28;
  alignas(32) uint8_t bytes[32] = {};
  alignas(32) uint32_t shifts[8] = {};
  constexpr Places() {
    for (int i = 0; i < 8; ++i) {
      const int bit = i % 4 * BITS + (i < 4 ? 0 : REST);
      for (int k = 0; k < 4; ++k) bytes[4 * i + k] = (uint8_t)(bit / 8 + k);
      shifts[i] = bit % 8;
    }
  }
};

// Eight values, of which it reads up to 16 bytes more than there are.
template <int BITS>
static inline __m256i unpack_by_shuffle(const uint8_t* in) {
  static constexpr Places<BITS> places;
  const __m128i low = _mm_loadu_si128((const __m128i*)in);
  const __m128i high = _mm_loadu_si128((const __m128i*)(in + places.HALF));
  const __m256i bytes = _mm256_shuffle_epi8(_mm256_set_m128i(high, low), *(const __m256i*)places.bytes);
  const __m256i shifted = _mm256_srlv_epi32(bytes, *(const __m256i*)places.shifts);
  return _mm256_and_si256(shifted, _mm256_set1_epi32((int)mask_of(BITS)));
}
#endif

// The inverse, which reads up to BEYOND bytes more.
template <int BITS>
static inline void unpack_block(const uint8_t* in, uint32_t* codes) {
  constexpr int PAIRS = 4 * EIGHTS, FOURS = 2 * EIGHTS;
  if constexpr (BITS == 32) {
    memcpy(codes, in, 32 * EIGHTS);
#ifdef __AVX2__
  } else if constexpr (Places<BITS>::fit) {
    for (int i = 0; i < EIGHTS; ++i)
      _mm256_storeu_si256((__m256i*)(codes + 8 * i), unpack_by_shuffle<BITS>(in + i * BITS));
#endif
  } else if constexpr (BITS > 16) {
    alignas(64) uint64_t pairs[PAIRS];
    for (int i = 0; i < EIGHTS; ++i) load_parts<2 * BITS, 4>(in + i * BITS, pairs + 4 * i);
    two_values* two = (two_values*)codes;
    GRADWIRE_SIMD
    for (int i = 0; i < PAIRS; ++i) two[i] = (pairs[i] & mask_of(BITS)) | pairs[i] >> BITS << 32;
  } else {
    alignas(64) uint64_t fours[FOURS];
    alignas(64) uint32_t pairs[PAIRS];
    for (int i = 0; i < EIGHTS; ++i) load_parts<4 * BITS, 2>(in + i * BITS, fours + 2 * i);
    two_values* two = (two_values*)pairs;
    GRADWIRE_SIMD
    for (int i = 0; i < FOURS; ++i) two[i] = (fours[i] & mask_of(2 * BITS)) | fours[i] >> 2 * BITS << 32;
    two = (two_values*)codes;
    GRADWIRE_SIMD
    for (int i = 0; i < PAIRS; ++i)
      two[i] = ((uint64_t)pairs[i] & mask_of(BITS)) | (uint64_t)(pairs[i] >> BITS) << 32;
  }
}

// 8·eights values below 2^BITS to BITS·eights bytes. Of the `room` bytes after them some may be overwritten;
// what is beyond is not touched, for the last blocks, which may be short, go through buffers.
template <int BITS>
static inline void pack_array(const uint32_t* codes, int64_t eights, uint8_t* out, int64_t room = 0) {
  int64_t done = 0;
  for (; done + EIGHTS <= eights && (eights - done - EIGHTS) * BITS + room >= BEYOND; done += EIGHTS)
    pack_block<BITS>(codes + 8 * done, out + done * BITS);
  for (; done < eights; done += EIGHTS) {
    alignas(64) uint32_t last[8 * EIGHTS] = {};
    alignas(64) uint8_t stream[EIGHTS * BITS + BEYOND];
    const int64_t left = smaller(eights - done, (int64_t)EIGHTS);
    memcpy(last, codes + 8 * done, 32 * left);
    pack_block<BITS>(last, stream);
    memcpy(out + done * BITS, stream, BITS * left);
  }
}

// The inverse; some of the `room` bytes after the stream may be read.
template <int BITS>
static inline void unpack_array(const uint8_t* in, int64_t eights, uint32_t* codes, int64_t room = 0) {
  int64_t done = 0;
  for (; done + EIGHTS <= eights && (eights - done - EIGHTS) * BITS + room >= BEYOND; done += EIGHTS)
    unpack_block<BITS>(in + done * BITS, codes + 8 * done);
  for (; done < eights; done += EIGHTS) {
    alignas(64) uint32_t last[8 * EIGHTS];
    alignas(64) uint8_t stream[EIGHTS * BITS + BEYOND] = {};
    const int64_t left = smaller(eights - done, (int64_t)EIGHTS);
    memcpy(stream, in + done * BITS, BITS * left);
    unpack_block<BITS>(stream, last);
    memcpy(codes + 8 * done, last, 32 * left);
  }
}

GRADWIRE_NAMESPACE_END
