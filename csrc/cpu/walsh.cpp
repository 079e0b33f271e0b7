#include "gradwire/walsh.h"

#include "rotation.h"

using namespace gradwire;

namespace {

// Whole units are transformed where they are.
struct Rows {
  static constexpr bool IN_PLACE = true;
  explicit Rows(const gradwire_hadamard& args)
      : blocks(blocks_of(args.numel / UNIT * UNIT, args.length)), between(args.rows) {}
  void load(int64_t, int, float*) const {}
  void finish(int, int64_t, int64_t, int, const float*) const {}

  Blocks blocks;
  float* between;
};

// What short rows leave over.
void transform_rest(const gradwire_hadamard& args) {
  float* rest = args.rows + args.numel / UNIT * UNIT;
  const size_t bytes = args.numel % UNIT * sizeof(float);
  const int log = highest_bit((uint64_t)args.length);
  float values[UNIT] = {};
  memcpy(values, rest, bytes);
  transform_blocks(values, values, UNIT, log, true, scale_of(log));
  memcpy(rest, values, bytes);
}

GRADWIRE_HD int64_t items_hadamard_transform_near(const gradwire_hadamard& args) {
  return divide_up(args.numel, REGION);
}
GRADWIRE_HD int64_t items_hadamard_transform_far(const gradwire_hadamard& args) {
  return far_regions_of(Rows(args).blocks);
}

}  // namespace

GRADWIRE_CPU_PASS(hadamard_transform, near, gradwire_hadamard) {
  rotate_near(Rows(args), begin, end);
  if (end == items_hadamard_transform_near(args) && args.numel % UNIT) transform_rest(args);
}
GRADWIRE_CPU_PASS(hadamard_transform, far, gradwire_hadamard) { rotate_far(Rows(args), begin, end); }
GRADWIRE_CPU_PASSES(hadamard_transform, gradwire_hadamard, near, 1, far, 2)
