// Random bits of coordinates (gradwire/coordinate_bits.h), whole rows of them, for kernels for CPUs.
#pragma once
#include "gradwire/coordinate_bits.h"
#include "kernel.h"
#ifdef __AVX2__
#include <immintrin.h>
#endif

GRADWIRE_NAMESPACE_BEGIN

#if defined(__AVX512F__)

// Eight counters at a time, one to a 64-bit lane: a product needs no more than its lane, and what it leaves above
// the lower half of a word is not looked at. The first two rounds know all but one word of the counter.
static inline void dithers_of_row(const Stream& stream, int64_t first, uint32_t* dithers) {
  const __m512i factor0 = _mm512_set1_epi64(0xD2511F53), factor1 = _mm512_set1_epi64(0xCD9E8D57);
  const __m512i early = _mm512_setr_epi64(0, 8, 1, 9, 2, 10, 3, 11);
  const __m512i late = _mm512_setr_epi64(4, 12, 5, 13, 6, 14, 7, 15);
  const uint64_t product = (uint64_t)0xD2511F53u * (stream.rank ^ stream.key0);
  __m512i counter = _mm512_add_epi64(_mm512_set1_epi64(first / COUNTER), _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7));
  for (int k = 0; k < ROW; k += 64, counter = _mm512_add_epi64(counter, _mm512_set1_epi64(8))) {
    uint32_t k0 = stream.key0 + 0x9E3779B9u, k1 = stream.key1;
    __m512i p0 = _mm512_mul_epu32(counter, factor0);
    __m512i c2 = _mm512_xor_si512(_mm512_srli_epi64(p0, 32), _mm512_set1_epi64(k1));
    k1 += 0xBB67AE85u;
    __m512i p1 = _mm512_mul_epu32(c2, factor1);
    __m512i c0 = _mm512_xor_si512(_mm512_srli_epi64(p1, 32), _mm512_set1_epi64(k0));
    c2 = _mm512_xor_si512(p0, _mm512_set1_epi64((uint32_t)(product >> 32) ^ k1));
    __m512i c1 = p1, c3 = _mm512_set1_epi64((int64_t)product);
    for (int round = 2; round < 7; ++round) {
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
      p0 = _mm512_mul_epu32(c0, factor0);
      p1 = _mm512_mul_epu32(c2, factor1);
      c0 = _mm512_ternarylogic_epi64(_mm512_srli_epi64(p1, 32), c1, _mm512_set1_epi64(k0), 0x96);
      c2 = _mm512_ternarylogic_epi64(_mm512_srli_epi64(p0, 32), c3, _mm512_set1_epi64(k1), 0x96);
      c1 = p1;
      c3 = p0;
    }
    const __m512i xy = _mm512_mask_shuffle_epi32(c0, 0xAAAA, c1, _MM_PERM_CCAA);
    const __m512i zw = _mm512_mask_shuffle_epi32(c2, 0xAAAA, c3, _MM_PERM_CCAA);
    const __m512i words[2] = {_mm512_permutex2var_epi64(xy, early, zw), _mm512_permutex2var_epi64(xy, late, zw)};
    for (int i = 0; i < 2; ++i) {
      uint32_t* const target = dithers + k + 32 * i;
      _mm512_storeu_si512(target, _mm512_cvtepu16_epi32(_mm512_castsi512_si256(words[i])));
      _mm512_storeu_si512(target + 16, _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(words[i], 1)));
    }
  }
}

#elif defined(__AVX2__)

// Four counters at a time, in the same way.
static inline void dithers_of_row(const Stream& stream, int64_t first, uint32_t* dithers) {
  const __m256i factor0 = _mm256_set1_epi64x(0xD2511F53), factor1 = _mm256_set1_epi64x(0xCD9E8D57);
  const uint64_t product = (uint64_t)0xD2511F53u * (stream.rank ^ stream.key0);
  __m256i counter = _mm256_add_epi64(_mm256_set1_epi64x(first / COUNTER), _mm256_setr_epi64x(0, 1, 2, 3));
  for (int k = 0; k < ROW; k += 32, counter = _mm256_add_epi64(counter, _mm256_set1_epi64x(4))) {
    uint32_t k0 = stream.key0 + 0x9E3779B9u, k1 = stream.key1;
    __m256i p0 = _mm256_mul_epu32(counter, factor0);
    __m256i c2 = _mm256_xor_si256(_mm256_srli_epi64(p0, 32), _mm256_set1_epi64x(k1));
    k1 += 0xBB67AE85u;
    __m256i p1 = _mm256_mul_epu32(c2, factor1);
    __m256i c0 = _mm256_xor_si256(_mm256_srli_epi64(p1, 32), _mm256_set1_epi64x(k0));
    c2 = _mm256_xor_si256(p0, _mm256_set1_epi64x((uint32_t)(product >> 32) ^ k1));
    __m256i c1 = p1, c3 = _mm256_set1_epi64x((int64_t)product);
    for (int round = 2; round < 7; ++round) {
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
      p0 = _mm256_mul_epu32(c0, factor0);
      p1 = _mm256_mul_epu32(c2, factor1);
      c0 = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p1, 32), c1), _mm256_set1_epi64x(k0));
      c2 = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p0, 32), c3), _mm256_set1_epi64x(k1));
      c1 = p1;
      c3 = p0;
    }
    const __m256i xy = _mm256_blend_epi32(c0, _mm256_slli_epi64(c1, 32), 0xAA);
    const __m256i zw = _mm256_blend_epi32(c2, _mm256_slli_epi64(c3, 32), 0xAA);
    const __m256i even = _mm256_unpacklo_epi64(xy, zw), odd = _mm256_unpackhi_epi64(xy, zw);  // counters 0 2, 1 3
    const __m128i words[4] = {_mm256_castsi256_si128(even), _mm256_castsi256_si128(odd),
                              _mm256_extracti128_si256(even, 1), _mm256_extracti128_si256(odd, 1)};
    for (int i = 0; i < 4; ++i) _mm256_storeu_si256((__m256i*)(dithers + k + 8 * i), _mm256_cvtepu16_epi32(words[i]));
  }
}

#else

static inline void dithers_of_row(const Stream& stream, int64_t first, uint32_t* dithers) {
  for (int k = 0; k < ROW / COUNTER; ++k) {
    const Words words = coordinate_words(stream, first / COUNTER + k);
    const uint32_t four[4] = {words.x, words.y, words.z, words.w};
    for (int i = 0; i < 4; ++i) {
      dithers[COUNTER * k + 2 * i] = four[i] & 0xffffu;
      dithers[COUNTER * k + 2 * i + 1] = four[i] >> 16;
    }
  }
}

#endif

GRADWIRE_NAMESPACE_END
