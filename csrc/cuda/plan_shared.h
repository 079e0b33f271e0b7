// What a block does to one part of a chunk: the steps of plan.cu.
#pragma once
#include "gradwire/plan.h"
#include "launch.h"

namespace gradwire_cuda {
using namespace gradwire;

constexpr int PLANNERS = 512, PLANNING_WARPS = PLANNERS / WARP;
constexpr int EXPONENTS = 256, MANTISSA_BITS = 7, COARSE = 64;
// Thresholds 128 patterns apart differ by a factor of 2 at least, hence in their exponents: what exponents
// tell of the first threshold leaves at most 130 candidates. Rounded up to whole warps.
constexpr int WINDOW = 128 + WARP;

using Window = uint32_t[GRADWIRE_INCREMENTS][WINDOW];

// The workspace: sums over each chunk's parts, what parts have counted, and every super-group's pattern,
// which later is how many increments it gets.
struct ChunkCounts {
  uint32_t exponents[EXPONENTS];  // norms of each exponent
  int32_t low, candidates;        // the window: patterns low, low + 1, …
  int32_t unused[6];
  Window between;  // norms between a candidate's threshold and the next one's
};
struct PartCounts {
  Window between;
  uint32_t levels[GRADWIRE_LEVELS];  // super-groups that get so many increments
};
static_assert(sizeof(ChunkCounts) == 4 * GRADWIRE_PLAN_CHUNK_WORDS, "Python makes the workspace");
static_assert(sizeof(PartCounts) == 4 * GRADWIRE_PLAN_PART_WORDS, "Python makes the workspace");

struct Shared {
  uint32_t exponents[EXPONENTS + 1];                // norms of this exponent, later of it or a larger one
  int32_t thresholds[GRADWIRE_INCREMENTS][WINDOW];  // of the candidates
  Window reaching;                      // norms between a candidate's and the next; then from it on
  int32_t low, candidates;              // the window
  uint32_t votes[4];                    //
  int32_t chosen[GRADWIRE_INCREMENTS];  // thresholds at last
  int32_t tied, untied;                 // from one to below the other, the first `granted` are raised:
  int32_t tied_increment, tied_place;   // this increment's norms from this candidate to the next
  uint32_t granted;                     //
  uint32_t passed;                      // of those tied, in earlier parts
  uint32_t tied_before[2][PLANNING_WARPS];
  uint32_t levels[GRADWIRE_LEVELS], levels_before[GRADWIRE_LEVELS];  // of the chunk, of its earlier parts
  uint32_t of_warp[PLANNING_WARPS][GRADWIRE_LEVELS];
};

// Sums of `values` from each index to the end; `count` is a multiple of WARP. By one warp.
__device__ __forceinline__ void sum_from_the_end(uint32_t* values, int count) {
  const int lane = lane_of_thread();
  uint32_t carried = 0;
  for (int first = count - WARP; first >= 0; first -= WARP) {
    uint32_t sum = values[first + lane];
#pragma unroll
    for (int distance = 1; distance < WARP; distance *= 2) {
      const uint32_t later = __shfl_sync(ALL, sum, (lane + distance) % WARP);
      if (lane + distance < WARP) sum += later;
    }
    sum += carried;
    values[first + lane] = sum;
    carried = __shfl_sync(ALL, sum, 0);
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

class Part {
 public:
  __device__ __forceinline__ Part(const gradwire_plan& args, int64_t chunk, int64_t part, int64_t parts,
                                  Shared& shared)
      : args_(args), chunk_(chunk), part_(part), parts_(parts), shared_(shared) {
    ChunkCounts* all_sums = (ChunkCounts*)args.workspace;
    PartCounts* all_counts = (PartCounts*)(all_sums + args.chunks);
    sums_ = all_sums + chunk;
    counts_ = all_counts + chunk * parts;
    patterns_ = (int32_t*)(all_counts + args.chunks * parts) + chunk * length_of(args);
    const int64_t count = super_groups_of(args, chunk),
                  each = divide_up(divide_up(count, parts), WARP) * WARP;
    begin_ = (int32_t)smaller(part * each, count);
    end_ = (int32_t)smaller(begin_ + each, count);
  }

  // Reads the norms into the workspace.
  __device__ __forceinline__ void count_exponents() const {
    for (int i = threadIdx.x; i <= EXPONENTS; i += PLANNERS) shared_.exponents[i] = 0;
    __syncthreads();
#pragma unroll 4
    for (int32_t i = begin_ + threadIdx.x; i < end_; i += PLANNERS) {
      const int32_t pattern = pattern_of(args_, super_group_of(i));
      patterns_[i] = pattern;
      atomicAdd(&shared_.exponents[(uint32_t)pattern >> MANTISSA_BITS & (EXPONENTS - 1)], 1u);
    }
    __syncthreads();
  }
  __device__ __forceinline__ void add_exponents() const {
    for (int i = threadIdx.x; i < EXPONENTS; i += PLANNERS)
      if (shared_.exponents[i]) atomicAdd(&sums_->exponents[i], shared_.exponents[i]);
  }
  __device__ __forceinline__ void read_exponents() const {
    for (int i = threadIdx.x; i <= EXPONENTS; i += PLANNERS)
      shared_.exponents[i] = i < EXPONENTS ? sums_->exponents[i] : 0u;
    __syncthreads();
  }

  // From the largest threshold of the first increment that is known to be too small, or 0, to the smallest
  // that is known to do: to within COARSE by all threads, then by COARSE threads each.
  __device__ __forceinline__ void find_window() const {
    const int64_t spare = args_.spare[chunk_];
    const int thread = threadIdx.x;
    if (thread < 4) shared_.votes[thread] = 0;
    if (thread < WARP) sum_from_the_end(shared_.exponents, EXPONENTS);
    __syncthreads();
    const int32_t coarse = thread * COARSE;
    vote(shared_.votes[0], coarse <= INFINITE_NORM && bound(coarse, 1) > spare);
    vote(shared_.votes[1], coarse <= INFINITE_NORM && bound(coarse, 0) > spare);
    __syncthreads();
    const int32_t low_from = larger((int32_t)shared_.votes[0] - 1, 0) * COARSE;
    const int32_t high_from = larger((int32_t)shared_.votes[1] - 1, 0) * COARSE;
    const int32_t fine_low = smaller(low_from + thread, (int32_t)INFINITE_NORM);
    const int32_t fine_high = smaller(high_from + thread - COARSE, (int32_t)INFINITE_NORM);
    vote(shared_.votes[2], thread < COARSE && bound(fine_low, 1) > spare);
    vote(shared_.votes[3], thread >= COARSE && thread < 2 * COARSE && bound(fine_high, 0) > spare);
    __syncthreads();
    if (thread == 0) {
      const int32_t low =
          smaller(larger(low_from + (int32_t)shared_.votes[2] - 1, 0), (int32_t)INFINITE_NORM - 1);
      const int32_t high = smaller(larger(high_from + (int32_t)shared_.votes[3], low + 1),
                                   smaller(low + WINDOW - 1, (int32_t)INFINITE_NORM));
      shared_.low = low;
      shared_.candidates = high - low + 1;
    }
    __syncthreads();
  }

  // shared_.reaching[u][j]: how many norms lie between increment u's thresholds for the candidates j and j +
  // 1, of the last candidate from it on.
  __device__ __forceinline__ void count_window() const {
    clear_window();
    const int candidates = shared_.candidates;
    for (int increment = 0; increment < args_.increments; ++increment) {
      const int32_t* thresholds = shared_.thresholds[increment];
      const int32_t smallest = thresholds[0], largest = thresholds[candidates - 1];
      uint32_t beyond = 0;
#pragma unroll 4
      for (int32_t i = begin_ + threadIdx.x; i < end_; i += PLANNERS) {
        const int32_t pattern = patterns_[i];
        beyond += pattern >= largest;
        if (pattern >= smallest && pattern < largest)
          atomicAdd(&shared_.reaching[increment][last_reached(thresholds, candidates, pattern)], 1u);
      }
      if (beyond) atomicAdd(&shared_.reaching[increment][candidates - 1], beyond);
    }
    __syncthreads();
  }
  __device__ __forceinline__ void add_window() const {
    const uint32_t* counted = &shared_.reaching[0][0];
    uint32_t *own = &counts_[part_].between[0][0], *sum = &sums_->between[0][0];
    for (int i = threadIdx.x; i < args_.increments * WINDOW; i += PLANNERS) {
      own[i] = counted[i];
      if (counted[i]) atomicAdd(&sum[i], counted[i]);
    }
    if (part_ == 0 && threadIdx.x == 0) {
      sums_->low = shared_.low;
      sums_->candidates = shared_.candidates;
    }
  }
  __device__ __forceinline__ void read_window() const {
    if (threadIdx.x == 0) {
      shared_.low = sums_->low;
      shared_.candidates = sums_->candidates;
    }
    __syncthreads();
    clear_window();
    uint32_t* counted = &shared_.reaching[0][0];
    const uint32_t* sum = &sums_->between[0][0];
    for (int i = threadIdx.x; i < args_.increments * WINDOW; i += PLANNERS) counted[i] = sum[i];
    __syncthreads();
  }

  // The first candidate for which all increments fit, and what is left after it.
  __device__ __forceinline__ void find_thresholds() const {
    const int64_t spare = args_.spare[chunk_];
    const int thread = threadIdx.x, warp = thread / WARP, candidates = shared_.candidates;
    if (warp < args_.increments) sum_from_the_end(shared_.reaching[warp], WINDOW);
    if (thread == 0) shared_.votes[0] = 0;
    __syncthreads();
    vote(shared_.votes[0], thread < candidates && cost(thread) > spare);
    __syncthreads();
    if (thread == 0) {
      const int found = smaller(larger((int32_t)shared_.votes[0], 1), candidates - 1);
      const int next = shared_.low + found > 1 ? found - 1 : found;  // a threshold of 0 would raise zeros
      int64_t left = spare - cost(found);
      shared_.granted = shared_.passed = 0;
      shared_.tied_place = next;
      for (int increment = 0; increment < args_.increments; ++increment) {
        const int32_t threshold = shared_.thresholds[increment][found],
                      tied = shared_.thresholds[increment][next];
        const int64_t raised = shared_.reaching[increment][next] - shared_.reaching[increment][found];
        const int64_t granted = grant(left, raised, bytes_of(args_, increment));
        shared_.chosen[increment] = granted == raised ? tied : threshold;
        if (granted > 0 && granted < raised) {
          shared_.tied = tied;
          shared_.untied = threshold;
          shared_.tied_increment = increment;
          shared_.granted = (uint32_t)granted;
        }
      }
    }
    __syncthreads();
  }
  __device__ __forceinline__ void count_tied_before() const {
    if (shared_.granted) {
      const int increment = shared_.tied_increment, place = shared_.tied_place;
      uint32_t before = 0;
      for (int64_t earlier = threadIdx.x; earlier < part_; earlier += PLANNERS)
        before += counts_[earlier].between[increment][place];
      if (before) atomicAdd(&shared_.passed, before);
    }
    __syncthreads();
  }

  // How many increments each super-group gets, and how many super-groups get so many.
  __device__ __forceinline__ void write_levels() const {
    const int thread = threadIdx.x, warp = thread / WARP, lane = lane_of_thread();
    const uint32_t granted = shared_.granted;
    uint32_t passed = shared_.passed, turn = 0, count = 0;  // of those tied; of level `lane`
    if (thread < GRADWIRE_LEVELS) shared_.levels[thread] = 0;
    __syncthreads();
    for (int32_t first = begin_; first < end_; first += PLANNERS, turn ^= 1) {
      const int32_t i = first + thread;
      const int32_t pattern = i < end_ ? patterns_[i] : -1;
      int taken = 0;
      for (int increment = 0; increment < args_.increments; ++increment)
        taken += pattern >= shared_.chosen[increment];
      if (passed < granted) {
        const bool tied = pattern >= shared_.tied && pattern < shared_.untied;
        const uint32_t lanes = __ballot_sync(ALL, tied);
        if (lane == 0) shared_.tied_before[turn][warp] = __popc(lanes);
        __syncthreads();
        uint32_t before = passed + __popc(lanes & ((1u << lane) - 1));
        for (int other = 0; other < PLANNING_WARPS; ++other) {
          const uint32_t tied_there = shared_.tied_before[turn][other];
          if (other < warp) before += tied_there;
          passed += tied_there;
        }
        taken += tied && before < granted;
      }
      if (i < end_) patterns_[i] = taken;
      count += __popc(LevelLanes(taken, i < end_).of(lane % GRADWIRE_LEVELS));
    }
    if (lane < GRADWIRE_LEVELS && count) atomicAdd(&shared_.levels[lane], count);
    __syncthreads();
    if (thread < GRADWIRE_LEVELS) counts_[part_].levels[thread] = shared_.levels[thread];
    __syncthreads();
  }

  // What all parts, and those before this one, have at each level.
  __device__ __forceinline__ void count_levels_before() const {
    const int thread = threadIdx.x, level = thread % GRADWIRE_LEVELS;
    if (thread < GRADWIRE_LEVELS) shared_.levels[thread] = shared_.levels_before[thread] = 0;
    __syncthreads();
    uint32_t all = 0, before = 0;
    for (int64_t other = thread / GRADWIRE_LEVELS; other < parts_; other += PLANNERS / GRADWIRE_LEVELS) {
      const uint32_t there = counts_[other].levels[level];
      all += there;
      if (other < part_) before += there;
    }
    if (all) atomicAdd(&shared_.levels[level], all);
    if (before) atomicAdd(&shared_.levels_before[level], before);
    __syncthreads();
  }

  // Each warp counts the levels of consecutive super-groups, then puts them where those before them end.
  __device__ __forceinline__ void place() const {
    const int thread = threadIdx.x, warp = thread / WARP, lane = lane_of_thread();
    const int own = lane % GRADWIRE_LEVELS;
    if (part_ == 0 && thread < COUNTED_WIDTHS)
      args_.counts[chunk_ * COUNTED_WIDTHS + thread] = count_of_width(args_, thread, shared_.levels);
    const int32_t each = (end_ - begin_ + PLANNERS - 1) / PLANNERS * WARP;
    const int32_t begin = smaller(begin_ + warp * each, end_), end = smaller(begin + each, end_);
    uint32_t count = 0;
#pragma unroll 4
    for (int32_t first = begin; first < end; first += WARP) {
      const bool there = first + lane < end;
      count += __popc(LevelLanes(there ? patterns_[first + lane] : 0, there).of(own));
    }
    if (lane < GRADWIRE_LEVELS) shared_.of_warp[warp][lane] = count;
    __syncthreads();
    uint32_t next = (uint32_t)super_groups_before(args_, chunk_) + shared_.levels_before[own];
    for (int level = own + 1; level < GRADWIRE_LEVELS; ++level) next += shared_.levels[level];
    for (int other = 0; other < warp; ++other) next += shared_.of_warp[other][own];
#pragma unroll 2
    for (int32_t first = begin; first < end; first += WARP) {
      const bool there = first + lane < end;
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

  // Bytes that all increments take at least (beyond = 1) or at most (0) where the first one's threshold is
  // `first`.
  __device__ __forceinline__ int64_t bound(int32_t first, int beyond) const {
    int64_t sum = 0;
    for (int increment = 0; increment < args_.increments; ++increment) {
      const int32_t exponent = threshold_of(args_, increment, first) >> MANTISSA_BITS;
      sum += bytes_of(args_, increment) * shared_.exponents[exponent + beyond];
    }
    return sum;
  }

  __device__ __forceinline__ void clear_window() const {
    for (int i = threadIdx.x; i < args_.increments * WINDOW; i += PLANNERS) {
      const int increment = i / WINDOW, candidate = i % WINDOW;
      shared_.reaching[increment][candidate] = 0;
      if (candidate < shared_.candidates)
        shared_.thresholds[increment][candidate] = threshold_of(args_, increment, shared_.low + candidate);
    }
    __syncthreads();
  }

  static __device__ __forceinline__ int last_reached(const int32_t* thresholds, int candidates,
                                                     int32_t pattern) {
    int reached = 0, missed = candidates - 1;
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
  int64_t chunk_, part_, parts_;
  Shared& shared_;
  ChunkCounts* sums_;
  PartCounts* counts_;  // of the chunk's parts
  int32_t* patterns_;   // of the chunk
  int32_t begin_, end_;
};

}  // namespace gradwire_cuda
