// Histogram of sampled coordinates (EDGC, gradient data sampler); codecs/edgc/{sampling,histogram}.py define
// it.
#pragma once
#include "gradwire/abi.h"
#include "gradwire/random.h"

typedef struct {
  gradwire_call call;
  const void* x;    // `numel` of call.dtype
  int64_t numel;    //
  int64_t stride;   // one coordinate of every `stride` consecutive ones is counted
  uint32_t key[2];  // of the draws
  int64_t* counts;  // 4097, added to
} gradwire_histogram;

GRADWIRE_API int gradwire_sampled_histogram(const gradwire_histogram* args);

GRADWIRE_NAMESPACE_BEGIN

// Values by sign, exponent and three bits of the mantissa; zeros of either sign have a counter of their own.
enum { BIN_SHIFT = 20, BINS = 4096, ZEROS = BINS, COUNTERS = BINS + 1, LARGEST_STRIDE = 1 << 16 };

GRADWIRE_HD int64_t items_sampled_histogram(const gradwire_histogram& args) {
  return divide_up(args.numel, args.stride);
}
GRADWIRE_HD int check_sampled_histogram(const gradwire_histogram& args) {
  const bool there = args.numel == 0 || (args.x && args.counts);
  const bool in_range = args.numel >= 0 && args.stride >= 1 && args.stride <= LARGEST_STRIDE;
  return in_range && there ? GRADWIRE_OK : GRADWIRE_BAD_ARGUMENT;
}

// Random bits of a window, whose number is given in two words.
GRADWIRE_HD uint32_t draw(const gradwire_histogram& args, uint32_t low, uint32_t high) {
  return mix(mix(low ^ args.key[0]) + args.key[1] + high);
}
// The coordinate drawn from the window-th `stride` of them; the last window may have fewer.
GRADWIRE_HD int64_t sampled_coordinate(const gradwire_histogram& args, int64_t window, uint32_t drawn) {
  const int64_t first = window * args.stride, length = smaller(args.numel - first, args.stride);
  return first + upper_product(drawn, (uint32_t)length);
}
GRADWIRE_HD int64_t sampled_coordinate(const gradwire_histogram& args, int64_t window) {
  return sampled_coordinate(args, window, draw(args, (uint32_t)window, (uint32_t)(window >> 32)));
}

GRADWIRE_HD uint32_t counter_of(float value) {
  const uint32_t bits = bits_of(value);
  return bits & MAGNITUDE ? bits >> BIN_SHIFT : (uint32_t)ZEROS;
}

GRADWIRE_NAMESPACE_END
