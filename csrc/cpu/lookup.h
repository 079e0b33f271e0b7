// Small tables of float32 looked up sixteen at a time: permutations of registers where there are, loads
// elsewhere.
#pragma once
#include "kernel.h"
#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace gradwire {
inline namespace GRADWIRE_LEVEL {

// A table of SIZE entries, a power of two; `find` takes 16 indices below SIZE.
template <int SIZE>
class Table {
#if defined(__AVX512F__)
 public:
  static constexpr int PARTS = SIZE <= 16 ? 1 : SIZE / 16;
  explicit Table(const float* entries) {
    alignas(64) float padded[16] = {};
    for (int i = 0; i < (SIZE < 16 ? SIZE : 0); ++i) padded[i] = entries[i];
    for (int part = 0; part < PARTS; ++part)
      parts_[part] = _mm512_loadu_ps(SIZE < 16 ? padded : entries + 16 * part);
  }
  __attribute__((always_inline)) void find(const int32_t* index, float* found) const {
    _mm512_store_ps(found, find(_mm512_load_si512(index)));
  }
  __attribute__((always_inline)) __m512 find(__m512i index) const { return choose<0, PARTS>(index); }

 private:
  template <int FIRST, int COUNT>
  __attribute__((always_inline)) __m512 choose(__m512i index) const {
    if constexpr (COUNT == 1) {
      return _mm512_permutexvar_ps(index, parts_[FIRST]);
    } else if constexpr (COUNT == 2) {
      return _mm512_permutex2var_ps(parts_[FIRST], index, parts_[FIRST + 1]);
    } else {
      const __mmask16 upper = _mm512_test_epi32_mask(index, _mm512_set1_epi32(8 * COUNT));
      return _mm512_mask_blend_ps(upper, choose<FIRST, COUNT / 2>(index),
                                  choose<FIRST + COUNT / 2, COUNT / 2>(index));
    }
  }
  __m512 parts_[PARTS];
#else
 public:
  explicit Table(const float* entries) : entries_(entries) {}
  __attribute__((always_inline)) void find(const int32_t* index, float* found) const {
    GRADWIRE_SIMD
    for (int i = 0; i < 16; ++i) found[i] = entries_[index[i]];
  }

 private:
  const float* entries_;
#endif
};

}  // namespace GRADWIRE_LEVEL
}  // namespace gradwire
