// The normalized Walsh-Hadamard transform (codecs/arithmetic/hadamard.py defines it) of blocks that lie one
// after another: the rows of a matrix, or what a bucket is cut into (codecs/thc/blocks.py).
//
// Blocks descend in size, from a largest one; each begins at a multiple of its size. So stage s of the
// transform acts on every 2^(s+1) values, counted from the start of the bucket, that are no more than the
// largest block and lie in the bucket as a whole. What block a position is in, and where that begins, follows
// from its bits.
#pragma once
#include "gradwire/abi.h"
#include "gradwire/arithmetic.h"

typedef struct {
  gradwire_call call;
  float* rows;     // `numel` float32, transformed in place
  int64_t numel;   // a multiple of `length`
  int64_t length;  // of a row, a power of two
} gradwire_hadamard;

GRADWIRE_API int gradwire_hadamard_transform(const gradwire_hadamard* args);

GRADWIRE_NAMESPACE_BEGIN

enum { UNIT = 128, UNIT_LOG = 7, LARGEST_BLOCK_LOG = 24 };

// Blocks of at most 2^log values, `total` in all: a multiple of UNIT.
struct Blocks {
  int64_t total;
  int32_t log;
};

GRADWIRE_HD int32_t highest_bit(uint64_t x) {
#if defined(GRADWIRE_DEVICE_CODE)
  return 63 - __clzll((long long)x);
#else
  return 63 - __builtin_clzll(x);
#endif
}
GRADWIRE_HD int32_t count_bits(uint32_t x) {
#if defined(GRADWIRE_DEVICE_CODE)
  return __popc(x);
#else
  return __builtin_popcount(x);
#endif
}

GRADWIRE_HD Blocks blocks_of(int64_t numel, int64_t largest) {
  return Blocks{divide_up(numel, UNIT) * UNIT, highest_bit((uint64_t)largest)};
}
// log2 of the size of the block that `position` < total is in. Beyond the largest blocks sizes are the bits
// of the total: in its prefix that ends where a position has a 0 for a 1, that block begins.
GRADWIRE_HD int32_t log_at(const Blocks& blocks, int64_t position) {
  return smaller(highest_bit((uint64_t)(position ^ blocks.total)), blocks.log);
}
// The number of the block, of size 2^log, that `position` is in.
GRADWIRE_HD int64_t index_at(const Blocks& blocks, int64_t position, int32_t log) {
  if (log == blocks.log) return position >> log;
  const uint32_t rest = (uint32_t)(blocks.total & (((int64_t)1 << blocks.log) - 1));
  return (blocks.total >> blocks.log) + count_bits(rest >> (log + 1));
}
GRADWIRE_HD int64_t start_of(int64_t position, int32_t log) { return position >> log << log; }

// 1/√2^log, rounded.
GRADWIRE_HD float scale_of(int32_t log) {
  return mul(power_of_two(127 - log / 2), log % 2 ? 0.70710678f : 1.0f);
}

GRADWIRE_HD bool is_block(int64_t length) {
  return length > 0 && length <= (int64_t)1 << LARGEST_BLOCK_LOG && (length & (length - 1)) == 0;
}
GRADWIRE_HD int64_t items_hadamard_transform(const gradwire_hadamard& args) { return args.numel; }
GRADWIRE_HD int check_hadamard_transform(const gradwire_hadamard& args) {
  const bool whole = is_block(args.length) && args.numel >= 0 && args.numel % args.length == 0;
  return whole && (args.numel == 0 || args.rows) ? GRADWIRE_OK : GRADWIRE_BAD_ARGUMENT;
}
GRADWIRE_HD Blocks blocks_of(const gradwire_hadamard& args) { return blocks_of(args.numel, args.length); }

GRADWIRE_NAMESPACE_END
