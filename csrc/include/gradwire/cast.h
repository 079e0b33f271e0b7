// Slices of a bucket that travel as numbers of another type, or of their own; codecs/casts.py defines them.
//
// A worker's own numbers and those of a message are added in float32. The sum is kept as it is (`sums`), sent
// on (`out`), divided by the workers (`mean`), or both of these: then the mean is of what was sent.
#pragma once
#include "gradwire/abi.h"
#include "gradwire/arithmetic.h"

typedef struct {
  gradwire_call call;      // dtype: of x and mean
  const void* x;           // this worker's own: of the bucket, or, if it is null,
  const float* own;        // partial sums, or, if that is null,
  const uint8_t* first;    // a message
  const uint8_t* message;  // what is added to them; null: nothing
  float* sums;             // the results, each null or there: may be `own`
  uint8_t* out;            //
  void* mean;              //
  int64_t numel;           // of all these
  int32_t wire;            // what messages are made of: GRADWIRE_FLOAT32 or GRADWIRE_BFLOAT16
  int32_t workers;         // that the mean is over
} gradwire_cast;

GRADWIRE_API int gradwire_cast_slice(const gradwire_cast* args);

GRADWIRE_NAMESPACE_BEGIN

GRADWIRE_HD int64_t items_cast_slice(const gradwire_cast& args) { return args.numel; }
GRADWIRE_HD int check_cast_slice(const gradwire_cast& args) {
  const bool in_range = args.numel >= 0 && args.workers >= 1 && args.workers <= 1 << 24 &&
                        (args.wire == GRADWIRE_FLOAT32 || args.wire == GRADWIRE_BFLOAT16);
  const bool one = (args.x != nullptr) + (args.own != nullptr) + (args.first != nullptr) == 1;
  const bool there = one && (args.sums || args.out || args.mean);
  return in_range && (there || args.numel == 0) ? GRADWIRE_OK : GRADWIRE_BAD_ARGUMENT;
}

// Whether a division by so many is a product with a power of two, rounded the same.
GRADWIRE_HD bool divides_exactly(int32_t workers) { return (workers & (workers - 1)) == 0; }

GRADWIRE_NAMESPACE_END
