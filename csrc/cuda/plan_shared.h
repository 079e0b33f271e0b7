// What a block does to one part of a chunk: the steps of plan.cu. Each of its warps has consecutive
// super-groups, and each lane the same ones in every step.
#pragma once
#include "gradwire/plan.h"
#include "launch.h"
#include "block_teams.h"

namespace gradwire_cuda {
using namespace gradwire;

constexpr int PLANNERS = 512, PLANNING_WARPS = PLANNERS / WARP;
constexpr int EXPONENTS = 256, MANTISSA_BITS = 7, COARSE = 64;
// Thresholds 128 patterns apart differ by a factor of 2 at least, hence in their exponents: what exponents
// tell of the first threshold leaves at most 130 candidates. Rounded up to whole warps.
constexpr int WINDOW = 128 + WARP;
// Super-groups of a part that shared memory has room for, and how many a lane reads at a time.
constexpr int HELD = 8192, BATCH = 4;

using Window = uint32_t[GRADWIRE_INCREMENTS][WINDOW];

// The workspace: what each part has counted, then 16 bits for every super-group, as in Shared::patterns.
struct PartCounts {
  uint32_t exponents[EXPONENTS];     // norms of each exponent
  Window between;                    // norms between a candidate's threshold and the next one's
  uint32_t levels[GRADWIRE_LEVELS];  // super-groups that get so many increments
};
static_assert(sizeof(PartCounts) == 4 * GRADWIRE_PLAN_PART_WORDS, "Python makes the workspace");

// The window: patterns low, low + 1, …
struct Candidates {
  int32_t low, count;
};

struct Shared {
  uint16_t patterns[HELD];                          // of norms, later how many increments each one gets
  uint32_t exponents[EXPONENTS + WARP];             // norms of this exponent, later of it or a larger one
  int32_t thresholds[GRADWIRE_INCREMENTS][WINDOW];  // of the candidates
  Window reaching;                      // norms between a candidate's and the next; then from it on
  Window earlier;                       // norms between a candidate's and the next, in earlier parts
  uint32_t votes[5];                    //
  int32_t chosen[GRADWIRE_INCREMENTS];  // thresholds at last
  int32_t tied, untied;                 // from one to below the other, the first `granted` are raised
  uint32_t granted;                     //
  uint32_t passed;                      // of those tied, in earlier parts
  uint32_t tied_of_warp[PLANNING_WARPS];
  uint32_t levels[GRADWIRE_LEVELS], levels_before[GRADWIRE_LEVELS];  // of the chunk, of its earlier parts
  uint32_t of_warp[PLANNING_WARPS][GRADWIRE_LEVELS];
};

// Sums of ROWS · WARP `values` from each index to the end, by one warp.
template <int ROWS>
__device__ __forceinline__ void sum_from_the_end(uint32_t* values) {
  const int lane = lane_of_thread();
  uint32_t sums[ROWS], carried = 0;
#pragma unroll
  for (int row = 0; row < ROWS; ++row) sums[row] = values[row * WARP + lane];
#pragma unroll
  for (int distance = 1; distance < WARP; distance *= 2)
#pragma unroll
    for (int row = 0; row < ROWS; ++row) {
      const uint32_t later = __shfl_sync(ALL, sums[row], (lane + distance) % WARP);
      if (lane + distance < WARP) sums[row] += later;
    }
#pragma unroll
  for (int row = ROWS - 1; row >= 0; --row) {
    const uint32_t whole = __shfl_sync(ALL, sums[row], 0);
    values[row * WARP + lane] = sums[row] + carried;
    carried += whole;
  }
}

// Adds to `votes` how many threads say yes, to be read after a barrier.
__device__ __forceinline__ void vote(uint32_t& votes, bool yes) {
  const uint32_t lanes = __ballot_sync(ALL, yes);
  if (lanes && lane_of_thread() == 0) atomicAdd(&votes, (uint32_t)__popc(lanes));
}

// The lanes of a warp whose level is `level`; three ballots say the levels of all that are `valid`.
struct LevelLanes {
  uint32_t valid, bits[3];
  __device__ __forceinline__ LevelLanes(int level, bool there) {
    valid = __ballot_sync(ALL, there);
#pragma unroll
    for (int bit = 0; bit < 3; ++bit) bits[bit] = __ballot_sync(ALL, level >> bit & 1);
  }
  __device__ __forceinline__ uint32_t of(int level) const {
    uint32_t lanes = valid;
#pragma unroll
    for (int bit = 0; bit < 3; ++bit) lanes &= level >> bit & 1 ? bits[bit] : ~bits[bit];
    return lanes;
  }
};

template <Team TEAM>
class Part {
 public:
  __device__ __forceinline__ Part(const gradwire_plan& args, int chunk, int part, int parts, Shared& shared)
      : args_(args), chunk_(chunk), part_(part), parts_(parts), shared_(shared) {
    PartCounts* const all_counts = (PartCounts*)args.workspace;
    counts_ = all_counts + (int64_t)chunk * parts;
    const int64_t count = super_groups_of(args, chunk),
                  each = divide_up(divide_up(count, (int64_t)parts), (int64_t)WARP) * WARP;
    const int32_t begin = (int32_t)smaller(part * each, count), end = (int32_t)smaller(begin + each, count);
    const int32_t of_warp = (end - begin + PLANNERS - 1) / PLANNERS * WARP;
    first_ = smaller(begin + (int32_t)threadIdx.x / WARP * of_warp, end);
    end_ = smaller(first_ + of_warp, end);
    uint16_t* const kept =
        (uint16_t*)(all_counts + (int64_t)args.chunks * parts) + chunk * length_of(args) + begin;
    patterns_ = (end - begin <= HELD ? shared.patterns : kept) - begin;
  }

  // The part's norms by exponent.
  __device__ __forceinline__ void read() const {
    for (int i = threadIdx.x; i < EXPONENTS + WARP; i += PLANNERS) shared_.exponents[i] = 0;
    if (threadIdx.x < 5) shared_.votes[threadIdx.x] = 0;
    __syncthreads();
    for (int32_t first = first_; first < end_; first += BATCH * WARP) {
      int32_t patterns[BATCH];
#pragma unroll
      for (int k = 0; k < BATCH; ++k) {
        const int32_t i = first + k * WARP + lane_of_thread();
        patterns[k] = i < end_ ? pattern_of(args_, super_group_of(i)) : -1;
      }
#pragma unroll
      for (int k = 0; k < BATCH; ++k) {
        if (patterns[k] < 0) continue;
        patterns_[first + k * WARP + lane_of_thread()] = (uint16_t)patterns[k];
        atomicAdd(&shared_.exponents[(uint32_t)patterns[k] >> MANTISSA_BITS & (EXPONENTS - 1)], 1u);
      }
    }
    __syncthreads();
  }
  // The chunk's, and those from each exponent on.
  __device__ __forceinline__ void share_exponents() const {
    const int thread = threadIdx.x;
    if (TEAM != Team::ALONE) {
      if (thread < EXPONENTS) counts_[part_].exponents[thread] = shared_.exponents[thread];
      sync_team<TEAM>();
      if (thread < EXPONENTS) {
        uint32_t sum = 0;
#pragma unroll 8
        for (int part = 0; part < parts_; ++part) sum += counts_[part].exponents[thread];
        shared_.exponents[thread] = sum;
      }
      __syncthreads();
    }
    if (thread < WARP) sum_from_the_end<EXPONENTS / WARP>(shared_.exponents);
    __syncthreads();
  }

  // From the largest threshold of the first increment that is known to be too small, or 0, to the smallest
  // that is known to do: to within COARSE by all threads, then by COARSE threads each.
  __device__ __forceinline__ Candidates find_window() const {
    const int64_t spare = args_.spare[chunk_];
    const int thread = threadIdx.x;
    const int32_t coarse = thread * COARSE;
    const Bounds coarsely = bounds_at(smaller(coarse, (int32_t)INFINITE_NORM));
    vote(shared_.votes[0], coarse <= INFINITE_NORM && coarsely.least > spare);
    vote(shared_.votes[1], coarse <= INFINITE_NORM && coarsely.most > spare);
    __syncthreads();
    const int32_t low_from = larger((int32_t)shared_.votes[0] - 1, 0) * COARSE;
    const int32_t high_from = larger((int32_t)shared_.votes[1] - 1, 0) * COARSE;
    const bool seeks_low = thread < COARSE, seeks_high = !seeks_low && thread < 2 * COARSE;
    const int32_t fine = seeks_low ? low_from + thread : high_from + thread - COARSE;
    Bounds finely = {};
    if (seeks_low || seeks_high) finely = bounds_at(smaller(fine, (int32_t)INFINITE_NORM));
    vote(shared_.votes[2], seeks_low && finely.least > spare);
    vote(shared_.votes[3], seeks_high && finely.most > spare);
    __syncthreads();
    const int32_t low =
        smaller(larger(low_from + (int32_t)shared_.votes[2] - 1, 0), (int32_t)INFINITE_NORM - 1);
    const int32_t high = smaller(larger(high_from + (int32_t)shared_.votes[3], low + 1),
                                 smaller(low + WINDOW - 1, (int32_t)INFINITE_NORM));
    return {low, high - low + 1};
  }

  // shared_.reaching[u][j]: how many of the part's norms lie between increment u's thresholds for the
  // candidates j and j + 1, of the last candidate from it on.
  __device__ __forceinline__ void count_window(const Candidates& candidates) const {
    for (int i = threadIdx.x; i < args_.increments * WINDOW; i += PLANNERS) {
      const int increment = i / WINDOW, candidate = i % WINDOW;
      shared_.reaching[increment][candidate] = shared_.earlier[increment][candidate] = 0;
      if (candidate < candidates.count)
        shared_.thresholds[increment][candidate] = threshold_of(args_, increment, candidates.low + candidate);
    }
    __syncthreads();
    const int last = candidates.count - 1;
    for (int increment = 0; increment < args_.increments; ++increment) {
      const int32_t* thresholds = shared_.thresholds[increment];
      const int32_t smallest = thresholds[0], largest = thresholds[last];
      uint32_t beyond = 0;
#pragma unroll 2
      for (int32_t first = first_; first < end_; first += WARP) {
        const int32_t pattern = at(first);
        beyond += __popc(__ballot_sync(ALL, pattern >= largest));
        if (pattern >= smallest && pattern < largest)
          atomicAdd(&shared_.reaching[increment][last_reached(thresholds, last, pattern)], 1u);
      }
      if (beyond && lane_of_thread() == 0) atomicAdd(&shared_.reaching[increment][last], beyond);
    }
    __syncthreads();
  }
  // The chunk's, and those of its earlier parts.
  __device__ __forceinline__ void share_window() const {
    if (TEAM == Team::ALONE) return;
    const int count = args_.increments * WINDOW;
    uint32_t *counted = &shared_.reaching[0][0], *earlier = &shared_.earlier[0][0];
    for (int i = threadIdx.x; i < count; i += PLANNERS) (&counts_[part_].between[0][0])[i] = counted[i];
    sync_team<TEAM>();
    for (int i = threadIdx.x; i < count; i += PLANNERS) {
      uint32_t sum = 0, before = 0;
#pragma unroll 8
      for (int part = 0; part < parts_; ++part) {
        const uint32_t there = (&counts_[part].between[0][0])[i];
        sum += there;
        before += part < part_ ? there : 0u;
      }
      counted[i] = sum;
      earlier[i] = before;
    }
    __syncthreads();
  }

  // The first candidate for which all increments fit, and what is left after it.
  __device__ __forceinline__ void find_thresholds(const Candidates& candidates) const {
    const int64_t spare = args_.spare[chunk_];
    const int thread = threadIdx.x, warp = thread / WARP;
    if (warp < args_.increments) sum_from_the_end<WINDOW / WARP>(shared_.reaching[warp]);
    __syncthreads();
    vote(shared_.votes[4], thread < candidates.count && cost(thread) > spare);
    __syncthreads();
    if (thread == 0) {
      const int found = smaller(larger((int32_t)shared_.votes[4], 1), candidates.count - 1);
      const int next = candidates.low + found > 1 ? found - 1 : found;  // a threshold of 0 would raise zeros
      int64_t left = spare - cost(found);
      shared_.granted = shared_.passed = 0;
      for (int increment = 0; increment < args_.increments; ++increment) {
        const int32_t threshold = shared_.thresholds[increment][found],
                      tied = shared_.thresholds[increment][next];
        const int64_t raised = shared_.reaching[increment][next] - shared_.reaching[increment][found];
        const int64_t granted = grant(left, raised, bytes_of(args_, increment));
        shared_.chosen[increment] = granted == raised ? tied : threshold;
        if (granted > 0 && granted < raised) {
          shared_.tied = tied;
          shared_.untied = threshold;
          shared_.granted = (uint32_t)granted;
          shared_.passed = shared_.earlier[increment][next];
        }
      }
    }
    __syncthreads();
  }

  // How many increments each super-group gets, and how many of every warp's get so many.
  __device__ __forceinline__ void choose_levels() const {
    const int warp = (int)threadIdx.x / WARP, lane = lane_of_thread(), own = lane % GRADWIRE_LEVELS;
    const uint32_t granted = shared_.granted;
    uint32_t passed = shared_.passed, count = 0;  // of those tied, before the warp's next; of level `own`
    const bool some = passed < granted;
    if (some) {
      uint32_t tied = 0;
      for (int32_t first = first_; first < end_; first += WARP) tied += __popc(tied_lanes(at(first)));
      if (lane == 0) shared_.tied_of_warp[warp] = tied;
      __syncthreads();
      for (int other = 0; other < warp; ++other) passed += shared_.tied_of_warp[other];
    }
    for (int32_t first = first_; first < end_; first += WARP) {
      const int32_t pattern = at(first);
      int taken = 0;
#pragma unroll
      for (int increment = 0; increment < GRADWIRE_INCREMENTS; ++increment)
        if (increment < args_.increments) taken += pattern >= shared_.chosen[increment];
      if (some) {
        const uint32_t lanes = tied_lanes(pattern), own_lane = 1u << lane;
        taken += (lanes & own_lane) && passed + __popc(lanes & (own_lane - 1)) < granted;
        passed += __popc(lanes);
      }
      if (first + lane < end_) patterns_[first + lane] = (uint16_t)taken;
      count += __popc(LevelLanes(taken, first + lane < end_).of(own));
    }
    if (lane < GRADWIRE_LEVELS) shared_.of_warp[warp][lane] = count;
    __syncthreads();
  }
  // What all parts, and those before this one, have at each level.
  __device__ __forceinline__ void share_levels() const {
    const int level = threadIdx.x;
    uint32_t all = 0, before = 0;
    if (level < GRADWIRE_LEVELS) {
#pragma unroll
      for (int warp = 0; warp < PLANNING_WARPS; ++warp) all += shared_.of_warp[warp][level];
    }
    if (TEAM != Team::ALONE) {
      if (level < GRADWIRE_LEVELS) counts_[part_].levels[level] = all;
      sync_team<TEAM>();
      all = 0;
      if (level < GRADWIRE_LEVELS) {
#pragma unroll 8
        for (int part = 0; part < parts_; ++part) {
          const uint32_t there = counts_[part].levels[level];
          all += there;
          before += part < part_ ? there : 0u;
        }
      }
    }
    if (level < GRADWIRE_LEVELS) {
      shared_.levels[level] = all;
      shared_.levels_before[level] = before;
    }
    __syncthreads();
  }

  // Each warp puts its super-groups where those before them end.
  __device__ __forceinline__ void place() const {
    const int thread = threadIdx.x, warp = thread / WARP, lane = lane_of_thread();
    const int own = lane % GRADWIRE_LEVELS;
    if (part_ == 0 && thread < COUNTED_WIDTHS)
      args_.counts[chunk_ * COUNTED_WIDTHS + thread] = count_of_width(args_, thread, shared_.levels);
    uint32_t next = (uint32_t)super_groups_before(args_, chunk_) + shared_.levels_before[own];
    for (int level = own + 1; level < GRADWIRE_LEVELS; ++level) next += shared_.levels[level];
    for (int other = 0; other < warp; ++other) next += shared_.of_warp[other][own];
#pragma unroll 2
    for (int32_t first = first_; first < end_; first += WARP) {
      const bool there = first + lane < end_;
      const int level = there ? patterns_[first + lane] : 0;
      const LevelLanes lanes(level, there);
      const uint32_t at = __shfl_sync(ALL, next, level) + __popc(lanes.of(level) & ((1u << lane) - 1));
      if (there) write_planned(args_, at, super_group_of(first + lane));
      next += __popc(lanes.of(own));
    }
  }

 private:
  __device__ __forceinline__ int64_t super_group_of(int32_t index) const {
    return index * args_.chunks + chunk_;
  }
  // The pattern of the lane's super-group of those from `first` on, −1 beyond the warp's last.
  __device__ __forceinline__ int32_t at(int32_t first) const {
    const int32_t i = first + lane_of_thread();
    return i < end_ ? (int32_t)patterns_[i] : -1;
  }
  __device__ __forceinline__ uint32_t tied_lanes(int32_t pattern) const {
    return __ballot_sync(ALL, pattern >= shared_.tied && pattern < shared_.untied);
  }

  // Bytes that all increments take at least and at most where the first one's threshold is `first`.
  struct Bounds {
    int64_t least, most;
  };
  __device__ __forceinline__ Bounds bounds_at(int32_t first) const {
    int32_t exponents[GRADWIRE_INCREMENTS];
#pragma unroll
    for (int increment = 0; increment < GRADWIRE_INCREMENTS; ++increment)
      if (increment < args_.increments)
        exponents[increment] = threshold_of(args_, increment, first) >> MANTISSA_BITS;
    Bounds sums = {};
#pragma unroll
    for (int increment = 0; increment < GRADWIRE_INCREMENTS; ++increment)
      if (increment < args_.increments) {
        sums.least += bytes_of(args_, increment) * shared_.exponents[exponents[increment] + 1];
        sums.most += bytes_of(args_, increment) * shared_.exponents[exponents[increment]];
      }
    return sums;
  }

  static __device__ __forceinline__ int last_reached(const int32_t* thresholds, int last, int32_t pattern) {
    int reached = 0, missed = last;
    while (missed - reached > 1) {
      const int middle = (reached + missed) / 2;
      (pattern >= thresholds[middle] ? reached : missed) = middle;
    }
    return reached;
  }

  __device__ __forceinline__ int64_t cost(int candidate) const {
    int64_t sum = 0;
    for (int increment = 0; increment < args_.increments; ++increment)
      sum += bytes_of(args_, increment) * shared_.reaching[increment][candidate];
    return sum;
  }

  const gradwire_plan& args_;
  int chunk_, part_, parts_;
  Shared& shared_;
  PartCounts* counts_;   // of the chunk's parts
  uint16_t* patterns_;   // of the chunk: those of this part are there
  int32_t first_, end_;  // of the warp's super-groups in the chunk
};

}  // namespace gradwire_cuda
