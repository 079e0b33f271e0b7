// The arithmetic that all kernels are written in: the same bits from g++, nvcc and every instruction set.
//
// A product and a sum written with operators may be contracted to a fused multiply-add by a compiler; these
// functions never are (on the host by -ffp-contract=off, on the device by the intrinsics). No function of
// libm is exact, so none is used but the square root. bfloat16 is carried as its bits, uint16_t.
#pragma once
#include <stdint.h>

#if defined(__CUDACC__)
#define GRADWIRE_HD static __host__ __device__ __forceinline__
#else
#define GRADWIRE_HD static inline __attribute__((always_inline))
#endif

// What devices run: nvcc compiles it for them, the emulation over its own definitions of what they offer.
#if defined(GRADWIRE_EMULATED)
#include "intrinsics.h"
#define GRADWIRE_DEVICE_CODE
#elif defined(__CUDA_ARCH__)
#define GRADWIRE_DEVICE_CODE
#endif

// Code compiled for several instruction sets lives in a namespace of its own for each: the linker would keep
// one of several equal names, perhaps the one that this machine cannot run.
#ifndef GRADWIRE_LEVEL
#define GRADWIRE_LEVEL device
#endif
#define GRADWIRE_NAMESPACE_BEGIN \
  namespace gradwire {           \
  inline namespace GRADWIRE_LEVEL {
#define GRADWIRE_NAMESPACE_END \
  }                            \
  }

GRADWIRE_NAMESPACE_BEGIN

#if defined(GRADWIRE_DEVICE_CODE)
GRADWIRE_HD uint32_t bits_of(float x) { return __float_as_uint(x); }
GRADWIRE_HD float float_of(uint32_t bits) { return __uint_as_float(bits); }
GRADWIRE_HD float mul(float a, float b) { return __fmul_rn(a, b); }
GRADWIRE_HD float add(float a, float b) { return __fadd_rn(a, b); }
GRADWIRE_HD float sub(float a, float b) { return __fsub_rn(a, b); }
GRADWIRE_HD float div(float a, float b) { return __fdiv_rn(a, b); }
GRADWIRE_HD float square_root(float x) { return __fsqrt_rn(x); }
GRADWIRE_HD double mul(double a, double b) { return __dmul_rn(a, b); }
GRADWIRE_HD double add(double a, double b) { return __dadd_rn(a, b); }
GRADWIRE_HD double square_root(double x) { return __dsqrt_rn(x); }
GRADWIRE_HD uint32_t upper_product(uint32_t a, uint32_t b) { return __umulhi(a, b); }
// a·b + c, rounded once or twice: for estimates whose last bits decide nothing.
GRADWIRE_HD float about(float a, float b, float c) { return __fmaf_rn(a, b, c); }
GRADWIRE_HD float nearest_even(float x) { return rintf(x); }
GRADWIRE_HD float floor_of(float x) { return floorf(x); }
GRADWIRE_HD float ceil_of(float x) { return ceilf(x); }
#else
GRADWIRE_HD uint32_t bits_of(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, 4);
  return bits;
}
GRADWIRE_HD float float_of(uint32_t bits) {
  float x;
  __builtin_memcpy(&x, &bits, 4);
  return x;
}
GRADWIRE_HD float mul(float a, float b) { return a * b; }
GRADWIRE_HD float add(float a, float b) { return a + b; }
GRADWIRE_HD float sub(float a, float b) { return a - b; }
GRADWIRE_HD float div(float a, float b) { return a / b; }
GRADWIRE_HD float square_root(float x) { return __builtin_sqrtf(x); }
GRADWIRE_HD double mul(double a, double b) { return a * b; }
GRADWIRE_HD double add(double a, double b) { return a + b; }
GRADWIRE_HD double square_root(double x) { return __builtin_sqrt(x); }
GRADWIRE_HD uint32_t upper_product(uint32_t a, uint32_t b) { return (uint32_t)(((uint64_t)a * b) >> 32); }
GRADWIRE_HD float about(float a, float b, float c) { return a * b + c; }
GRADWIRE_HD float nearest_even(float x) { return __builtin_rintf(x); }
GRADWIRE_HD float floor_of(float x) { return __builtin_floorf(x); }
GRADWIRE_HD float ceil_of(float x) { return __builtin_ceilf(x); }
#endif

GRADWIRE_HD uint32_t smaller(uint32_t a, uint32_t b) { return a < b ? a : b; }
GRADWIRE_HD uint32_t larger(uint32_t a, uint32_t b) { return a > b ? a : b; }
GRADWIRE_HD int32_t smaller(int32_t a, int32_t b) { return a < b ? a : b; }
GRADWIRE_HD int32_t larger(int32_t a, int32_t b) { return a > b ? a : b; }
GRADWIRE_HD int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
GRADWIRE_HD int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

enum : uint32_t {
  MAGNITUDE = 0x7fffffffu,
  SIGN = 0x80000000u,
  INFINITE = 0x7f800000u,
  NOT_A_NUMBER = 0x7fc00000u
};

// Maxima are taken on these: exact, in any order, NaN > infinity > every number.
GRADWIRE_HD uint32_t magnitude_bits(float x) { return bits_of(x) & MAGNITUDE; }
GRADWIRE_HD bool is_nan(float x) { return magnitude_bits(x) > INFINITE; }

// 2^(field - 127), exactly; field in [1, 254].
GRADWIRE_HD float power_of_two(int32_t field) { return float_of((uint32_t)field << 23); }

GRADWIRE_HD float from_bfloat16(uint16_t bits) { return float_of((uint32_t)bits << 16); }
// To nearest, ties to even; every NaN becomes the positive quiet one.
GRADWIRE_HD uint16_t to_bfloat16(float x) {
  const uint32_t bits = bits_of(x);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return (uint16_t)((bits & MAGNITUDE) > INFINITE ? 0x7fc0u : rounded);
}

// Elements as float32, whatever they are stored as.
GRADWIRE_HD float load(const float* x) { return *x; }
GRADWIRE_HD float load(const uint16_t* x) { return from_bfloat16(*x); }
GRADWIRE_HD void store(float* x, float value) { *x = value; }
GRADWIRE_HD void store(uint16_t* x, float value) { *x = to_bfloat16(value); }

GRADWIRE_HD int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

GRADWIRE_NAMESPACE_END
