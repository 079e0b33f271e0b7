// 128 consecutive values in registers, or near a core where there are not enough: what they are loaded from
// and stored to, and the Hadamard smoother of their four blocks (gradwire/hadamard.h).
#pragma once
#include "gradwire/linear.h"
#include "kernel.h"
#ifdef __AVX2__
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"  // GCC's own headers, PR 105593
#include <immintrin.h>
#pragma GCC diagnostic pop
#endif

namespace gradwire {
inline namespace GRADWIRE_LEVEL {

enum { STRIP = 128, STRIP_BLOCKS = STRIP / HADAMARD };

#ifdef __AVX2__
// Sides of butterflies in the lanes of stage s: 1 where a lane has a, −1 where it has b, 2^s lanes further.
alignas(64) static const float SIDES[4][16] = {
    {1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1},
    {1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1},
    {1, 1, 1, 1, -1, -1, -1, -1, 1, 1, 1, 1, -1, -1, -1, -1},
    {1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1, -1},
};
#endif

// Factors are those of slots of 2^log blocks.
#ifdef __AVX512F__
struct Strip {
  __m512 v[STRIP / 16];
};

GRADWIRE_HD __m512 load_sixteen(const float* source) { return _mm512_loadu_ps(source); }
GRADWIRE_HD __m512 load_sixteen(const uint16_t* source) {
  const __m256i words = _mm256_loadu_si256((const __m256i*)source);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(words), 16));
}
// To bfloat16 in the upper halves of lanes. A NaN stays one unless its lower bits are nearly all ones, which
// no arithmetic makes of a NaN that lacks them.
GRADWIRE_HD __m512i upper_bfloat16(__m512 values) {
  const __m512i bits = _mm512_castps_si512(values);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  return _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
}

template <class T>
GRADWIRE_HD void load_strip(const T* source, Strip& strip) {
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) strip.v[i] = load_sixteen(source + 16 * i);
}
GRADWIRE_HD void store_strip(float* target, const Strip& strip) {
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) _mm512_storeu_ps(target + 16 * i, strip.v[i]);
}
GRADWIRE_HD void store_strip(uint16_t* target, const Strip& strip) {
  const __m512i upper = _mm512_set_epi16(63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37, 35, 33,  //
                                         31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
#pragma GCC unroll 4
  for (int i = 0; i < 8; i += 2) {
    const __m512i first = upper_bfloat16(strip.v[i]), second = upper_bfloat16(strip.v[i + 1]);
    _mm512_storeu_si512(target + 16 * i, _mm512_permutex2var_epi16(first, upper, second));
  }
}
GRADWIRE_HD void add(Strip& strip, const Strip& other) {
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) strip.v[i] = _mm512_add_ps(strip.v[i], other.v[i]);
}
GRADWIRE_HD void multiply(Strip& strip, const float* factors, int log) {
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) strip.v[i] = _mm512_mul_ps(strip.v[i], _mm512_set1_ps(factors[i / 2 >> log]));
}

// Products with ±1 are exact: the fused multiply-add is the addition.
GRADWIRE_HD void smooth(Strip& strip) {
#pragma GCC unroll 4
  for (int block = 0; block < STRIP_BLOCKS; ++block) {
    __m512 a = strip.v[2 * block], b = strip.v[2 * block + 1];
    a = _mm512_fmadd_ps(a, _mm512_load_ps(SIDES[0]), _mm512_permute_ps(a, 0xb1));
    b = _mm512_fmadd_ps(b, _mm512_load_ps(SIDES[0]), _mm512_permute_ps(b, 0xb1));
    a = _mm512_fmadd_ps(a, _mm512_load_ps(SIDES[1]), _mm512_permute_ps(a, 0x4e));
    b = _mm512_fmadd_ps(b, _mm512_load_ps(SIDES[1]), _mm512_permute_ps(b, 0x4e));
    a = _mm512_fmadd_ps(a, _mm512_load_ps(SIDES[2]), _mm512_shuffle_f32x4(a, a, 0xb1));
    b = _mm512_fmadd_ps(b, _mm512_load_ps(SIDES[2]), _mm512_shuffle_f32x4(b, b, 0xb1));
    a = _mm512_fmadd_ps(a, _mm512_load_ps(SIDES[3]), _mm512_shuffle_f32x4(a, a, 0x4e));
    b = _mm512_fmadd_ps(b, _mm512_load_ps(SIDES[3]), _mm512_shuffle_f32x4(b, b, 0x4e));
    strip.v[2 * block] = _mm512_add_ps(a, b);
    strip.v[2 * block + 1] = _mm512_sub_ps(a, b);
  }
}
#else
struct Strip {
  alignas(64) float v[STRIP];
};

template <class T>
GRADWIRE_HD void load_strip(const T* source, Strip& strip) {
  GRADWIRE_SIMD
  for (int k = 0; k < STRIP; ++k) strip.v[k] = load(source + k);
}
template <class T>
GRADWIRE_HD void store_strip(T* target, const Strip& strip) {
  GRADWIRE_SIMD
  for (int k = 0; k < STRIP; ++k) store(target + k, strip.v[k]);
}
GRADWIRE_HD void add(Strip& strip, const Strip& other) {
  GRADWIRE_SIMD
  for (int k = 0; k < STRIP; ++k) strip.v[k] = add(strip.v[k], other.v[k]);
}
GRADWIRE_HD void multiply(Strip& strip, const float* factors, int log) {
  for (int block = 0; block < STRIP_BLOCKS; ++block) {
    const float factor = factors[block >> log];
    float* v = strip.v + block * HADAMARD;
    GRADWIRE_SIMD
    for (int k = 0; k < HADAMARD; ++k) v[k] = mul(v[k], factor);
  }
}

#ifdef __AVX2__
GRADWIRE_HD void smooth(Strip& strip) {
  for (int block = 0; block < STRIP; block += HADAMARD) {
    __m256 v[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      v[i] = _mm256_load_ps(strip.v + block + 8 * i);
      v[i] = _mm256_fmadd_ps(v[i], _mm256_load_ps(SIDES[0]), _mm256_permute_ps(v[i], 0xb1));
      v[i] = _mm256_fmadd_ps(v[i], _mm256_load_ps(SIDES[1]), _mm256_permute_ps(v[i], 0x4e));
      v[i] = _mm256_fmadd_ps(v[i], _mm256_load_ps(SIDES[2]), _mm256_permute2f128_ps(v[i], v[i], 1));
    }
    const __m256 a = _mm256_add_ps(v[0], v[1]), b = _mm256_sub_ps(v[0], v[1]);
    const __m256 c = _mm256_add_ps(v[2], v[3]), d = _mm256_sub_ps(v[2], v[3]);
    _mm256_store_ps(strip.v + block, _mm256_add_ps(a, c));
    _mm256_store_ps(strip.v + block + 8, _mm256_add_ps(b, d));
    _mm256_store_ps(strip.v + block + 16, _mm256_sub_ps(a, c));
    _mm256_store_ps(strip.v + block + 24, _mm256_sub_ps(b, d));
  }
}
#else
// Neighbours meet in every stage, and go to where the next ones are neighbours: after five all are in place.
GRADWIRE_HD void smooth(Strip& strip) {
  alignas(64) float room[STRIP];
  for (int stage = 0; stage < 5; ++stage) {
    const float* from = stage % 2 ? room : strip.v;
    float* to = stage % 2 ? strip.v : room;
    for (int block = 0; block < STRIP; block += HADAMARD) {
      GRADWIRE_SIMD
      for (int k = 0; k < HADAMARD / 2; ++k) {
        to[block + k] = add(from[block + 2 * k], from[block + 2 * k + 1]);
        to[block + k + HADAMARD / 2] = sub(from[block + 2 * k], from[block + 2 * k + 1]);
      }
    }
  }
  GRADWIRE_SIMD
  for (int k = 0; k < STRIP; ++k) strip.v[k] = room[k];
}
#endif
#endif

}  // namespace GRADWIRE_LEVEL
}  // namespace gradwire
