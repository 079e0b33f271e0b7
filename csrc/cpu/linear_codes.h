// Codes of a strip: rounding and packing, unpacking.
#pragma once
#include "linear_strip.h"

namespace gradwire {
inline namespace GRADWIRE_LEVEL {

#ifdef __AVX512F__
// Lanes have codes. Packing with saturation works on quarters of vectors, which a permutation then puts in
// order.
template <int BITS>
GRADWIRE_HD void pack(const __m512i (&codes)[8], uint8_t* target) {
  __m512i bytes[2];
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    const __m512i low = _mm512_packs_epi32(codes[4 * i], codes[4 * i + 1]);
    const __m512i high = _mm512_packs_epi32(codes[4 * i + 2], codes[4 * i + 3]);
    bytes[i] = _mm512_packs_epi16(low, high);  // dword 4·l + j: lanes 4·l … 4·l + 3 of vector 4·i + j
  }
  if constexpr (BITS == 8) {
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    _mm512_storeu_si512(target, _mm512_permutexvar_epi32(order, bytes[0]));
    _mm512_storeu_si512(target + 64, _mm512_permutexvar_epi32(order, bytes[1]));
  } else {
    const __m512i weights = _mm512_set1_epi16(0x1001);  // 1 and 16
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i)  // of neighbours, with 8 added to each so that none borrows
      bytes[i] = _mm512_maddubs_epi16(_mm512_add_epi8(bytes[i], _mm512_set1_epi8(8)), weights);
    const __m512i pairs =
        _mm512_xor_si512(_mm512_packus_epi16(bytes[0], bytes[1]), _mm512_set1_epi8((char)0x88));
    // Word 8·l + j: lanes 4·l … 4·l + 3 of vector j.
    const __m512i order = _mm512_set_epi16(31, 23, 15, 7, 30, 22, 14, 6, 29, 21, 13, 5, 28, 20, 12, 4,  //
                                           27, 19, 11, 3, 26, 18, 10, 2, 25, 17, 9, 1, 24, 16, 8, 0);
    _mm512_storeu_si512(target, _mm512_permutexvar_epi16(order, pairs));
  }
}
#else
template <int BITS>
GRADWIRE_HD void pack(const uint32_t* codes, uint8_t* target) {
  if constexpr (BITS == 8) {
    GRADWIRE_SIMD
    for (int k = 0; k < STRIP; ++k) target[k] = (uint8_t)codes[k];
  } else {
    GRADWIRE_SIMD
    for (int k = 0; k < STRIP / 2; ++k) target[k] = (uint8_t)((codes[2 * k] & 15u) | codes[2 * k + 1] << 4);
  }
}
#endif

// Writes the codes of the values of a strip, which it multiplies by the factors of slots of 2^log blocks. If
// they are rounded at random, `dithers` has 16 bits for each, in 32.
template <int BITS, bool STOCHASTIC>
GRADWIRE_HD void encode(const float* values, const float* factors, int log, const uint32_t* dithers,
                        uint8_t* target) {
  Strip strip;
  load_strip(values, strip);
  multiply(strip, factors, log);
#ifdef __AVX512F__
  __m512i codes[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    codes[i] = _mm512_cvtps_epi32(strip.v[i]);  // to nearest, ties to even
    if (STOCHASTIC) {
      const __m512i fine = _mm512_slli_epi32(codes[i], 16 - FRACTION_BITS);
      codes[i] = _mm512_srai_epi32(_mm512_add_epi32(fine, _mm512_loadu_si512(dithers + 16 * i)), 16);
    }
  }
#else
  alignas(64) uint32_t codes[STRIP];
  if (STOCHASTIC) {
    GRADWIRE_SIMD
    for (int k = 0; k < STRIP; ++k)
      codes[k] = stochastic_code(strip.v[k], rounder_of(true, 0), dithers[k]) >> 16;
  } else {
    GRADWIRE_SIMD
    for (int k = 0; k < STRIP; ++k) codes[k] = nearest_code(strip.v[k], rounder_of(false, 0));
  }
#endif
  pack<BITS>(codes, target);
}

// Codes as float32.
template <int BITS>
GRADWIRE_HD void unpack(const uint8_t* codes, Strip& strip) {
#ifdef __AVX512F__
  if constexpr (BITS == 8) {
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i)
      strip.v[i] =
          _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)(codes + 16 * i))));
  } else {
    // Lanes shift the eight codes of their dword so that their own comes first, and look its value up by it.
    const __m512 table = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1);
    const __m512i shifts = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28);
    const __m512i packed = _mm512_loadu_si512(codes);
    __m512i dwords = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      strip.v[i] =
          _mm512_permutexvar_ps(_mm512_srlv_epi32(_mm512_permutexvar_epi32(dwords, packed), shifts), table);
      dwords = _mm512_add_epi32(dwords, _mm512_set1_epi32(2));
    }
  }
#else
  alignas(64) int32_t integers[STRIP];
  if constexpr (BITS == 8) {
    GRADWIRE_SIMD
    for (int k = 0; k < STRIP; ++k) integers[k] = (int8_t)codes[k];
  } else {
    GRADWIRE_SIMD
    for (int k = 0; k < STRIP / 2; ++k) {
      const int32_t pair = codes[k];
      integers[2 * k] = ((pair & 15) ^ 8) - 8;
      integers[2 * k + 1] = (pair >> 4 ^ 8) - 8;
    }
  }
  GRADWIRE_SIMD
  for (int k = 0; k < STRIP; ++k) strip.v[k] = (float)integers[k];
#endif
}

#ifdef __AVX512F__
// Stages 1 to 3 of the transform for pairs of codes, in bytes: neighbours 2^STAGE/2 bytes apart.
template <int BYTES>
GRADWIRE_HD __m512i butterflies(__m512i v) {
  constexpr uint64_t second = BYTES == 1   ? 0xaaaaaaaaaaaaaaaau
                              : BYTES == 2 ? 0xccccccccccccccccu
                                           : 0xf0f0f0f0f0f0f0f0u;
  __m512i other;
  if (BYTES == 1) other = _mm512_or_si512(_mm512_slli_epi16(v, 8), _mm512_srli_epi16(v, 8));
  if (BYTES == 2) other = _mm512_rol_epi32(v, 16);
  if (BYTES == 4) other = _mm512_shuffle_epi32(v, (_MM_PERM_ENUM)0xb1);
  return _mm512_mask_sub_epi8(_mm512_add_epi8(v, other), (__mmask64)second, other, v);
}
#endif

// The smoother's transform of codes: sums are exact integers, so that their order is free.
template <int BITS>
GRADWIRE_HD void unpack_smooth(const uint8_t* codes, Strip& strip) {
#ifdef __AVX512F__
  if constexpr (BITS == 4) {
    // A quarter of a vector is a block. Both codes of a byte meet first, then bytes 1, 2 and 4 apart: sums of
    // 16 codes still fit a byte. The last stage has a vector for each half of a block.
    const __m512i packed = _mm512_xor_si512(_mm512_loadu_si512(codes), _mm512_set1_epi8((char)0x88));
    const __m512i low = _mm512_and_si512(packed, _mm512_set1_epi8(15));
    const __m512i high = _mm512_and_si512(_mm512_srli_epi16(packed, 4), _mm512_set1_epi8(15));
    __m512i sums = _mm512_sub_epi8(_mm512_add_epi8(low, high), _mm512_set1_epi8(16));
    __m512i differences = _mm512_sub_epi8(low, high);
    sums = butterflies<4>(butterflies<2>(butterflies<1>(sums)));
    differences = butterflies<4>(butterflies<2>(butterflies<1>(differences)));
    alignas(64) int8_t halves[2][64];
    _mm512_store_si512(halves[0], _mm512_unpacklo_epi8(sums, differences));
    _mm512_store_si512(halves[1], _mm512_unpackhi_epi8(sums, differences));
#pragma GCC unroll 4
    for (int i = 0; i < STRIP_BLOCKS; ++i) {
      const __m512i a = _mm512_cvtepi8_epi32(_mm_load_si128((const __m128i*)(halves[0] + 16 * i)));
      const __m512i b = _mm512_cvtepi8_epi32(_mm_load_si128((const __m128i*)(halves[1] + 16 * i)));
      strip.v[2 * i] = _mm512_cvtepi32_ps(_mm512_add_epi32(a, b));
      strip.v[2 * i + 1] = _mm512_cvtepi32_ps(_mm512_sub_epi32(a, b));
    }
    return;
  }
#endif
  unpack<BITS>(codes, strip);
  smooth(strip);
}

}  // namespace GRADWIRE_LEVEL
}  // namespace gradwire
