// The plan by counting, in one launch. A long chunk is cut into consecutive parts, a block for each, which
// are a team: where all must know what all have counted, each writes its counts to memory and waits for the
// others, three times in all.
//
//   exponents   the norms by exponent, which leaves a window of some 128 candidates for the first increment's
//               threshold
//   window      for each increment the norms between the thresholds of neighbouring candidates, which gives
//               the bytes that every candidate takes, hence the thresholds
//   levels      how many increments every super-group gets, how many of a part get so many, which gives every
//               super-group its place: larger widths first, then earlier parts, then by index
//
// A team is a cluster where the device has them. Elsewhere all blocks are in one cooperative launch, and
// where there is none, or no room for two blocks a chunk, every chunk is one block's.
#include "gradwire/plan.h"

#include "launch.h"
#include "plan_shared.h"
#include "block_teams.h"

using namespace gradwire;
using namespace gradwire_cuda;

namespace {

template <Team TEAM>
__global__ void __launch_bounds__(PLANNERS) plan(const GRADWIRE_GRID_CONSTANT gradwire_plan args) {
  GRADWIRE_SHARED(Shared, shared);
  const int parts = TEAM == Team::ALONE ? 1 : (int)(gridDim.x / (unsigned)args.chunks);
  const Part<TEAM> part(args, (int)blockIdx.x / parts, (int)blockIdx.x % parts, parts, shared);
  part.read();
  part.share_exponents();
  const Candidates candidates = part.find_window();
  part.count_window(candidates);
  part.share_window();
  part.find_thresholds(candidates);
  part.choose_levels();
  part.share_levels();
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

static_assert((int)GRADWIRE_PLAN_PARTS <= MOST_OF_CLUSTER, "a chunk's blocks are a cluster");

void launch(const gradwire_plan& args, cudaStream_t stream) {
  const auto of_cluster = plan<Team::CLUSTER>, of_grid = plan<Team::GRID>, alone = plan<Team::ALONE>;
  int parts = (int)parts_of_chunk(args);
  const int chunks = (int)args.chunks;
  if (parts > 1) {
    const Teams& teams = teams_of(of_cluster, of_grid, PLANNERS);
    if (teams.clusters)
      return (void)GRADWIRE_LAUNCH_CLUSTERS(of_cluster, chunks * parts, parts, PLANNERS, stream, args);
    while (parts > 1 && chunks * parts > teams.resident) parts /= 2;
    if (parts > 1) return (void)GRADWIRE_LAUNCH_COOPERATIVE(of_grid, chunks * parts, PLANNERS, stream, args);
  }
  GRADWIRE_LAUNCH(alone, chunks, PLANNERS, stream, args);
}

}  // namespace

GRADWIRE_API int gradwire_dynamiq_plan(const gradwire_plan* args) {
  GRADWIRE_CUDA_BEGIN(dynamiq_plan, args);
  if (!args->increments || !args->total) {
    const int64_t items = larger(args->total, args->chunks * COUNTED_WIDTHS);
    const int blocks = grid_of(plan_of_one_width, divide_up(items, THREADS));
    GRADWIRE_LAUNCH(plan_of_one_width, blocks, THREADS, stream, *args);
  } else {
    launch(*args, stream);
  }
  return cudaGetLastError();
}
