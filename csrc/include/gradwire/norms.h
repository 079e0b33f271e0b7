// Energies of blocks of consecutive coordinates (OmniReduce); codecs/omnireduce.py defines them.
#pragma once
#include "gradwire/abi.h"
#include "gradwire/statistics.h"

typedef struct {
  gradwire_call call;
  const void* x;     // the bucket, `numel` of call.dtype
  int64_t numel;     //
  int64_t block;     // coordinates of a block; the last one may have fewer
  double* energies;  // one per block
} gradwire_norms;

GRADWIRE_API int gradwire_block_energies(const gradwire_norms* args);

GRADWIRE_NAMESPACE_BEGIN

// A block's coordinates are squared and summed in float32 by tiles, tiles are added in float64: tile t to the
// partial sum t mod PARTIAL_SUMS.
enum { TILE = 256, PARTIAL_SUMS = 32 };

GRADWIRE_HD int64_t items_block_energies(const gradwire_norms& args) {
  return divide_up(args.numel, args.block);
}
GRADWIRE_HD int check_block_energies(const gradwire_norms& args) {
  const bool there = args.numel == 0 || (args.x && args.energies);
  return args.numel >= 0 && args.block >= 1 && args.block < (int64_t)1 << 48 && there ? GRADWIRE_OK
                                                                                      : GRADWIRE_BAD_ARGUMENT;
}

// The sum of squares of a tile, from that of the coordinates times normalizer_of(field): exact.
GRADWIRE_HD double tile_energy(float squares, int32_t field) {
  const double factor = (double)power_of_two(field - 1);  // 1 / normalizer
  return mul(mul((double)squares, factor), factor);
}
// What is not finite counts as infinite.
GRADWIRE_HD double block_energy(double sum) { return sum == sum ? sum : (double)float_of(INFINITE); }

GRADWIRE_NAMESPACE_END
