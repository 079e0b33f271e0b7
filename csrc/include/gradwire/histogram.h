// Histograms of sampled coordinates (EDGC, gradient data sampler), over the leading bits of float32 and over
// equal bins; codecs/edgc/sampler.py defines them.
#pragma once
#include "gradwire/abi.h"
#include "gradwire/random.h"

#ifdef __cplusplus
#include <math.h>
#endif

typedef struct {
  gradwire_call call;
  const void* x;    // `numel` of call.dtype
  int64_t numel;    //
  int64_t stride;   // one coordinate of every `stride` consecutive ones is counted
  uint32_t key[2];  // of the draws
  int64_t* counts;  // 4097, added to
} gradwire_histogram;

GRADWIRE_API int gradwire_sampled_histogram(const gradwire_histogram* args);

typedef struct {
  gradwire_call call;
  const void* x;     // `numel` of call.dtype
  int64_t numel;     //
  int64_t stride;    // one coordinate of every `stride` consecutive ones counts
  uint32_t key[2];   // of the draws
  double* energies;  // of each 4096 windows: the sum of the squares of their finite values
  int64_t* numbers;  // 2, added to: finite values, and those other than zero
} gradwire_sample_energies;

GRADWIRE_API int gradwire_sampled_energies(const gradwire_sample_energies* args);

typedef struct {
  gradwire_call call;
  const void* x;    // `numel` of call.dtype
  int64_t numel;    //
  int64_t stride;   // one coordinate of every `stride` consecutive ones is counted
  uint32_t key[2];  // of the draws
  double width;     // of a bin, > 0
  int64_t* counts;  // 256, added to: finite values other than zero, by their quotient with `width`
} gradwire_equal_bins;

GRADWIRE_API int gradwire_equal_bins_histogram(const gradwire_equal_bins* args);

GRADWIRE_NAMESPACE_BEGIN

// Values by sign, exponent and three bits of the mantissa; zeros of either sign have a counter of their own.
enum { BIN_SHIFT = 20, BINS = 4096, ZEROS = BINS, COUNTERS = BINS + 1, LARGEST_STRIDE = 1 << 16 };

enum { ENERGY_PIECE = 4096, EQUAL_BINS = 256 };

template <class Args>
GRADWIRE_HD int64_t windows_of(const Args& args) {
  return divide_up(args.numel, args.stride);
}
GRADWIRE_HD int64_t items_sampled_histogram(const gradwire_histogram& args) { return windows_of(args); }
GRADWIRE_HD int64_t items_equal_bins_histogram(const gradwire_equal_bins& args) { return windows_of(args); }
GRADWIRE_HD int64_t items_sampled_energies(const gradwire_sample_energies& args) {
  return divide_up(windows_of(args), (int64_t)ENERGY_PIECE);
}
template <class Args>
GRADWIRE_HD bool is_sample(const Args& args) {
  return args.numel >= 0 && args.stride >= 1 && args.stride <= LARGEST_STRIDE;
}
GRADWIRE_HD int check_sampled_histogram(const gradwire_histogram& args) {
  const bool there = args.numel == 0 || (args.x && args.counts);
  return is_sample(args) && there ? GRADWIRE_OK : GRADWIRE_BAD_ARGUMENT;
}
GRADWIRE_HD int check_sampled_energies(const gradwire_sample_energies& args) {
  const bool there = args.numel == 0 || (args.x && args.energies && args.numbers);
  return is_sample(args) && there ? GRADWIRE_OK : GRADWIRE_BAD_ARGUMENT;
}
GRADWIRE_HD int check_equal_bins_histogram(const gradwire_equal_bins& args) {
  const bool there = args.numel == 0 || (args.x && args.counts);
  return is_sample(args) && args.width > 0 && there ? GRADWIRE_OK : GRADWIRE_BAD_ARGUMENT;
}

// Random bits of a window, whose number is given in two words.
template <class Args>
GRADWIRE_HD uint32_t draw(const Args& args, uint32_t low, uint32_t high) {
  return mix(mix(low ^ args.key[0]) + args.key[1] + high);
}
// The coordinate drawn from the window-th `stride` of them; the last window may have fewer.
template <class Args>
GRADWIRE_HD int64_t sampled_coordinate(const Args& args, int64_t window, uint32_t drawn) {
  const int64_t first = window * args.stride, length = smaller(args.numel - first, args.stride);
  return first + upper_product(drawn, (uint32_t)length);
}
template <class Args>
GRADWIRE_HD int64_t sampled_coordinate(const Args& args, int64_t window) {
  return sampled_coordinate(args, window, draw(args, (uint32_t)window, (uint32_t)(window >> 32)));
}

GRADWIRE_HD uint32_t counter_of(float value) {
  const uint32_t bits = bits_of(value);
  return bits & MAGNITUDE ? bits >> BIN_SHIFT : (uint32_t)ZEROS;
}

GRADWIRE_HD bool is_finite(float value) { return (bits_of(value) & MAGNITUDE) < INFINITE; }
// The square, which float64 holds exactly, of a finite value; 0 for another.
GRADWIRE_HD double energy_of(float value) {
  const float finite = is_finite(value) ? value : 0.0f;
  return mul((double)finite, (double)finite);
}
GRADWIRE_HD bool is_counted(float value) { return is_finite(value) && (bits_of(value) & MAGNITUDE); }
// Equally wide bins: what is beyond them is in the outermost ones.
GRADWIRE_HD int32_t bin_below(double steps) {
  const double most = EQUAL_BINS / 2;
  const double confined = steps < -most ? -most : steps > most - 1 ? most - 1 : steps;
  return (int32_t)floor(confined) + EQUAL_BINS / 2;
}
GRADWIRE_HD int32_t equal_bin_of(float value, double width) { return bin_below((double)value / width); }

GRADWIRE_NAMESPACE_END
