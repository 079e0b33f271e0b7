// A chunk is one block's. It counts the norms by exponent, which leaves a window of some 128 candidates for
// the first increment's threshold; it counts, for each increment, the norms between the thresholds of
// neighbouring candidates; that gives the bytes that every candidate takes.
#include "gradwire/allocation.h"

#include "launch.h"

using namespace gradwire;
using namespace gradwire_cuda;

namespace {

constexpr int CHOOSERS = 512, PARTS = CHOOSERS / WARP;
constexpr int EXPONENTS = 256, MANTISSA_BITS = 7, COARSE = 64;
// Thresholds 128 patterns apart differ by a factor of 2 at least, hence in their exponents: what exponents
// tell of the first threshold leaves at most 130 candidates. Rounded up to whole warps.
constexpr int WINDOW = 128 + WARP;

struct Shared {
  uint32_t reaching_exponent[EXPONENTS + 1];        // norms of this exponent or a larger one
  int32_t thresholds[GRADWIRE_INCREMENTS][WINDOW];  // of the candidates
  uint32_t reaching[GRADWIRE_INCREMENTS]
                   [WINDOW];            // norms between a candidate's and the next; then from it on
  uint32_t votes[4];                    //
  int32_t chosen[GRADWIRE_INCREMENTS];  // thresholds at last
  int32_t tied, untied;                 // from one to below the other, the first `granted` are raised
  uint32_t granted;                     //
  uint32_t tied_before[2][PARTS];       //
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

struct Chunk {
  const gradwire_allocation& args;
  const int32_t* patterns;
  int64_t spare;
  Shared& shared;

  __device__ __forceinline__ void count_exponents() const {
    for (int i = threadIdx.x; i <= EXPONENTS; i += CHOOSERS) shared.reaching_exponent[i] = 0;
    if (threadIdx.x < 4) shared.votes[threadIdx.x] = 0;
    __syncthreads();
#pragma unroll 4
    for (int64_t i = threadIdx.x; i < args.length; i += CHOOSERS)
      atomicAdd(&shared.reaching_exponent[(uint32_t)patterns[i] >> MANTISSA_BITS & (EXPONENTS - 1)], 1u);
    __syncthreads();
    if (threadIdx.x < WARP) sum_from_the_end(shared.reaching_exponent, EXPONENTS);
    __syncthreads();
  }

  // Bytes that all increments take at least (beyond = 1) or at most (0) where the first one's threshold is
  // `first`.
  __device__ __forceinline__ int64_t bound(int32_t first, int beyond) const {
    int64_t sum = 0;
    for (int increment = 0; increment < args.increments; ++increment) {
      const int32_t exponent = threshold_of(args, increment, first) >> MANTISSA_BITS;
      sum += bytes_of(args, increment) * shared.reaching_exponent[exponent + beyond];
    }
    return sum;
  }

  // The largest threshold of the first increment that is known to be too small, or 0, and the smallest that
  // is known to do: to within COARSE by all threads, then by COARSE threads each.
  __device__ __forceinline__ void find_window(int32_t& low, int32_t& high) const {
    const int thread = threadIdx.x;
    const int32_t coarse = thread * COARSE;
    vote(shared.votes[0], coarse <= INFINITE_NORM && bound(coarse, 1) > spare);
    vote(shared.votes[1], coarse <= INFINITE_NORM && bound(coarse, 0) > spare);
    __syncthreads();
    const int32_t low_from = larger((int32_t)shared.votes[0] - 1, 0) * COARSE;
    const int32_t high_from = larger((int32_t)shared.votes[1] - 1, 0) * COARSE;
    const int32_t fine_low = smaller(low_from + thread, (int32_t)INFINITE_NORM);
    const int32_t fine_high = smaller(high_from + thread - COARSE, (int32_t)INFINITE_NORM);
    vote(shared.votes[2], thread < COARSE && bound(fine_low, 1) > spare);
    vote(shared.votes[3], thread >= COARSE && thread < 2 * COARSE && bound(fine_high, 0) > spare);
    __syncthreads();
    low = smaller(larger(low_from + (int32_t)shared.votes[2] - 1, 0), INFINITE_NORM - 1);
    high = larger(high_from + (int32_t)shared.votes[3], low + 1);
    high = smaller(high, smaller(low + WINDOW - 1, (int32_t)INFINITE_NORM));
  }

  // shared.reaching[u][j]: how many norms deserve increment u at candidate j, the pattern low + j.
  __device__ __forceinline__ void count_window(int32_t low, int candidates) const {
    for (int i = threadIdx.x; i < args.increments * WINDOW; i += CHOOSERS) {
      const int increment = i / WINDOW, candidate = i % WINDOW;
      shared.reaching[increment][candidate] = 0;
      if (candidate < candidates)
        shared.thresholds[increment][candidate] = threshold_of(args, increment, low + candidate);
    }
    if (threadIdx.x == 0) shared.votes[0] = 0;
    __syncthreads();
    for (int increment = 0; increment < args.increments; ++increment) {
      const int32_t* thresholds = shared.thresholds[increment];
      const int32_t smallest = thresholds[0], largest = thresholds[candidates - 1];
      uint32_t beyond = 0;
#pragma unroll 4
      for (int64_t i = threadIdx.x; i < args.length; i += CHOOSERS) {
        const int32_t pattern = patterns[i];
        beyond += pattern >= largest;
        if (pattern >= smallest && pattern < largest)
          atomicAdd(&shared.reaching[increment][last_reached(thresholds, candidates, pattern)], 1u);
      }
      if (beyond) atomicAdd(&shared.reaching[increment][candidates - 1], beyond);
    }
    __syncthreads();
    const int warp = threadIdx.x / WARP;
    if (warp < args.increments) sum_from_the_end(shared.reaching[warp], WINDOW);
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
    for (int increment = 0; increment < args.increments; ++increment)
      sum += bytes_of(args, increment) * shared.reaching[increment][candidate];
    return sum;
  }

  // The first candidate for which all increments fit, and what is left after it.
  __device__ __forceinline__ void find_thresholds(int32_t low, int candidates) const {
    const int thread = threadIdx.x;
    vote(shared.votes[0], thread < candidates && cost(thread) > spare);
    __syncthreads();
    if (thread == 0) {
      const int found = smaller(larger((int32_t)shared.votes[0], 1), candidates - 1);
      const int next = low + found > 1 ? found - 1 : found;  // a threshold of 0 would raise zeros
      int64_t left = spare - cost(found);
      shared.granted = 0;
      for (int increment = 0; increment < args.increments; ++increment) {
        const int32_t threshold = shared.thresholds[increment][found],
                      tied = shared.thresholds[increment][next];
        const int64_t raised = shared.reaching[increment][next] - shared.reaching[increment][found];
        const int64_t granted = grant(left, raised, bytes_of(args, increment));
        shared.chosen[increment] = granted == raised ? tied : threshold;
        if (granted > 0 && granted < raised) {
          shared.tied = tied;
          shared.untied = threshold;
          shared.granted = (uint32_t)granted;
        }
      }
    }
    __syncthreads();
  }

  __device__ __forceinline__ void write(int64_t* chosen) const {
    const int warp = threadIdx.x / WARP, lane = lane_of_thread();
    uint32_t passed = 0, turn = 0;  // of those tied
    for (int64_t first = 0; first < args.length; first += CHOOSERS, turn ^= 1) {
      const int64_t i = first + threadIdx.x;
      const int32_t pattern = i < args.length ? patterns[i] : -1;
      int taken = 0;
      for (int increment = 0; increment < args.increments; ++increment)
        taken += pattern >= shared.chosen[increment];
      if (passed < shared.granted) {
        const bool tied = pattern >= shared.tied && pattern < shared.untied;
        const uint32_t lanes = __ballot_sync(ALL, tied);
        if (lane == 0) shared.tied_before[turn][warp] = __popc(lanes);
        __syncthreads();
        uint32_t before = passed + __popc(lanes & ((1u << lane) - 1));
        for (int other = 0; other < PARTS; ++other) {
          const uint32_t count = shared.tied_before[turn][other];
          if (other < warp) before += count;
          passed += count;
        }
        taken += tied && before < shared.granted;
      }
      if (i < args.length) chosen[i] = args.widths[taken];
    }
  }
};

__global__ void __launch_bounds__(CHOOSERS)
    width_allocation(const GRADWIRE_GRID_CONSTANT gradwire_allocation args) {
  GRADWIRE_SHARED(Shared, shared);
  for (int64_t number = blockIdx.x; number < args.chunks; number += gridDim.x) {
    const Chunk chunk{args, args.patterns + number * args.length, args.spare[number], shared};
    int32_t low, high;
    chunk.count_exponents();
    chunk.find_window(low, high);
    chunk.count_window(low, high - low + 1);
    chunk.find_thresholds(low, high - low + 1);
    chunk.write(args.chosen + number * args.length);
    __syncthreads();
  }
}

}  // namespace

GRADWIRE_API int gradwire_width_allocation(const gradwire_allocation* args) {
  GRADWIRE_CUDA_BEGIN(width_allocation, args);
  const int grid = (int)smaller(args->chunks, (int64_t)1 << 15);
  GRADWIRE_LAUNCH(width_allocation, grid, CHOOSERS, stream, *args);
  return cudaGetLastError();
}
