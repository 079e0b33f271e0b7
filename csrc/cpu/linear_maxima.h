// What is quantized of a tile, and the largest magnitudes of its groups.
#pragma once
#include "linear_strip.h"

namespace gradwire {
inline namespace GRADWIRE_LEVEL {

// Maxima, and what follows from them, are kept for slots, the smaller of a group and a strip: 32, 64 or 128
// coordinates. Slots of one group have the same.
enum { SLOTS = LINEAR_TILE / HADAMARD, STRIPS = LINEAR_TILE / STRIP };

GRADWIRE_HD int slot_of(int group) { return smaller(group, (int)STRIP); }

#ifdef __AVX512F__
// Lane i: the largest lane of v[i].
inline __m512i largest_lanes(const __m512i* v) {
  __m512i pairs[8], fours[4], eights[2];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i)
    pairs[i] = _mm512_max_epu32(_mm512_unpacklo_epi32(v[2 * i], v[2 * i + 1]),
                                _mm512_unpackhi_epi32(v[2 * i], v[2 * i + 1]));
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i)
    fours[i] = _mm512_max_epu32(_mm512_unpacklo_epi64(pairs[2 * i], pairs[2 * i + 1]),
                                _mm512_unpackhi_epi64(pairs[2 * i], pairs[2 * i + 1]));
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i)
    eights[i] = _mm512_max_epu32(_mm512_shuffle_i32x4(fours[2 * i], fours[2 * i + 1], 0x88),
                                 _mm512_shuffle_i32x4(fours[2 * i], fours[2 * i + 1], 0xdd));
  return _mm512_max_epu32(_mm512_shuffle_i32x4(eights[0], eights[1], 0x88),
                          _mm512_shuffle_i32x4(eights[0], eights[1], 0xdd));
}

template <bool TRANSFORM>
GRADWIRE_HD __m512i block_maximum(__m512 a, __m512 b) {
  // The larger magnitude of each two; of a number and a NaN, the number. But in a transformed block that has
  // one value that is not finite, no two of these are.
  if (TRANSFORM) return _mm512_castps_si512(_mm512_range_ps(a, b, 0x0b));
  const __m512i magnitude = _mm512_set1_epi32(MAGNITUDE);
  return _mm512_max_epu32(_mm512_and_si512(_mm512_castps_si512(a), magnitude),
                          _mm512_and_si512(_mm512_castps_si512(b), magnitude));
}

// PER slots to a strip.
template <class T, bool TRANSFORM, int PER>
void take_strips(const T* x, float* room, uint32_t* maxima) {
  alignas(64) __m512i largest[PER * STRIPS];
  for (int i = 0; i < STRIPS; ++i) {
    Strip strip;
    load_strip(x + i * STRIP, strip);
    if (TRANSFORM) smooth(strip);
    if (room) store_strip(room + i * STRIP, strip);
    __m512i blocks[STRIP_BLOCKS];
#pragma GCC unroll 4
    for (int k = 0; k < STRIP_BLOCKS; ++k)
      blocks[k] = block_maximum<TRANSFORM>(strip.v[2 * k], strip.v[2 * k + 1]);
    __m512i* slots = largest + i * PER;
    if (PER == 4) {
#pragma GCC unroll 4
      for (int k = 0; k < STRIP_BLOCKS; ++k) slots[k] = blocks[k];
    } else {
      const __m512i first = _mm512_max_epu32(blocks[0], blocks[1]),
                    second = _mm512_max_epu32(blocks[2], blocks[3]);
      slots[0] = PER == 2 ? first : _mm512_max_epu32(first, second);
      if (PER == 2) slots[1] = second;
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < PER; ++i) _mm512_store_si512(maxima + 16 * i, largest_lanes(largest + 16 * i));
}

template <class T, bool TRANSFORM>
void take(const T* x, int group, float* room, uint32_t* maxima) {
  if (group == 32) return take_strips<T, TRANSFORM, 4>(x, room, maxima);
  if (group == 64) return take_strips<T, TRANSFORM, 2>(x, room, maxima);
  take_strips<T, TRANSFORM, 1>(x, room, maxima);
  __m512i all = _mm512_load_si512(maxima);
  const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  for (int distance = 1; distance < group / STRIP; distance *= 2)
    all = _mm512_max_epu32(
        all, _mm512_permutexvar_epi32(_mm512_xor_si512(lanes, _mm512_set1_epi32(distance)), all));
  _mm512_store_si512(maxima, all);
}
#else
template <class T, bool TRANSFORM>
void take(const T* x, int group, float* room, uint32_t* maxima) {
  if (room)
    for (int i = 0; i < LINEAR_TILE; i += STRIP) {
      Strip strip;
      load_strip(x + i, strip);
      if (TRANSFORM) smooth(strip);
      store_strip(room + i, strip);
    }
  const float* values = room ? room : (const float*)x;
  const int slot = slot_of(group), slots = group / slot;
  for (int first = 0; first < LINEAR_TILE / slot; first += slots) {
    uint32_t maximum = 0;
#pragma omp simd reduction(max : maximum)
    for (int k = first * slot; k < first * slot + group; ++k)
      maximum = larger(maximum, magnitude_bits(values[k]));
    for (int i = 0; i < slots; ++i) maxima[first + i] = maximum;
  }
}
#endif

// Takes a whole tile; returns what is quantized: `room`, or x where nothing is to be done to it.
template <class T>
const float* take(const T* x, bool hadamard, int group, float* room, uint32_t* maxima) {
  if (hadamard) {
    take<T, true>(x, group, room, maxima);
    return room;
  }
  if (sizeof(T) == sizeof(float)) room = nullptr;
  take<T, false>(x, group, room, maxima);
  return room ? room : (const float*)x;
}

}  // namespace GRADWIRE_LEVEL
}  // namespace gradwire
