// Largest magnitudes and sums of groups (codecs/arithmetic/floats.py), for kernels for CPUs.
#pragma once
#include "rows.h"

GRADWIRE_NAMESPACE_BEGIN

enum { MOST_GROUPS = ROW / SMALLEST_GROUP, ROW_SUMS = ROW / NEIGHBOURS, TILE_ROWS = TILE / ROW };

// Rows are treated some coordinates at a time, all of one group: f(Span<COUNT>()) with as many as can be.
template <int COUNT>
struct Span {
  static constexpr int value = COUNT;
};
template <class Function>
static inline void with_span(int group, Function f) {
  switch (group) {
    case 8: return f(Span<8>());
    case 16: return f(Span<16>());
    case 32: return f(Span<32>());
    case 512: return f(Span<512>());
    default: return f(Span<64>());
  }
}

template <class T>
static inline uint32_t largest_of(const T* values, int64_t count) {
  uint32_t largest = 0;
#pragma omp simd reduction(max : largest)
  for (int64_t k = 0; k < count; ++k) largest = larger(largest, magnitude_bits(load(values + k)));
  return largest;
}

// The largest magnitude of each group of a row; `group` is at most 512.
static inline void largest_of_groups(const float* row, int group, uint32_t* largest) {
  with_span(group, [&](auto span) {
    const int count = span.value < 64 ? span.value : group;
    for (int i = 0; i < ROW / count; ++i) largest[i] = largest_of(row + i * count, count);
  });
}

static inline float fold_eight(const float* values) {
#ifdef __AVX2__
  const __m128 four = _mm_add_ps(_mm_loadu_ps(values), _mm_loadu_ps(values + 4));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
#else
  const float even = add(add(values[0], values[4]), add(values[2], values[6]));
  return add(even, add(add(values[1], values[5]), add(values[3], values[7])));
#endif
}

// Halves are added until one value is left; the values are spoiled.
static inline float fold(float* values, int count) {
  for (; count > 8; count /= 2) {
    GRADWIRE_SIMD
    for (int k = 0; k < count / 2; ++k) values[k] = add(values[k], values[k + count / 2]);
  }
  if (count == 8) return fold_eight(values);
  for (; count > 1; count /= 2)
    for (int k = 0; k < count / 2; ++k) values[k] = add(values[k], values[k + count / 2]);
  return values[0];
}

// The sum of every COUNT neighbours of a row, which is overwritten.
template <int COUNT>
static inline void sums_of_neighbours(float* row, float* sums) {
  for (int i = 0; i < ROW; i += COUNT)
    for (int half = COUNT / 2; half >= 2; half /= 2) {
      GRADWIRE_SIMD
      for (int k = 0; k < half; ++k) row[i + k] = add(row[i + k], row[i + k + half]);
    }
  for (int i = 0; i < ROW; i += COUNT) sums[i / COUNT] = add(row[i], row[i + 1]);
}

#ifdef __AVX512F__
// As above, 16 times 16 at once: each addition takes two vectors, which have a half of many neighbours each.
template <>
inline void sums_of_neighbours<NEIGHBOURS>(float* row, float* sums) {
  const __m512i in_order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  for (int i = 0; i < ROW / NEIGHBOURS; i += 16) {
    __m512 a[16];
    GRADWIRE_UNROLL
    for (int k = 0; k < 16; ++k) a[k] = _mm512_load_ps(row + (i + k) * NEIGHBOURS);
    GRADWIRE_UNROLL
    for (int k = 0; k < 8; ++k) {
      const __m512 one = a[2 * k], other = a[2 * k + 1];
      a[k] = _mm512_add_ps(_mm512_shuffle_f32x4(one, other, 0x44), _mm512_shuffle_f32x4(one, other, 0xEE));
    }
    GRADWIRE_UNROLL
    for (int k = 0; k < 4; ++k) {
      const __m512 one = a[2 * k], other = a[2 * k + 1];
      a[k] = _mm512_add_ps(_mm512_shuffle_f32x4(one, other, 0x88), _mm512_shuffle_f32x4(one, other, 0xDD));
    }
    GRADWIRE_UNROLL
    for (int k = 0; k < 2; ++k) {
      const __m512 one = a[2 * k], other = a[2 * k + 1];
      a[k] = _mm512_add_ps(_mm512_shuffle_ps(one, other, 0x44), _mm512_shuffle_ps(one, other, 0xEE));
    }
    const __m512 sum =
        _mm512_add_ps(_mm512_shuffle_ps(a[0], a[1], 0x88), _mm512_shuffle_ps(a[0], a[1], 0xDD));
    _mm512_storeu_ps(sums + i, _mm512_permutexvar_ps(in_order, sum));
  }
}
#endif

// The sum of each group of a row, which is overwritten; `group` is at most 512.
static inline void sums_of_groups(float* row, int group, float* sums) {
  if (group == SMALLEST_GROUP) return sums_of_neighbours<SMALLEST_GROUP>(row, sums);
  alignas(64) float parts[ROW_SUMS];
  sums_of_neighbours<NEIGHBOURS>(row, parts);
  const int count = group / NEIGHBOURS;
  for (int i = 0; i < ROW / group; ++i) sums[i] = fold(parts + i * count, count);
}

// The sum of a group longer than a row, whose rows are given in order; they are overwritten.
class LongSum {
 public:
  void add_row(int64_t index, float* row) {
    float* const sums = sums_ + index % TILE_ROWS * ROW_SUMS;
    alignas(64) float parts[ROW_SUMS];
    sums_of_neighbours<NEIGHBOURS>(row, index < TILE_ROWS ? sums : parts);
    if (index < TILE_ROWS) return;
    GRADWIRE_SIMD
    for (int k = 0; k < ROW_SUMS; ++k) sums[k] = add(sums[k], parts[k]);
  }
  float total(int64_t rows) {
    float totals[TILE_ROWS];
    const int count = (int)smaller(rows, (int64_t)TILE_ROWS);
    for (int i = 0; i < count; ++i) totals[i] = fold(sums_ + i * ROW_SUMS, ROW_SUMS);
    return fold(totals, count);
  }

 private:
  alignas(64) float sums_[TILE_ROWS * ROW_SUMS];
};

GRADWIRE_NAMESPACE_END
