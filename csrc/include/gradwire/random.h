// Random bits that are a pure function of what they are for (codecs/arithmetic/random.py defines them).
#pragma once
#include "gradwire/arithmetic.h"

GRADWIRE_NAMESPACE_BEGIN

struct Words {
  uint32_t x, y, z, w;
};

// What all random bits of a bucket in one training step follow from.
struct Key {
  uint32_t first, second;
};
// The key of a call: the two words at `place`, or those of its arguments where there is no place. A CUDA
// graph replays a call with the arguments that it was captured with; what they point to is read anew.
GRADWIRE_HD Key key_of(const uint32_t* place, uint32_t first, uint32_t second) {
  return place ? Key{place[0], place[1]} : Key{first, second};
}

enum { PHILOX_ROUNDS = 7 };

// The key as a round of Philox takes it, which in round 0 is the key itself.
GRADWIRE_HD Key round_key(Key key, int round) {
  return Key{key.first + (uint32_t)round * 0x9E3779B9u, key.second + (uint32_t)round * 0xBB67AE85u};
}

// The key as every round takes it, found beforehand.
struct RoundKeys {
  uint32_t first[PHILOX_ROUNDS], second[PHILOX_ROUNDS];
};
GRADWIRE_HD Key round_key(const RoundKeys& keys, int round) {
  return Key{keys.first[round], keys.second[round]};
}
GRADWIRE_HD RoundKeys round_keys(Key key) {
  RoundKeys keys;
#if defined(__CUDACC__)
#pragma unroll
#else
#pragma GCC unroll 7
#endif
  for (int round = 0; round < PHILOX_ROUNDS; ++round) {
    const Key own = round_key(key, round);
    keys.first[round] = own.first;
    keys.second[round] = own.second;
  }
  return keys;
}

// A round of Philox on a counter, or on what the rounds before have made of it.
GRADWIRE_HD Words philox_round(const Words& state, Key key) {
  const uint32_t high0 = upper_product(0xD2511F53u, state.x), low0 = 0xD2511F53u * state.x;
  const uint32_t high1 = upper_product(0xCD9E8D57u, state.z), low1 = 0xCD9E8D57u * state.z;
  return Words{high1 ^ state.y ^ key.first, low1, high0 ^ state.w ^ key.second, low0};
}
// Philox4x32 with 7 rounds: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011. `keys` is
// whatever `round_key` finds a round's key in. Written out: by `philox_round` one of THC's kernels, which has
// no register to spare, gets a stack.
template <class Keys>
GRADWIRE_HD Words philox(uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3, const Keys& keys) {
#if defined(__CUDACC__)
#pragma unroll
#else
#pragma GCC unroll 7
#endif
  for (int round = 0; round < PHILOX_ROUNDS; ++round) {
    const uint32_t high0 = upper_product(0xD2511F53u, c0), low0 = 0xD2511F53u * c0;
    const uint32_t high1 = upper_product(0xCD9E8D57u, c2), low1 = 0xCD9E8D57u * c2;
    const Key key = round_key(keys, round);
    c0 = high1 ^ c1 ^ key.first;
    c1 = low1;
    c2 = high0 ^ c3 ^ key.second;
    c3 = low0;
  }
  return Words{c0, c1, c2, c3};
}
GRADWIRE_HD Words philox(uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3, Key key) {
  return philox(c0, c1, c2, c3, round_keys(key));
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
