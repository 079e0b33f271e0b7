#include "gradwire/allocation.h"

#include "kernel.h"

using namespace gradwire;

namespace {

enum { STRIP = 256 };

struct Chunk {
  const gradwire_allocation& args;
  const int32_t* patterns;

  int64_t reaching(int32_t threshold) const {
    const int32_t length = (int32_t)args.length;
    int32_t count = 0;
#pragma omp simd reduction(+ : count)
    for (int32_t i = 0; i < length; ++i) count += patterns[i] >= threshold;
    return count;
  }
  // Bytes of all increments deserved where the first one's threshold is `first`.
  int64_t cost(int32_t first) const {
    int64_t sum = 0;
    for (int increment = 0; increment < args.increments; ++increment)
      sum += bytes_of(args, increment) * reaching(threshold_of(args, increment, first));
    return sum;
  }
};

// Which patterns get an increment: those from `threshold` on, and the first `granted` ones from `tied` on.
struct Rule {
  int32_t threshold, tied;
  int64_t granted;
};

// The smallest threshold of the first increment for which all increments fit, and what is left after it.
void find_rules(const Chunk& chunk, int64_t spare, Rule* rules) {
  const gradwire_allocation& args = chunk.args;
  int32_t low = 0, high = INFINITE_NORM;
  for (int step = 0; step < NORM_BITS; ++step) {
    const int32_t middle = (low + high + 1) / 2;
    (chunk.cost(middle) <= spare ? high : low) = middle;
  }
  spare -= chunk.cost(high);
  for (int increment = 0; increment < args.increments; ++increment) {
    const int32_t threshold = threshold_of(args, increment, high);
    const int32_t tied = low ? threshold_of(args, increment, low) : threshold;
    const int64_t raised = chunk.reaching(tied) - chunk.reaching(threshold);
    const int64_t granted = grant(spare, raised, bytes_of(args, increment));
    rules[increment] = granted == raised ? Rule{tied, tied, 0} : Rule{threshold, tied, granted};
  }
}

void choose(const gradwire_allocation& args, const int32_t* patterns, int64_t spare, int64_t* chosen) {
  Rule rules[GRADWIRE_INCREMENTS];
  find_rules(Chunk{args, patterns}, spare, rules);
  for (int64_t first = 0; first < args.length; first += STRIP) {
    const int length = (int)smaller(args.length - first, (int64_t)STRIP);
    alignas(64) int32_t taken[STRIP] = {};
    for (int increment = 0; increment < args.increments; ++increment) {
      Rule& rule = rules[increment];
      const int32_t threshold = rule.threshold;
      GRADWIRE_SIMD
      for (int k = 0; k < length; ++k) taken[k] += patterns[first + k] >= threshold;
      for (int k = 0; k < length && rule.granted; ++k)
        if (patterns[first + k] >= rule.tied && patterns[first + k] < threshold) {
          ++taken[k];
          --rule.granted;
        }
    }
    for (int k = 0; k < length; ++k) chosen[first + k] = args.widths[taken[k]];
  }
}

}  // namespace

GRADWIRE_CPU_KERNEL(width_allocation, gradwire_allocation,
                    divide_up(1 << 14, larger(args->length, (int64_t)1))) {
  for (int64_t chunk = begin; chunk < end; ++chunk)
    choose(args, args.patterns + chunk * args.length, args.spare[chunk], args.chosen + chunk * args.length);
}
