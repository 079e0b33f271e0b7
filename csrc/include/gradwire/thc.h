// THC: a bucket rotated block by block and rounded to integers, and the way back; codecs/thc/definition.py
// defines both.
#pragma once
#include "gradwire/abi.h"
#include "gradwire/arithmetic.h"
#include "gradwire/random.h"
#include "gradwire/walsh.h"

// `total` is the number of coordinates with those of the padding, a multiple of 128.
typedef struct {
  gradwire_call call;
  const void* x;                   // the bucket, `numel` of call.dtype
  int64_t numel;                   //
  int64_t block;                   // size of the largest blocks
  const float* root_mean_squares;  // the workers' largest, one per block
  const float* table;         // at or below every integer up to g the entry of the table, then the distances
                              // from there to the next one; null for the uniform table
  int32_t* integers;          // `total`
  float t_p;                  //
  int32_t granularity;        // g: the largest integer, at most 255
  uint32_t key0, key1;        //
  uint32_t rank;              //
  const uint32_t* key_place;  // where on the device the two words of the key are; null: they are key0, key1
} gradwire_thc_in;

typedef struct {
  gradwire_call call;
  const int32_t* sums;             // `total`
  int64_t total;                   //
  int64_t block;                   //
  const float* root_mean_squares;  //
  float* between;                  // room for `total` float32, needed by large blocks; may be `mean`
  void* mean;                      // `total` of call.dtype
  float t_p;                       //
  int32_t peak;                    // the largest sum, at most 2^24
  uint32_t key0, key1;             //
  const uint32_t* key_place;  // where on the device the two words of the key are; null: they are key0, key1
} gradwire_thc_out;

// Larger blocks than this need `between`.
enum { GRADWIRE_THC_SMALL_BLOCK = 4096 };

GRADWIRE_API int gradwire_thc_quantize(const gradwire_thc_in* args);
GRADWIRE_API int gradwire_thc_dequantize(const gradwire_thc_out* args);

GRADWIRE_NAMESPACE_BEGIN

// How a block is scaled on the way in, y = x·normalizer, and out, x = y·restorer/2; `limit` is its range in
// units of y. A block without range, of zeros or not finite, becomes zeros.
struct Range {
  float normalizer, restorer, limit;
  uint32_t alive;  // all bits or none
};
GRADWIRE_HD Range range_of(float root_mean_square, float t_p) {
  const uint32_t bits = bits_of(root_mean_square);
  const int32_t field = smaller(larger((int32_t)bits >> 23, 1), 254);
  const bool finite = (bits & MAGNITUDE) < INFINITE;
  const float normalizer = power_of_two(255 - field);
  const float limit = mul(mul(root_mean_square, normalizer), t_p);
  return Range{normalizer, power_of_two(field), finite ? limit : float_of(NOT_A_NUMBER),
               finite && root_mean_square > 0 ? ~0u : 0u};
}

// In which table units a rotated coordinate y lies, clamped to the table: factor = g/2 / limit. Numbers that
// are not negative are ordered as their bits are, and negative ones have negative bits.
GRADWIRE_HD float place_of(float y, float factor, uint32_t alive, float half, float granularity) {
  const float v = add(float_of(bits_of(mul(y, factor)) & alive), half);
  return float_of((uint32_t)smaller(larger((int32_t)bits_of(v), 0), (int32_t)bits_of(granularity)));
}
// 16 random bits as an odd multiple of 2^-17 in (0, 1).
GRADWIRE_HD float dither_of(uint32_t bits) {
  return mul(add((float)(int32_t)bits, 0.5f), power_of_two(127 - 16));
}
// Whether a coordinate at `place` goes to the entry above: as likely as it is near to it.
GRADWIRE_HD bool goes_up(float place, float entry, float dither) {
  return add(sub(place, entry), dither) >= 1.0f;
}
GRADWIRE_HD bool goes_up(float place, float entry, float distance, float dither) {
  return add(sub(place, entry), mul(dither, distance)) >= distance;
}
// The sign that a coordinate's random bit gives it: of the 32 in a word the top one comes first.
GRADWIRE_HD uint32_t flip_of(uint32_t word, int32_t coordinate) { return (word << coordinate) & SIGN; }
GRADWIRE_HD float flipped(float x, uint32_t flip) { return float_of(bits_of(x) ^ flip); }
// The four words of a unit's signs, and those of the dither of its eight coordinates from 8·part on.
GRADWIRE_HD Words signs_of(int64_t unit, Key key) { return philox((uint32_t)unit, 0, 0, 0, key); }
GRADWIRE_HD Words dither_words(int64_t unit, uint32_t part, uint32_t rank, Key key) {
  return philox((uint32_t)unit, rank + 1, part, 0, key);
}

// A sum, in units of half a table unit, counted from the middle of the range.
GRADWIRE_HD float centred(int32_t sum, int32_t peak) {
  return (float)(int32_t)(2u * (uint32_t)sum - (uint32_t)peak);
}
// −0 becomes +0.
GRADWIRE_HD float restored(float y, float restorer) { return add(0.0f, mul(y, restorer)); }

GRADWIRE_HD Key key_of(const gradwire_thc_in& args) { return key_of(args.key_place, args.key0, args.key1); }
GRADWIRE_HD Key key_of(const gradwire_thc_out& args) { return key_of(args.key_place, args.key0, args.key1); }
GRADWIRE_HD Blocks blocks_of(const gradwire_thc_in& args) { return blocks_of(args.numel, args.block); }
GRADWIRE_HD Blocks blocks_of(const gradwire_thc_out& args) { return blocks_of(args.total, args.block); }
GRADWIRE_HD bool is_aligned(const void* pointer) { return ((uintptr_t)pointer & 15) == 0; }

GRADWIRE_HD int64_t items_thc_quantize(const gradwire_thc_in& args) { return args.numel; }
GRADWIRE_HD int64_t items_thc_dequantize(const gradwire_thc_out& args) { return args.total; }
GRADWIRE_HD int check_thc_quantize(const gradwire_thc_in& args) {
  const bool sizes =
      args.numel >= 0 && is_block(args.block) && args.granularity > 0 && args.granularity < 256;
  const bool there = args.numel == 0 || (args.x && args.root_mean_squares && args.integers);
  if (!sizes || !there) return GRADWIRE_BAD_ARGUMENT;
  return is_aligned(args.integers) ? GRADWIRE_OK : GRADWIRE_MISALIGNED;
}
GRADWIRE_HD int check_thc_dequantize(const gradwire_thc_out& args) {
  const bool sizes = args.total >= 0 && args.total % UNIT == 0 && is_block(args.block);
  const bool peak = args.peak > 0 && args.peak <= 1 << 24;
  const bool there = args.total == 0 || (args.sums && args.root_mean_squares && args.mean);
  const bool room = args.between || args.block <= GRADWIRE_THC_SMALL_BLOCK;
  if (!sizes || !peak || !there || !room) return GRADWIRE_BAD_ARGUMENT;
  const bool aligned = is_aligned(args.sums) && is_aligned(args.mean) && is_aligned(args.between);
  return aligned ? GRADWIRE_OK : GRADWIRE_MISALIGNED;
}

GRADWIRE_NAMESPACE_END
