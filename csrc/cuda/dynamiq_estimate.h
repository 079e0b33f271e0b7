// Levels of the paper's values at 3 to 6 bits, estimated: which threshold a coordinate exceeds is read off a
// logarithm, without a table. An estimate too close to a threshold for its error is noticed, and what it
// belongs to is computed exactly (dynamiq_levels.h).
#pragma once
#include "dynamiq_levels.h"

namespace gradwire_cuda {

// Where levels are estimated: of 2 bits there is one threshold, and of 8 bits too many.
template <int SLOT>
constexpr bool ESTIMATED = Width<SLOT>::BITS >= 3 && Width<SLOT>::BITS <= 6;

// The levels of eight coordinates as 128 + level + fraction, floats: their upper halves end with the levels,
// their lower halves are the fractions. Two coordinates, HALF apart, share a word.
template <int SLOT>
struct Estimates {
  static constexpr int WIDTH = Width<SLOT>::BITS;
  static constexpr int HALF = WIDTH <= 4 ? 4 : 2, EACH = 2 * HALF;
  // What the upper halves hold beside the levels, added up as they are.
  static constexpr uint32_t BESIDE = 0x43004300u * ones_of(WIDTH, HALF);
  static constexpr uint32_t ONES = ones_of(WIDTH, EACH), SIGNS = ONES << (WIDTH - 1);
  uint32_t sum = 0, closest = 0xFFFFFFFFu;  // the least fractions yet, of lower and of upper coordinates

  // Adds those of two coordinates; the last ones come first.
  __device__ __forceinline__ void add(float low, float high) {
    closest = ptx::min_u16x2(closest, __byte_perm(bits_of(low), bits_of(high), 0x5410));
    sum = (sum << WIDTH) + __byte_perm(bits_of(low), bits_of(high), 0x7632);
  }
  // The codes of EACH coordinates, of which x are the values.
  __device__ __forceinline__ uint32_t codes(const float* x) {
    uint32_t found = sum - BESIDE, signs = 0;
    if constexpr (HALF * WIDTH < 16) found = (found & 0xFFFFu) | found >> 16 << HALF * WIDTH;
#pragma unroll
    for (int i = EACH - 1; i >= 0; --i) signs = shifted_in(signs, bits_of(x[i]), WIDTH);
    sum = 0;
    return found | (signs & (found + (SIGNS - ONES)) & SIGNS);  // there is no negative zero
  }
  // Whether a fraction is `doubt` at most.
  __device__ __forceinline__ bool doubtful(uint32_t doubt) const {
    return smaller(closest & 0xFFFFu, closest >> 16) <= doubt;
  }
};

}  // namespace gradwire_cuda
