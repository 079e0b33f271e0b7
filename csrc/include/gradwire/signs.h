// 1-bit SGD: which sign each coordinate has, and for every group two means; codecs/onebit.py defines them.
#pragma once
#include "gradwire/groups.h"

typedef struct {
  gradwire_call call;
  const void* values_in;      // to encode: numel of call.dtype
  float* values_out;          // to decode, or to add to: numel
  const uint8_t* message_in;  // to encode: what is added to float32 values, or none
  uint8_t* message_out;       //
  int64_t numel;
  int32_t group;  // coordinates that share means: a power of two, 8 to 65536
} gradwire_signs;

GRADWIRE_API int gradwire_signs_encode(const gradwire_signs* args);
GRADWIRE_API int gradwire_signs_decode(const gradwire_signs* args);
GRADWIRE_API int gradwire_signs_add(const gradwire_signs* args);

GRADWIRE_NAMESPACE_BEGIN

// Items are rows of 512 coordinates, or groups where these are longer.
GRADWIRE_HD int64_t items_signs_encode(const gradwire_signs& args) {
  return divide_up(args.numel, larger(args.group, (int32_t)ROW));
}
GRADWIRE_HD int64_t items_signs_decode(const gradwire_signs& args) { return divide_up(args.numel, ROW); }
GRADWIRE_HD int64_t items_signs_add(const gradwire_signs& args) { return items_signs_decode(args); }

GRADWIRE_HD int check_signs(const gradwire_signs& args, bool there) {
  return args.numel >= 0 && is_group(args.group) && (there || args.numel == 0) ? GRADWIRE_OK
                                                                               : GRADWIRE_BAD_ARGUMENT;
}
GRADWIRE_HD int check_signs_encode(const gradwire_signs& args) {
  const bool addable = !args.message_in || args.call.dtype == GRADWIRE_FLOAT32;
  return check_signs(args, args.values_in && args.message_out && addable);
}
GRADWIRE_HD int check_signs_decode(const gradwire_signs& args) {
  return check_signs(args, args.values_out && args.message_in);
}
GRADWIRE_HD int check_signs_add(const gradwire_signs& args) { return check_signs_decode(args); }

// A normalized coordinate as it counts in the sum of its sign, and 0 in the other.
GRADWIRE_HD float positive_part(float x, float normalizer) { return x < 0.0f ? 0.0f : mul(x, normalizer); }
GRADWIRE_HD float negative_part(float x, float normalizer) { return x < 0.0f ? mul(x, normalizer) : 0.0f; }

// The mean of `count` coordinates of one sign from their normalized sum.
GRADWIRE_HD float sign_mean(float sum, int32_t count, uint32_t largest) {
  if (largest >= INFINITE) return float_of(NOT_A_NUMBER);
  const float mean = mul(div(sum, (float)larger(count, 1)), normalizer_of_largest(largest).inverse);
  const uint32_t pattern = bits_of(mean);
  return float_of(smaller(pattern & MAGNITUDE, largest) | (pattern & SIGN));
}

GRADWIRE_NAMESPACE_END
