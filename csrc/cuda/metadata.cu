// A block per tile of a message. The square root of a float64 is a call; without a limit on registers it
// takes a stack.
#include "gradwire/metadata.h"

#include "launch.h"

using namespace gradwire;
using namespace gradwire_cuda;

namespace {

__global__ void __launch_bounds__(THREADS, 1)
    metadata_hop(const GRADWIRE_GRID_CONSTANT gradwire_metadata args) {
  const int64_t items = items_metadata_hop(args);
  for (int64_t item = blockIdx.x; item < items; item += gridDim.x)
    work_on_tile(args, item, threadIdx.x, THREADS);
}

}  // namespace

GRADWIRE_API int gradwire_metadata_hop(const gradwire_metadata* args) {
  GRADWIRE_CUDA_BEGIN(metadata_hop, args);
  const int grid = grid_of(metadata_hop, items_metadata_hop(*args));
  GRADWIRE_LAUNCH(metadata_hop, grid, THREADS, stream, *args);
  return cudaGetLastError();
}
