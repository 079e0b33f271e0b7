#include "gradwire/plan.h"

#include "kernel.h"

using namespace gradwire;

namespace {

enum { STRIP = 256 };

struct Chunk {
  const gradwire_plan& args;
  int64_t number;
  int32_t length;
  int32_t* patterns;  // of its super-groups; later how many increments they have got

  void read() const {
    for (int32_t i = 0; i < length; ++i) patterns[i] = pattern_of(args, i * args.chunks + number);
  }
  int64_t reaching(int32_t threshold) const {
    const int32_t* all = patterns;  // a member would be gathered
    int32_t count = 0;
#pragma omp simd reduction(+ : count)
    for (int64_t i = 0; i < length; ++i) count += all[i] >= threshold;
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
  const gradwire_plan& args = chunk.args;
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

void choose_levels(const Chunk& chunk) {
  const gradwire_plan& args = chunk.args;
  Rule rules[GRADWIRE_INCREMENTS];
  find_rules(chunk, args.spare[chunk.number], rules);
  for (int32_t first = 0; first < chunk.length; first += STRIP) {
    const int length = smaller(chunk.length - first, (int32_t)STRIP);
    int32_t* patterns = chunk.patterns + first;
    alignas(64) int32_t taken[STRIP] = {};
    for (int increment = 0; increment < args.increments; ++increment) {
      Rule& rule = rules[increment];
      const int32_t threshold = rule.threshold;
      GRADWIRE_SIMD
      for (int k = 0; k < length; ++k) taken[k] += patterns[k] >= threshold;
      for (int k = 0; k < length && rule.granted; ++k)
        if (patterns[k] >= rule.tied && patterns[k] < threshold) {
          ++taken[k];
          --rule.granted;
        }
    }
    memcpy(patterns, taken, (size_t)length * sizeof *taken);
  }
}

// A stable counting sort by levels, the largest first.
void place(const Chunk& chunk) {
  const gradwire_plan& args = chunk.args;
  uint32_t counts[GRADWIRE_LEVELS] = {};
  for (int32_t i = 0; i < chunk.length; ++i) ++counts[chunk.patterns[i] % GRADWIRE_LEVELS];
  for (int width = 0; width < COUNTED_WIDTHS; ++width)
    args.counts[chunk.number * COUNTED_WIDTHS + width] = count_of_width(args, width, counts);
  int64_t next[GRADWIRE_LEVELS], end = super_groups_before(args, chunk.number);
  for (int level = GRADWIRE_LEVELS - 1; level >= 0; end += counts[level--]) next[level] = end;
  for (int32_t i = 0; i < chunk.length; ++i)
    write_planned(args, next[chunk.patterns[i] % GRADWIRE_LEVELS]++, i * args.chunks + chunk.number);
}

}  // namespace

GRADWIRE_CPU_KERNEL(dynamiq_plan, gradwire_plan, divide_up(1 << 14, larger(length_of(*args), (int64_t)1))) {
  for (int64_t number = begin; number < end; ++number) {
    const int32_t length = (int32_t)super_groups_of(args, number);
    const Chunk chunk{args, number, length, args.workspace + number * length_of(args)};
    if (args.increments) {
      chunk.read();
      choose_levels(chunk);
    } else if (length) {
      memset(chunk.patterns, 0, (size_t)length * sizeof *chunk.patterns);
    }
    place(chunk);
  }
}
