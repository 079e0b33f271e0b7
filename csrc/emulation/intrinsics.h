// CUDA's functions for one thread, and the PTX instructions of cuda/ptx.h, as what they are defined to
// compute: so the branches for devices run in the emulation too. A NaN that arithmetic makes is the one that
// NVIDIA's processors make, whatever it was made from.
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "vectors.h"

namespace emulation {

enum : uint32_t { DEVICE_NAN = 0x7fffffffu, LARGEST = 0x7f7fffffu };

inline uint32_t to_bits(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  return bits;
}
inline float from_bits(uint32_t bits) {
  float x;
  memcpy(&x, &bits, 4);
  return x;
}
inline float made(float x) { return x == x ? x : from_bits(DEVICE_NAN); }
inline double made(double x) { return x == x ? x : __builtin_nan("0x7ffffffffffff"); }

// The exact value of a float16, and the float16 nearest to a number of few enough digits, ties to even.
inline double half_value(uint32_t half) {
  const int field = half >> 10 & 31, mantissa = half & 1023;
  double value = field ? ldexp(1024 + mantissa, field - 25) : ldexp(mantissa, -24);
  if (field == 31) value = mantissa ? NAN : INFINITY;
  return half & 0x8000 ? -value : value;
}
inline uint32_t half_of(double value) {
  const uint32_t sign = signbit(value) ? 0x8000u : 0u;
  if (value != value) return 0x7fffu;
  if (fabs(value) >= 65520.0) return sign | 0x7c00u;
  int exponent;
  frexp(value, &exponent);
  const int step = value != 0 && exponent > -13 ? exponent - 11 : -24;  // what the last bit is worth: 2^step
  const uint32_t steps = (uint32_t)nearbyint(ldexp(fabs(value), -step));
  // Steps of a normal number begin at 1024, which is the first of its exponent field.
  return (steps + (uint32_t)(step + 24) * 1024) | sign;
}
inline uint32_t add_half(uint32_t a, uint32_t b) {
  return half_of(half_value(a & 0xffff) + half_value(b & 0xffff));
}

inline uint32_t bfloat16_of(float x) {
  const uint32_t bits = to_bits(x);
  return x != x ? 0x7fffu : (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
}

}  // namespace emulation

inline uint32_t __float_as_uint(float x) { return emulation::to_bits(x); }
inline int32_t __float_as_int(float x) { return (int32_t)emulation::to_bits(x); }
inline float __uint_as_float(uint32_t bits) { return emulation::from_bits(bits); }
inline float __int_as_float(int32_t bits) { return emulation::from_bits((uint32_t)bits); }

inline float __fmul_rn(float a, float b) { return emulation::made(a * b); }
inline float __fadd_rn(float a, float b) { return emulation::made(a + b); }
inline float __fsub_rn(float a, float b) { return emulation::made(a - b); }
inline float __fdiv_rn(float a, float b) { return emulation::made(a / b); }
inline float __fsqrt_rn(float x) { return emulation::made(__builtin_sqrtf(x)); }
inline float __fmaf_rn(float a, float b, float c) { return emulation::made(__builtin_fmaf(a, b, c)); }
inline double __dmul_rn(double a, double b) { return emulation::made(a * b); }
inline double __dsqrt_rn(double x) { return emulation::made(__builtin_sqrt(x)); }
inline double __dadd_rn(double a, double b) { return emulation::made(a + b); }

// Towards zero. What rounding to nearest has left out says on which side of the sum the nearest number is.
inline float __fadd_rz(float a, float b) {
  const float sum = a + b;
  if (sum != sum) return emulation::from_bits(emulation::DEVICE_NAN);
  const uint32_t bits = emulation::to_bits(sum);
  if (isinf(sum)) {
    const bool overflow = !isinf(a) && !isinf(b);
    return overflow ? emulation::from_bits((bits & 0x80000000u) | emulation::LARGEST) : sum;
  }
  const float other = sum - a, left = (a - (sum - other)) + (b - other);
  const bool beyond = (sum > 0 && left < 0) || (sum < 0 && left > 0);
  return emulation::from_bits(beyond ? bits - 1 : bits);
}

inline int32_t __float2int_rd(float x) {
  const float below = floorf(x);
  if (below != below) return 0;
  return below >= 2147483648.0f ? INT32_MAX : below < -2147483648.0f ? INT32_MIN : (int32_t)below;
}
inline uint32_t __umulhi(uint32_t a, uint32_t b) { return (uint32_t)((uint64_t)a * b >> 32); }
inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline int __popcll(unsigned long long v) { return __builtin_popcountll(v); }
inline int __clz(int v) { return v ? __builtin_clz((unsigned)v) : 32; }
inline int __clzll(long long v) { return v ? __builtin_clzll((unsigned long long)v) : 64; }
inline int __ffs(int v) { return __builtin_ffs(v); }
inline uint32_t __brev(uint32_t v) {
  uint32_t reversed = 0;
  for (int i = 0; i < 32; ++i) reversed |= (v >> i & 1u) << (31 - i);
  return reversed;
}
inline uint32_t __funnelshift_l(uint32_t low, uint32_t high, uint32_t shift) {
  return (uint32_t)(((uint64_t)high << 32 | low) << (shift & 31) >> 32);
}
inline uint32_t __funnelshift_r(uint32_t low, uint32_t high, uint32_t shift) {
  return (uint32_t)(((uint64_t)high << 32 | low) >> (shift & 31));
}
inline uint32_t __viaddmin_u32(uint32_t a, uint32_t b, uint32_t c) { return a + b < c ? a + b : c; }
inline uint32_t __dp2a_lo(uint32_t halves, uint32_t bytes, uint32_t sum) {
  return sum + (halves & 0xffff) * (bytes & 0xff) + (halves >> 16) * (bytes >> 8 & 0xff);
}
inline uint32_t __dp2a_hi(uint32_t halves, uint32_t bytes, uint32_t sum) {
  return __dp2a_lo(halves, bytes >> 16, sum);
}
inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t selector) {
  const uint64_t both = (uint64_t)b << 32 | a;
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i) result |= (uint32_t)(both >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
  return result;
}

namespace gradwire_cuda {
namespace ptx {

// A number from -1 to 1, another one each time.
inline float noise() {
  static uint32_t state = 1;
  state = state * 1664525u + 1013904223u;
  return (int32_t)state * 4.6566129e-10f;
}
// A processor's log2 cannot be reproduced. It errs by 2^-22 from 1/2 to 2 and elsewhere by 2 units in the
// last place: this one errs by as much. Subnormal numbers are zeros to it.
inline float lg2_approx_ftz(float x) {
  const float flushed = fabsf(x) < 1.17549435e-38f ? copysignf(0.0f, x) : x, exact = log2f(flushed);
  if (!isfinite(exact)) return emulation::made(exact);
  const double size = fabsf(exact) > 1 ? exact : 1;
  return (float)(log2((double)flushed) + 0.75 * 2.3841858e-07 * size * noise());
}
// Errs by up to 2^-22.
inline float rcp_approx_ftz(float x) {
  const float flushed = fabsf(x) < 1.17549435e-38f ? copysignf(0.0f, x) : x, exact = 1.0f / flushed;
  if (!isfinite(exact)) return emulation::made(exact);
  return exact * (1.0f + 2.3841858e-07f * noise());
}
inline float max_nan(float a, float b) {
  if (a != a || b != b) return emulation::from_bits(emulation::DEVICE_NAN);
  return a > b || (a == b && !signbit(a)) ? a : b;
}
inline uint32_t cvt_rn_bf16x2(float high, float low) {
  return emulation::bfloat16_of(high) << 16 | emulation::bfloat16_of(low);
}
inline uint32_t add_rn_f16x2(uint32_t a, uint32_t b) {
  return emulation::add_half(a >> 16, b >> 16) << 16 | emulation::add_half(a, b);
}
inline uint32_t min_u16x2(uint32_t a, uint32_t b) {
  const uint32_t low = (a & 0xffff) < (b & 0xffff) ? a : b, high = (a >> 16) < (b >> 16) ? a : b;
  return (high & 0xffff0000) | (low & 0xffff);
}
inline void st_global_v4(void* target, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  *reinterpret_cast<uint4*>(target) = make_uint4(a, b, c, d);
}
inline void st_global_v2(void* target, uint32_t a, uint32_t b) {
  *reinterpret_cast<uint2*>(target) = make_uint2(a, b);
}
inline int64_t opaque(int64_t value) { return value; }

}  // namespace ptx
}  // namespace gradwire_cuda
