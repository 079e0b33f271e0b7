// Bit widths of super-groups within the capacity of their chunk (DynamiQ §3.2); codecs/dynamiq/allocation.py
// defines them.
#pragma once
#include "gradwire/abi.h"
#include "gradwire/statistics.h"

enum { GRADWIRE_INCREMENTS = 7 };  // at most: there are eight widths

typedef struct {
  gradwire_call call;
  const int32_t* patterns;  // chunks · length: the super-groups' norms, as the bits of finite bfloat16 >= 0
  const int64_t* spare;     // chunks: bytes that increments may take, >= 0
  const int32_t*
      thresholds;  // increments · 0x7f81: by the pattern of the first increment's threshold, all increments'
  int64_t chunks;  //
  int64_t length;  // super-groups of a chunk
  int32_t increments;  //
  int32_t widths[8];   // before the first increment, after it, …
  int64_t* chosen;     // chunks · length
} gradwire_allocation;

GRADWIRE_API int gradwire_width_allocation(const gradwire_allocation* args);

GRADWIRE_NAMESPACE_BEGIN

enum { INFINITE_NORM = 0x7f80, NORMS = INFINITE_NORM + 1, NORM_BITS = 15 };

GRADWIRE_HD int64_t items_width_allocation(const gradwire_allocation& args) {
  return args.length ? args.chunks : 0;
}
GRADWIRE_HD int check_width_allocation(const gradwire_allocation& args) {
  const bool in_range = args.chunks >= 0 && args.length >= 0 && args.length <= INT32_MAX &&
                        args.increments >= 1 && args.increments <= GRADWIRE_INCREMENTS;
  const bool there = args.patterns && args.spare && args.thresholds && args.chosen;
  return in_range && (there || items_width_allocation(args) == 0) ? GRADWIRE_OK : GRADWIRE_BAD_ARGUMENT;
}

// The threshold of an increment where the first one's is `first`.
GRADWIRE_HD int32_t threshold_of(const gradwire_allocation& args, int increment, int32_t first) {
  return args.thresholds[increment * NORMS + first];
}
// Bytes that an increment adds to the codes of a super-group.
GRADWIRE_HD int64_t bytes_of(const gradwire_allocation& args, int increment) {
  return SUPER_GROUP / 8 * (args.widths[increment + 1] - args.widths[increment]);
}

// What the capacity leaves goes to super-groups that one more step of the threshold would raise: first
// increments before later ones, then by index. Tells how many of the `raised` ones get this increment, and
// takes their bytes from `spare`; to be asked for one increment after another.
GRADWIRE_HD int64_t grant(int64_t& spare, int64_t raised, int64_t bytes) {
  const int64_t granted = smaller(raised, spare / bytes);
  spare = granted < raised ? 0 : spare - granted * bytes;
  return granted;
}

GRADWIRE_NAMESPACE_END
