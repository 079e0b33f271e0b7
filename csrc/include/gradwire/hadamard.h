// The additions of the Walsh-Hadamard transform in their one order (codecs/arithmetic/hadamard.py): stage s =
// 0, 1, … replaces the values a and b, 2^s apart, by a + b and a − b.
#pragma once
#include "gradwire/arithmetic.h"

GRADWIRE_NAMESPACE_BEGIN

enum { HADAMARD = 32 };  // values that the smoother mixes (SDP4Bit §3.2.2)

GRADWIRE_HD void butterfly(float& a, float& b) {
  const float sum = add(a, b);
  b = sub(a, b);
  a = sum;
}

// The stages in which values BEGIN, 2·BEGIN, … < END apart meet, on COUNT values.
template <int COUNT, int BEGIN, int END>
GRADWIRE_HD void butterflies(float* values) {
#if defined(__CUDACC__)
#pragma unroll
#else
#pragma GCC unroll 8
#endif
  for (int distance = BEGIN; distance < END; distance *= 2) {
#if defined(__CUDACC__)
#pragma unroll
#else
#pragma GCC unroll 32
#endif
    for (int i = 0; i < COUNT / 2; ++i) {
      const int first = i / distance * 2 * distance + i % distance;
      butterfly(values[first], values[first + distance]);
    }
  }
}

// One side of a butterfly whose values are two lanes': `sign` is 1 where the own value is a, −1 where it is
// b. The product is exact, so that a fused multiply-add rounds as the addition does.
GRADWIRE_HD float butterfly_side(float own, float other, float sign) {
#if defined(GRADWIRE_DEVICE_CODE)
  return __fmaf_rn(own, sign, other);
#else
  return add(other, mul(own, sign));
#endif
}

GRADWIRE_NAMESPACE_END
