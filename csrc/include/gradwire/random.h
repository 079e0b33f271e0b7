// Random bits that are a pure function of what they are for (codecs/arithmetic/random.py defines them).
#pragma once
#include "gradwire/arithmetic.h"

GRADWIRE_NAMESPACE_BEGIN

struct Words {
  uint32_t x, y, z, w;
};

enum { PHILOX_ROUNDS = 7 };

// A key as each round takes it.
struct RoundKeys {
  uint32_t first[PHILOX_ROUNDS], second[PHILOX_ROUNDS];
};
GRADWIRE_HD RoundKeys round_keys(uint32_t k0, uint32_t k1) {
  RoundKeys keys;
#if defined(__CUDACC__)
#pragma unroll
#else
#pragma GCC unroll 7
#endif
  for (uint32_t round = 0; round < PHILOX_ROUNDS; ++round) {
    keys.first[round] = k0 + round * 0x9E3779B9u;
    keys.second[round] = k1 + round * 0xBB67AE85u;
  }
  return keys;
}

// Philox4x32 with 7 rounds: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
GRADWIRE_HD Words philox(uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3, const RoundKeys& keys) {
#if defined(__CUDACC__)
#pragma unroll
#else
#pragma GCC unroll 7
#endif
  for (int round = 0; round < PHILOX_ROUNDS; ++round) {
    const uint32_t high0 = upper_product(0xD2511F53u, c0), low0 = 0xD2511F53u * c0;
    const uint32_t high1 = upper_product(0xCD9E8D57u, c2), low1 = 0xCD9E8D57u * c2;
    c0 = high1 ^ c1 ^ keys.first[round];
    c1 = low1;
    c2 = high0 ^ c3 ^ keys.second[round];
    c3 = low0;
  }
  return Words{c0, c1, c2, c3};
}
GRADWIRE_HD Words philox(uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3, uint32_t k0, uint32_t k1) {
  return philox(c0, c1, c2, c3, round_keys(k0, k1));
}

// A bijective hash of 32-bit words ("lowbias32").
GRADWIRE_HD uint32_t mix(uint32_t x) {
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x *= 0x846ca68bu;
  return x ^ (x >> 16);
}

GRADWIRE_NAMESPACE_END
