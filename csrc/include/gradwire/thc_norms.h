// The root mean squares of blocks that THC's ranges follow; codecs/thc/ranges.py defines them.
//
// What is added up is an Energy: Σ(x/2^e)²·4 with the largest magnitude's exponent e, so that no square over-
// or underflows. Energies of 128 coordinates, or of a block that is smaller, are joined 128 at a time, and so
// on.
#pragma once
#include "gradwire/abi.h"
#include "gradwire/arithmetic.h"
#include "gradwire/walsh.h"

typedef struct {
  gradwire_call call;
  const void* x;             // the bucket, `numel` of call.dtype
  int64_t numel;             //
  int64_t block;             // size of the largest blocks, at least 16
  uint32_t* maxima;          // room for one per 2^14 coordinates, needed by larger blocks
  float* energies;           //
  float* root_mean_squares;  // one per block
} gradwire_thc_norms;

GRADWIRE_API int gradwire_thc_root_mean_squares(const gradwire_thc_norms* args);

GRADWIRE_NAMESPACE_BEGIN

enum { JOINED = 128, NORM_TILE_LOG = 14, NORM_TILE = 1 << NORM_TILE_LOG };

// For 2^e ≤ maximum < 2^(e+1): e + 127, confined to what normal numbers have.
GRADWIRE_HD int32_t exponent_field(uint32_t maximum) {
  return smaller(larger((int32_t)(maximum >> 23), 1), 254);
}
GRADWIRE_HD float normalizer_of(uint32_t maximum) { return power_of_two(255 - exponent_field(maximum)); }

GRADWIRE_HD float energy_of(float x, float normalizer) {
  const float scaled = mul(x, normalizer);
  return mul(scaled, scaled);
}
// An energy relative to the exponent of a larger maximum, `top`.
GRADWIRE_HD float energy_below(float energy, uint32_t maximum, uint32_t top) {
  const float factor = power_of_two(127 + larger(exponent_field(maximum) - exponent_field(top), -126));
  return mul(mul(energy, factor), factor);
}
// The root mean square of a block of 2^log coordinates: at most the largest float, NaN if a coordinate is not
// finite.
GRADWIRE_HD float root_mean_square_of(uint32_t maximum, float energy, int32_t log) {
  if (maximum >= INFINITE) return float_of(NOT_A_NUMBER);
  const float root = square_root(mul(energy, power_of_two(127 - log)));
  const float restored = mul(mul(root, 0.5f), power_of_two(exponent_field(maximum)));
  return float_of(smaller(bits_of(restored), INFINITE - 1));
}

GRADWIRE_HD Blocks blocks_of(const gradwire_thc_norms& args) { return blocks_of(args.numel, args.block); }
GRADWIRE_HD int64_t norm_tiles(const gradwire_thc_norms& args) { return divide_up(args.numel, NORM_TILE); }
GRADWIRE_HD int64_t items_thc_root_mean_squares(const gradwire_thc_norms& args) { return args.numel; }
GRADWIRE_HD int check_thc_root_mean_squares(const gradwire_thc_norms& args) {
  const bool sizes = args.numel >= 0 && is_block(args.block) && args.block >= 16;
  const bool there = args.numel == 0 || (args.x && args.root_mean_squares);
  const bool room = args.block <= NORM_TILE || (args.maxima && args.energies);
  return sizes && there && room ? GRADWIRE_OK : GRADWIRE_BAD_ARGUMENT;
}

GRADWIRE_NAMESPACE_END
