// The plan by counting, over the whole device. A long chunk is cut into consecutive parts, a block for each:
//
//   counts    the norms by exponent, which leaves a window of some 128 candidates for the first increment's
//             threshold
//   windows   for each increment the norms between the thresholds of neighbouring candidates, which gives the
//             bytes that every candidate takes
//   levels    the thresholds, how many increments every super-group gets, how many of a part get so many
//   places    every super-group at its place: larger widths first, then earlier parts, then by index
//
// Each is a launch, and reads sums over the parts of what the one before has counted. A chunk of one part is
// one block's from beginning to end, in one launch.
#include "gradwire/plan.h"

#include "launch.h"
#include "plan_shared.h"

using namespace gradwire;
using namespace gradwire_cuda;

namespace {

__device__ __forceinline__ Part part_of(const gradwire_plan& args, Shared& shared) {
  const int64_t parts = parts_of_chunk(args), chunk = blockIdx.x / parts, part = blockIdx.x % parts;
  return Part(args, chunk, part, parts, shared);
}

__global__ void __launch_bounds__(PLANNERS) plan_counts(const GRADWIRE_GRID_CONSTANT gradwire_plan args) {
  GRADWIRE_SHARED(Shared, shared);
  const Part part = part_of(args, shared);
  part.count_exponents();
  part.add_exponents();
}

__global__ void __launch_bounds__(PLANNERS) plan_windows(const GRADWIRE_GRID_CONSTANT gradwire_plan args) {
  GRADWIRE_SHARED(Shared, shared);
  const Part part = part_of(args, shared);
  part.read_exponents();
  part.find_window();
  part.count_window();
  part.add_window();
}

__global__ void __launch_bounds__(PLANNERS) plan_levels(const GRADWIRE_GRID_CONSTANT gradwire_plan args) {
  GRADWIRE_SHARED(Shared, shared);
  const Part part = part_of(args, shared);
  part.read_window();
  part.find_thresholds();
  part.count_tied_before();
  part.write_levels();
}

__global__ void __launch_bounds__(PLANNERS) plan_places(const GRADWIRE_GRID_CONSTANT gradwire_plan args) {
  GRADWIRE_SHARED(Shared, shared);
  const Part part = part_of(args, shared);
  part.count_levels_before();
  part.place();
}

__global__ void __launch_bounds__(PLANNERS) plan_alone(const GRADWIRE_GRID_CONSTANT gradwire_plan args) {
  GRADWIRE_SHARED(Shared, shared);
  const Part part(args, blockIdx.x, 0, 1, shared);
  part.count_exponents();
  part.find_window();
  part.count_window();
  part.find_thresholds();
  part.write_levels();
  part.count_levels_before();
  part.place();
}

// All super-groups have the same width: each chunk's are by index.
__global__ void __launch_bounds__(THREADS)
    plan_of_one_width(const GRADWIRE_GRID_CONSTANT gradwire_plan args) {
  const int64_t threads = (int64_t)gridDim.x * THREADS, first = (int64_t)blockIdx.x * THREADS + threadIdx.x;
  for (int64_t i = first; i < args.chunks * COUNTED_WIDTHS; i += threads)
    args.counts[i] =
        i % COUNTED_WIDTHS == args.widths[0] ? (int32_t)super_groups_of(args, i / COUNTED_WIDTHS) : 0;
  for (int64_t i = first; i < args.total; i += threads)
    write_planned(args, super_groups_before(args, i % args.chunks) + i / args.chunks, i);
}

}  // namespace

GRADWIRE_API int gradwire_dynamiq_plan(const gradwire_plan* args) {
  GRADWIRE_CUDA_BEGIN(dynamiq_plan, args);
  const int64_t parts = parts_of_chunk(*args);
  const int grid = (int)(args->chunks * parts);
  if (!args->increments || !args->total) {
    const int64_t items = larger(args->total, args->chunks * COUNTED_WIDTHS);
    const int blocks = grid_of(plan_of_one_width, divide_up(items, THREADS));
    GRADWIRE_LAUNCH(plan_of_one_width, blocks, THREADS, stream, *args);
  } else if (parts == 1) {
    GRADWIRE_LAUNCH(plan_alone, grid, PLANNERS, stream, *args);
  } else {
    const size_t bytes = (size_t)args->chunks * sizeof(ChunkCounts);
    if (const int error = cudaMemsetAsync(args->workspace, 0, bytes, stream)) return error;
    GRADWIRE_LAUNCH(plan_counts, grid, PLANNERS, stream, *args);
    GRADWIRE_LAUNCH(plan_windows, grid, PLANNERS, stream, *args);
    GRADWIRE_LAUNCH(plan_levels, grid, PLANNERS, stream, *args);
    GRADWIRE_LAUNCH(plan_places, grid, PLANNERS, stream, *args);
  }
  return cudaGetLastError();
}
