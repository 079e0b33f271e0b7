// What the messages of groups have in common (codecs/slices.py): codes, then the scales of all groups; and
// powers of two that keep sums over a group within float32's range (codecs/arithmetic/floats.py).
#pragma once
#include "gradwire/abi.h"
#include "gradwire/arithmetic.h"

GRADWIRE_NAMESPACE_BEGIN

// Coordinates whose sum is taken first, then those of a row and of a tile: on a GPU a thread's, a warp's and
// a block's.
enum { NEIGHBOURS = 16, ROW = 512, TILE = 4096 };
enum { SMALLEST_GROUP = 8, LARGEST_GROUP = 65536 };

GRADWIRE_HD int64_t code_bytes(int64_t numel, int32_t bits) { return divide_up(numel, 8) * bits; }

GRADWIRE_HD bool is_group(int32_t group) {
  return group >= SMALLEST_GROUP && group <= LARGEST_GROUP && (group & (group - 1)) == 0;
}

// Where the scales of a message begin, if there is one.
GRADWIRE_HD const uint8_t* scales_of(const uint8_t* message, int64_t numel, int32_t bits) {
  return message ? message + code_bytes(numel, bits) : message;
}

// Powers of two that bring a group's largest magnitude, given as its bits, into [2, 4), and back. One that is
// not finite counts as 0.
struct Normalizer {
  float factor, inverse;
};
GRADWIRE_HD Normalizer normalizer_of_largest(uint32_t largest) {
  const int32_t field = larger((int32_t)((largest < INFINITE ? largest : 0u) >> 23), 27);
  return Normalizer{power_of_two(255 - field), power_of_two(field - 1)};
}

GRADWIRE_NAMESPACE_END
