// Mean and norm of super-groups (DynamiQ §3.1); codecs/dynamiq/arrangement.py defines them.
#pragma once
#include "gradwire/abi.h"
#include "gradwire/arithmetic.h"

typedef struct {
  gradwire_call call;
  const void* x;   // the bucket, `numel` of call.dtype
  int64_t numel;   //
  uint16_t* mean;  // bfloat16, one per super-group
  uint16_t* norm;  //
} gradwire_statistics;

GRADWIRE_API int gradwire_super_group_statistics(const gradwire_statistics* args);

GRADWIRE_NAMESPACE_BEGIN

enum { SUPER_GROUP = 256, SMALLEST_EXPONENT = 27, LARGEST_EXPONENT = 254, TRAVEL_EXPONENT = 8 };

GRADWIRE_HD int64_t items_super_group_statistics(const gradwire_statistics& args) {
  return divide_up(args.numel, SUPER_GROUP);
}
GRADWIRE_HD int check_super_group_statistics(const gradwire_statistics& args) {
  const bool there = args.numel == 0 || (args.x && args.mean && args.norm);
  return args.numel >= 0 && there ? GRADWIRE_OK : GRADWIRE_BAD_ARGUMENT;
}

// Exponent field of a maximum given as its bits, limited to what scaling uses.
GRADWIRE_HD int32_t exponent_of(uint32_t maximum) {
  return smaller(larger((int32_t)(maximum >> 23), (int32_t)SMALLEST_EXPONENT), (int32_t)LARGEST_EXPONENT);
}
// The power of two that brings a maximum with this exponent field into [2, 4), and what undoes it for
// statistics.
GRADWIRE_HD float normalizer_of(int32_t field) { return power_of_two(255 - field); }
GRADWIRE_HD float restorer_of(int32_t field) { return power_of_two(field - (1 + TRAVEL_EXPONENT)); }

// From the sums of the scaled coordinates and of their squares; `count` of them are not padding.
GRADWIRE_HD uint16_t mean_of(float sum, int64_t count, float restorer) {
  return to_bfloat16(mul(div(sum, (float)(int32_t)count), restorer));
}
GRADWIRE_HD uint16_t norm_of(float squares, float restorer) {
  return to_bfloat16(mul(square_root(squares), restorer));
}

GRADWIRE_NAMESPACE_END
