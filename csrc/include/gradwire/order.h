// In which order messages hold super-groups (DynamiQ §3.2); codecs/dynamiq/arrangement.py defines it.
#pragma once
#include "gradwire/abi.h"
#include "gradwire/arithmetic.h"

typedef struct {
  gradwire_call call;
  const int64_t* widths;  // chunks · length, of 1 … 16 bits; (c, i) is super-group i · chunks + c
  int64_t chunks;         //
  int64_t length;         //
  int64_t total;          // super-groups there are, in (chunks · (length - 1), chunks · length]
  int32_t* order;         // total: chunk after chunk, by width from the largest on, then by index
  int32_t* counts;        // chunks · 17: super-groups of each width
} gradwire_order;

GRADWIRE_API int gradwire_message_order(const gradwire_order* args);

GRADWIRE_NAMESPACE_BEGIN

// What a width is taken modulo, so that no look-up leaves its table.
enum { WIDTHS = 32, COUNTED_WIDTHS = 17 };

GRADWIRE_HD int64_t items_message_order(const gradwire_order& args) { return args.chunks; }
GRADWIRE_HD int check_message_order(const gradwire_order& args) {
  const bool in_range = args.chunks >= 0 && args.length >= 0 && args.length <= INT32_MAX &&
                        args.total <= args.chunks * args.length && args.total <= INT32_MAX &&
                        args.total > args.chunks * (args.length - 1);
  const bool there = args.counts && ((args.widths && args.order) || args.total == 0);
  return args.chunks == 0 || (in_range && there) ? GRADWIRE_OK : GRADWIRE_BAD_ARGUMENT;
}

// Super-groups of a chunk, and of all chunks before it.
GRADWIRE_HD int64_t super_groups_of(const gradwire_order& args, int64_t chunk) {
  return args.total / args.chunks + (chunk < args.total % args.chunks);
}
GRADWIRE_HD int64_t super_groups_before(const gradwire_order& args, int64_t chunk) {
  return args.total / args.chunks * chunk + smaller(chunk, args.total % args.chunks);
}

GRADWIRE_NAMESPACE_END
