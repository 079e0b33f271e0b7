// What all workers derive from the reduced statistics: bit widths of super-groups within the capacity of
// their chunk, the order in which messages hold them, and their means (DynamiQ §3.2).
// codecs/dynamiq/allocation.py and arrangement.py define it. Super-group i · chunks + c is the
// i-th of chunk c.
#pragma once
#include "gradwire/abi.h"
#include "gradwire/statistics.h"

enum { GRADWIRE_INCREMENTS = 7, GRADWIRE_LEVELS = 8 };  // at most: there are eight widths

// Where a chunk is long, up to so many parts of it are counted at once, a power of two: one for so many
// super-groups.
enum { GRADWIRE_PLAN_PART = 1024, GRADWIRE_PLAN_PARTS = 8 };
// Words of the workspace for each part of a chunk, beside one for each super-group.
enum { GRADWIRE_PLAN_PART_WORDS = 1384 };

typedef struct {
  gradwire_call call;
  const uint16_t*
      mean_sum;          // bfloat16, total: the sum of the means that were sent; null: none were, all are 0
  const uint16_t* norm;  // bfloat16, total; may be null where there are no increments
  const int64_t* spare;  // chunks: bytes that increments may take, >= 0
  const int32_t*
      thresholds;   // increments · 0x7f81: by the pattern of the first increment's threshold, all increments'
  int64_t total;    // super-groups there are
  int64_t chunks;   //
  int32_t workers;  //
  int32_t increments;       //
  int32_t widths[8];        // before the first increment, after it, …
  int32_t* order;           // total: chunk after chunk, by width from the largest on, then by index
  float* mean;              // total: the workers' mean, in that order; NaN where statistics are not finite
  int32_t* counts;          // chunks · 17: super-groups of each width
  int32_t* workspace;       // what it holds before and after a call has no meaning
  int64_t workspace_words;  //
} gradwire_plan;

GRADWIRE_API int gradwire_dynamiq_plan(const gradwire_plan* args);

GRADWIRE_NAMESPACE_BEGIN

enum { INFINITE_NORM = 0x7f80, NORMS = INFINITE_NORM + 1, NORM_BITS = 15, COUNTED_WIDTHS = 17 };

GRADWIRE_HD int64_t items_dynamiq_plan(const gradwire_plan& args) { return args.chunks; }

// Super-groups of the longest chunk, of any chunk, and of all chunks before it.
GRADWIRE_HD int64_t length_of(const gradwire_plan& args) { return divide_up(args.total, args.chunks); }
GRADWIRE_HD int64_t super_groups_of(const gradwire_plan& args, int64_t chunk) {
  return args.total / args.chunks + (chunk < args.total % args.chunks);
}
GRADWIRE_HD int64_t super_groups_before(const gradwire_plan& args, int64_t chunk) {
  return args.total / args.chunks * chunk + smaller(chunk, args.total % args.chunks);
}

// At most; a device may have room for fewer.
GRADWIRE_HD int64_t parts_of_chunk(const gradwire_plan& args) {
  int64_t parts = 1;
  while (parts < GRADWIRE_PLAN_PARTS && parts * GRADWIRE_PLAN_PART < length_of(args)) parts *= 2;
  return parts;
}
GRADWIRE_HD int64_t words_of_plan(const gradwire_plan& args) {
  return args.chunks * (length_of(args) + parts_of_chunk(args) * GRADWIRE_PLAN_PART_WORDS);
}

GRADWIRE_HD int check_dynamiq_plan(const gradwire_plan& args) {
  const bool in_range = args.total >= 0 && args.total <= INT32_MAX && args.chunks >= 1 && args.workers >= 1 &&
                        args.increments >= 0 && args.increments <= GRADWIRE_INCREMENTS;
  if (!in_range) return GRADWIRE_BAD_ARGUMENT;
  for (int level = 0; level <= args.increments; ++level)
    if (args.widths[level] < 1 || args.widths[level] >= COUNTED_WIDTHS) return GRADWIRE_BAD_ARGUMENT;
  const bool chooses = !args.increments || (args.norm && args.spare && args.thresholds);
  const bool there = chooses && args.order && args.mean && args.workspace;
  const bool fits = args.workspace_words >= words_of_plan(args);
  return args.counts && ((there && fits) || args.total == 0) ? GRADWIRE_OK : GRADWIRE_BAD_ARGUMENT;
}

// ---- What the reduced statistics say of a super-group: codecs/dynamiq/arrangement.py

GRADWIRE_HD bool is_finite_bfloat16(uint16_t bits) { return (bits & 0x7f80) != 0x7f80; }
GRADWIRE_HD bool is_finite_super_group(const gradwire_plan& args, int64_t super_group) {
  return (!args.mean_sum || is_finite_bfloat16(args.mean_sum[super_group])) &&
         (!args.norm || is_finite_bfloat16(args.norm[super_group]));
}
// The norm's bits, 0 where one of the statistics is not finite.
GRADWIRE_HD int32_t pattern_of(const gradwire_plan& args, int64_t super_group) {
  return is_finite_super_group(args, super_group) ? args.norm[super_group] : 0;
}
// The mean over the workers, NaN where one of the statistics is not finite.
GRADWIRE_HD float planned_mean(const gradwire_plan& args, int64_t super_group) {
  const float sum = args.mean_sum ? from_bfloat16(args.mean_sum[super_group]) : 0.0f;
  const float mean = mul(div(sum, (float)args.workers), (float)(1 << TRAVEL_EXPONENT));
  return is_finite_super_group(args, super_group) ? mean : float_of(NOT_A_NUMBER);
}

// ---- Which increments a super-group gets: codecs/dynamiq/allocation.py

// The threshold of an increment where the first one's is `first`.
GRADWIRE_HD int32_t threshold_of(const gradwire_plan& args, int increment, int32_t first) {
  return args.thresholds[increment * NORMS + first];
}
// Bytes that an increment adds to the codes of a super-group.
GRADWIRE_HD int64_t bytes_of(const gradwire_plan& args, int increment) {
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

// ---- Where it goes: codecs/dynamiq/arrangement.py

GRADWIRE_HD void write_planned(const gradwire_plan& args, int64_t place, int64_t super_group) {
  args.order[place] = (int32_t)super_group;
  args.mean[place] = planned_mean(args, super_group);
}
// How many super-groups of each width there are, from how many have got so many increments.
GRADWIRE_HD int32_t count_of_width(const gradwire_plan& args, int width, const uint32_t* of_level) {
  uint32_t count = 0;
  for (int level = 0; level <= args.increments; ++level)
    count += args.widths[level] == width ? of_level[level] : 0u;
  return (int32_t)count;
}

GRADWIRE_NAMESPACE_END
