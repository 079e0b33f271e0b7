// The codes of a super-group as they lie in a message: code k begins at bit k·width.
#pragma once
#include "kernel.h"
#if defined(__BMI2__)
#include <immintrin.h>
#endif
#include "gradwire/dynamiq.h"

namespace gradwire {
inline namespace GRADWIRE_LEVEL {

// Eight bytes to the low 8·WIDTH bits, WIDTH of each, and back.
template <int WIDTH>
inline __attribute__((always_inline)) uint64_t join(uint64_t bytes) {
#if defined(__BMI2__)
  return _pext_u64(bytes, 0x0101010101010101ull * ((1 << WIDTH) - 1));
#else
  uint64_t joined = 0;
  for (int i = 0; i < 8; ++i) joined |= (bytes >> 8 * i & ((1u << WIDTH) - 1)) << WIDTH * i;
  return joined;
#endif
}
template <int WIDTH>
inline __attribute__((always_inline)) uint64_t separate(uint64_t joined) {
#if defined(__BMI2__)
  return _pdep_u64(joined, 0x0101010101010101ull * ((1 << WIDTH) - 1));
#else
  uint64_t bytes = 0;
  for (int i = 0; i < 8; ++i) bytes |= (joined >> WIDTH * i & ((1u << WIDTH) - 1)) << 8 * i;
  return bytes;
#endif
}

template <int WIDTH>
inline void pack_codes(const uint32_t* codes, uint8_t* out) {
  if constexpr (WIDTH == 16) {
    alignas(64) uint16_t halves[SUPER_GROUP];
    for (int k = 0; k < SUPER_GROUP; ++k) halves[k] = (uint16_t)codes[k];
    memcpy(out, halves, sizeof halves);
  } else {
    alignas(64) uint8_t bytes[SUPER_GROUP];
    for (int k = 0; k < SUPER_GROUP; ++k) bytes[k] = (uint8_t)codes[k];
    if constexpr (WIDTH == 8) {
      memcpy(out, bytes, sizeof bytes);
    } else {
      uint8_t packed[32 * WIDTH + 8];  // whole words are written, each over the empty end of the last one
      for (int eight = 0; eight < SUPER_GROUP / 8; ++eight) {
        uint64_t word;
        memcpy(&word, bytes + 8 * eight, 8);
        word = join<WIDTH>(word);
        memcpy(packed + WIDTH * eight, &word, 8);
      }
      memcpy(out, packed, 32 * WIDTH);
    }
  }
}

template <int WIDTH>
inline void unpack_codes(const uint8_t* in, uint32_t* codes) {
  if constexpr (WIDTH == 16) {
    alignas(64) uint16_t halves[SUPER_GROUP];
    memcpy(halves, in, sizeof halves);
    for (int k = 0; k < SUPER_GROUP; ++k) codes[k] = halves[k];
  } else {
    alignas(64) uint8_t bytes[SUPER_GROUP];
    if constexpr (WIDTH == 8) {
      memcpy(bytes, in, sizeof bytes);
    } else {
      for (int eight = 0; eight < SUPER_GROUP / 8; ++eight) {
        uint64_t word;  // whole words are read: behind all codes are at least ten bytes of scales
        memcpy(&word, in + WIDTH * eight, 8);
        word = separate<WIDTH>(word);
        memcpy(bytes + 8 * eight, &word, 8);
      }
    }
    for (int k = 0; k < SUPER_GROUP; ++k) codes[k] = bytes[k];
  }
}

}  // namespace GRADWIRE_LEVEL
}  // namespace gradwire
