// Bit widths of super-groups within the capacity of their chunk (DynamiQ §3.2); codecs/dynamiq/allocation.py
// defines them.
#pragma once
#include "gradwire/abi.h"
#include "gradwire/statistics.h"

enum { GRADWIRE_UPGRADES = 7 };  // at most: there are eight widths

typedef struct {
  gradwire_call call;
  const int32_t* patterns;    // chunks · length: the super-groups' norms, as the bits of finite bfloat16 >= 0
  const int64_t* spare;       // chunks: bytes that upgrades may take, >= 0
  const int32_t* thresholds;  // upgrades · 0x7f81: by the pattern of the first upgrade's threshold, all upgrades'
  int64_t chunks;             //
  int64_t length;             // super-groups of a chunk
  int32_t upgrades;           //
  int32_t widths[GRADWIRE_UPGRADES + 1];  // before the first upgrade, after it, …
  int64_t* chosen;                        // chunks · length
} gradwire_allocation;

GRADWIRE_API int gradwire_width_allocation(const gradwire_allocation* args);

GRADWIRE_NAMESPACE_BEGIN

enum { INFINITE_NORM = 0x7f80, NORMS = INFINITE_NORM + 1, NORM_BITS = 15 };

GRADWIRE_HD int64_t items_width_allocation(const gradwire_allocation& args) {
  return args.length ? args.chunks : 0;
}
GRADWIRE_HD int check_width_allocation(const gradwire_allocation& args) {
  const bool in_range = args.chunks >= 0 && args.length >= 0 && args.length <= INT32_MAX && args.upgrades >= 1 &&
                        args.upgrades <= GRADWIRE_UPGRADES;
  const bool there = args.patterns && args.spare && args.thresholds && args.chosen;
  return in_range && (there || items_width_allocation(args) == 0) ? GRADWIRE_OK : GRADWIRE_BAD_ARGUMENT;
}

// The threshold of an upgrade where the first one's is `first`.
GRADWIRE_HD int32_t threshold_of(const gradwire_allocation& args, int upgrade, int32_t first) {
  return args.thresholds[upgrade * NORMS + first];
}
// Bytes that an upgrade adds to the codes of a super-group.
GRADWIRE_HD int64_t bytes_of(const gradwire_allocation& args, int upgrade) {
  return SUPER_GROUP / 8 * (args.widths[upgrade + 1] - args.widths[upgrade]);
}

// What the capacity leaves goes to super-groups that one more step of the threshold would raise: first upgrades
// before later ones, then by index. Tells how many of the `raised` ones get this upgrade, and takes their bytes from
// `spare`; to be asked for one upgrade after another.
GRADWIRE_HD int64_t grant(int64_t& spare, int64_t raised, int64_t bytes) {
  const int64_t granted = smaller(raised, spare / bytes);
  spare = granted < raised ? 0 : spare - granted * bytes;
  return granted;
}

GRADWIRE_NAMESPACE_END
