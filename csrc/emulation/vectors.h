// CUDA's vectors. Copying one is an access of all of its bytes, as on a device: a compiler for CPUs would
// take it apart, or do without it.
#pragma once
#include <stdint.h>
#include <string.h>

#include "races.h"

namespace emulation {

// Tells of both accesses before it copies, as the compiler's hooks do (races.cpp).
void copy_vector(void* to, const void* from, size_t bytes);

}  // namespace emulation

#define GRADWIRE_VECTOR(Name, ...)                                    \
  Name() = default;                                                   \
  __attribute__((always_inline)) Name(const Name& other) {            \
    emulation::copy_vector(this, &other, sizeof *this);               \
  }                                                                   \
  __attribute__((always_inline)) Name& operator=(const Name& other) { \
    emulation::copy_vector(this, &other, sizeof *this);               \
    return *this;                                                     \
  }                                                                   \
  __attribute__((always_inline)) Name(__VA_ARGS__)

struct alignas(8) uint2 {
  uint32_t x, y;
  GRADWIRE_VECTOR(uint2, uint32_t a, uint32_t b) : x(a), y(b) {}
};
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
  GRADWIRE_VECTOR(uint4, uint32_t a, uint32_t b, uint32_t c, uint32_t d) : x(a), y(b), z(c), w(d) {}
};
struct alignas(8) float2 {
  float x, y;
  GRADWIRE_VECTOR(float2, float a, float b) : x(a), y(b) {}
};
struct alignas(16) float4 {
  float x, y, z, w;
  GRADWIRE_VECTOR(float4, float a, float b, float c, float d) : x(a), y(b), z(c), w(d) {}
};
#undef GRADWIRE_VECTOR
inline uint2 make_uint2(uint32_t a, uint32_t b) { return {a, b}; }
inline uint4 make_uint4(uint32_t a, uint32_t b, uint32_t c, uint32_t d) { return {a, b, c, d}; }
inline float2 make_float2(float a, float b) { return {a, b}; }
inline float4 make_float4(float a, float b, float c, float d) { return {a, b, c, d}; }
