// What the reduced statistics say of super-groups (DynamiQ §3.2); codecs/dynamiq/statistics.py defines it.
#pragma once
#include "gradwire/abi.h"
#include "gradwire/statistics.h"

typedef struct {
  gradwire_call call;
  const uint16_t* mean_sum;  // bfloat16, `total`
  const uint16_t* norm;      //
  int64_t total;             // super-groups there are
  int64_t chunks;            //
  int64_t length;            // of a chunk's patterns
  int32_t workers;           //
  int32_t* patterns;         // chunks · length, super-group i · chunks + c at (c, i)
  float* mean;               // total
} gradwire_reduced;

GRADWIRE_API int gradwire_reduced_statistics(const gradwire_reduced* args);

GRADWIRE_NAMESPACE_BEGIN

GRADWIRE_HD int64_t items_reduced_statistics(const gradwire_reduced& args) {
  return args.chunks * args.length;
}
GRADWIRE_HD int check_reduced_statistics(const gradwire_reduced& args) {
  const bool in_range = args.total >= 0 && args.chunks >= 1 && args.workers >= 1 &&
                        args.length == divide_up(args.total, args.chunks);
  const bool there = args.mean_sum && args.norm && args.patterns && args.mean;
  return in_range && (there || args.total == 0) ? GRADWIRE_OK : GRADWIRE_BAD_ARGUMENT;
}

GRADWIRE_HD bool is_finite_bfloat16(uint16_t bits) { return (bits & 0x7f80) != 0x7f80; }

// Writes a super-group's mean over the workers, NaN where its statistics are not finite, and its norm's
// pattern at (chunk, index), 0 there and beyond the last super-group.
GRADWIRE_HD void write_reduced(const gradwire_reduced& args, int64_t super_group, int64_t chunk,
                               int64_t index) {
  int32_t pattern = 0;
  if (super_group < args.total) {
    const uint16_t sum = args.mean_sum[super_group], norm = args.norm[super_group];
    const bool finite = is_finite_bfloat16(sum) && is_finite_bfloat16(norm);
    const float mean = div(from_bfloat16(sum), (float)args.workers);
    pattern = finite ? norm : 0;
    args.mean[super_group] = finite ? mul(mean, (float)(1 << TRAVEL_EXPONENT)) : float_of(NOT_A_NUMBER);
  }
  args.patterns[chunk * args.length + index] = pattern;
}

GRADWIRE_NAMESPACE_END
