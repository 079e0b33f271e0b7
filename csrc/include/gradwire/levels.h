// QSGD and TernGrad: coordinates as levels of their group's norm; codecs/qsgd.py defines them.
#pragma once
#include "gradwire/coordinate_bits.h"
#include "gradwire/groups.h"

typedef struct {
  gradwire_call call;
  const void* values_in;      // to encode: numel of call.dtype, the bucket's coordinates from `first` on
  float* values_out;          // to decode, or to add to: numel
  const uint8_t* message_in;  // to encode: what is added to float32 values, or none
  uint8_t* message_out;       //
  int64_t numel, first;       // first is a multiple of 8
  int32_t group;              // coordinates that share a norm: a power of two, 8 to 65536
  int32_t bits;               // of a code: 2 to 16
  int32_t l2;                 // the norm is the l2 norm, otherwise the largest magnitude
  uint32_t key0, key1, rank;
  const uint32_t* key_place;  // where on the device the two words of the key are; null: they are key0, key1
} gradwire_levels;

GRADWIRE_API int gradwire_levels_encode(const gradwire_levels* args);
GRADWIRE_API int gradwire_levels_decode(const gradwire_levels* args);
GRADWIRE_API int gradwire_levels_add(const gradwire_levels* args);

GRADWIRE_NAMESPACE_BEGIN

enum { DITHER_BITS = 16 };

// Items are rows of 512 coordinates, or groups where these are longer.
GRADWIRE_HD int64_t items_levels_encode(const gradwire_levels& args) {
  return divide_up(args.numel, larger(args.group, (int32_t)ROW));
}
GRADWIRE_HD int64_t items_levels_decode(const gradwire_levels& args) { return divide_up(args.numel, ROW); }
GRADWIRE_HD int64_t items_levels_add(const gradwire_levels& args) { return items_levels_decode(args); }

GRADWIRE_HD int check_levels(const gradwire_levels& args, bool there) {
  const bool numbers = args.numel >= 0 && args.first >= 0 && args.first % COUNTER == 0 &&
                       is_group(args.group) && args.bits >= 2 && args.bits <= 16;
  return numbers && (there || args.numel == 0) ? GRADWIRE_OK : GRADWIRE_BAD_ARGUMENT;
}
GRADWIRE_HD int check_levels_encode(const gradwire_levels& args) {
  const bool addable = !args.message_in || args.call.dtype == GRADWIRE_FLOAT32;
  return check_levels(args, args.values_in && args.message_out && addable);
}
GRADWIRE_HD int check_levels_decode(const gradwire_levels& args) {
  return check_levels(args, args.values_out && args.message_in);
}
GRADWIRE_HD int check_levels_add(const gradwire_levels& args) { return check_levels_decode(args); }

GRADWIRE_HD Stream stream_of(const gradwire_levels& args) {
  return Stream{key_of(args.key_place, args.key0, args.key1), args.rank};
}

// s levels above zero in 2^-16 of one, as all positions.
GRADWIRE_HD float last_position(int32_t bits) {
  return (float)((int32_t)((1u << (bits - 1)) - 1) << DITHER_BITS);
}

// What a group's coordinates are encoded with.
struct LevelScale {
  float norm;  // as it travels
  float unit;  // positions in a normalized magnitude
  bool finite;
};

// From a group's largest magnitude and, for the l2 norm, its sum of squares, normalized
// (normalizer_of_largest).
GRADWIRE_HD LevelScale level_scale(uint32_t largest, bool l2, float squares, float last) {
  const Normalizer normalizer = normalizer_of_largest(largest);
  const float normalized = l2 ? square_root(squares) : mul(float_of(largest), normalizer.factor);
  const float norm = mul(normalized, normalizer.inverse);
  LevelScale scale;
  scale.finite = largest < INFINITE && magnitude_bits(norm) < INFINITE;
  scale.norm = scale.finite ? norm : float_of(NOT_A_NUMBER);
  scale.unit = div(last, scale.finite && norm > 0.0f ? normalized : 1.0f);
  return scale;
}

// The level of a normalized coordinate and above it the sign. `dither` is below 2^16. In groups that are not
// finite all codes are zeros instead.
GRADWIRE_HD uint32_t level_code(float x, float unit, float last, uint32_t dither, int32_t bits) {
  const float position = mul(float_of(magnitude_bits(x)), unit);
#if defined(GRADWIRE_DEVICE_CODE)
  const float within = fminf(position, last);
#else
  const float within = position < last ? position : last;
#endif
  const uint32_t steps = (uint32_t)(int32_t)add(within, 0.5f) + dither;
  return steps >> DITHER_BITS | (bits_of(x) >> (32 - bits) & 1u << (bits - 1));
}

// What a step of one level is worth.
GRADWIRE_HD float step_of(float norm, int32_t bits) {
  return div(norm, (float)(int32_t)((1u << (bits - 1)) - 1));
}

GRADWIRE_HD float level_value(uint32_t code, float step, int32_t bits) {
  const int32_t sign = 1 << (bits - 1), level = (int32_t)code;
  return mul((float)(level >= sign ? sign - level : level), step);
}

GRADWIRE_NAMESPACE_END
