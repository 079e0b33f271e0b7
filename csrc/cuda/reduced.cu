#include "gradwire/reduced.h"

#include "launch.h"

using namespace gradwire;
using namespace gradwire_cuda;

namespace {

__global__ void __launch_bounds__(THREADS)
    reduced_statistics(const GRADWIRE_GRID_CONSTANT gradwire_reduced args) {
  const int64_t total = items_reduced_statistics(args), threads = (int64_t)gridDim.x * THREADS;
  for (int64_t super_group = (int64_t)blockIdx.x * THREADS + threadIdx.x; super_group < total;
       super_group += threads)
    write_reduced(args, super_group, super_group % args.chunks, super_group / args.chunks);
}

}  // namespace

GRADWIRE_API int gradwire_reduced_statistics(const gradwire_reduced* args) {
  GRADWIRE_CUDA_BEGIN(reduced_statistics, args);
  const int grid = grid_of(reduced_statistics, divide_up(items_reduced_statistics(*args), THREADS));
  GRADWIRE_LAUNCH(reduced_statistics, grid, THREADS, stream, *args);
  return cudaGetLastError();
}
