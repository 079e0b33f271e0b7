// A chunk is sorted by one block: its warps count the widths of consecutive parts, then each puts its part
// where those before it end.
#include "gradwire/order.h"

#include "launch.h"

using namespace gradwire;
using namespace gradwire_cuda;

namespace {

constexpr int SORTERS = 512, PARTS = SORTERS / WARP;

struct Shared {
  uint32_t places[PARTS][WIDTHS];  // counts of the parts at first, later where their next super-group goes
};

// From counts to places: larger widths first, then earlier parts. By one warp, lane l for width l.
__device__ __forceinline__ void find_places(const gradwire_order& args, int64_t chunk, Shared& shared) {
  const int lane = lane_of_thread();
  uint32_t count = 0;
#pragma unroll
  for (int part = 0; part < PARTS; ++part) count += shared.places[part][lane];
  if (lane < COUNTED_WIDTHS) args.counts[chunk * COUNTED_WIDTHS + lane] = (int32_t)count;
  uint32_t end = count;
#pragma unroll
  for (int distance = 1; distance < WARP; distance *= 2) {
    const uint32_t wider = __shfl_sync(ALL, end, (lane + distance) % WARP);
    if (lane + distance < WARP) end += wider;
  }
  uint32_t place = end - count;
#pragma unroll
  for (int part = 0; part < PARTS; ++part) {
    const uint32_t here = shared.places[part][lane];
    shared.places[part][lane] = place;
    place += here;
  }
}

// The lanes whose width is this lane's, of those that `valid` says there are.
__device__ __forceinline__ uint32_t alike(uint32_t width, bool valid) {
  uint32_t lanes = __ballot_sync(ALL, valid);
#pragma unroll
  for (uint32_t bit = 1; bit < WIDTHS; bit *= 2) {
    const uint32_t set = __ballot_sync(ALL, width & bit);
    lanes &= width & bit ? set : ~set;
  }
  return lanes;
}

__global__ void __launch_bounds__(SORTERS) message_order(const GRADWIRE_GRID_CONSTANT gradwire_order args) {
  GRADWIRE_SHARED(Shared, shared);
  const int lane = lane_of_thread(), part = threadIdx.x / WARP;
  for (int64_t chunk = blockIdx.x; chunk < args.chunks; chunk += gridDim.x) {
    const int64_t* widths = args.widths + chunk * args.length;
    int32_t* order = args.order + super_groups_before(args, chunk);
    const int64_t count = super_groups_of(args, chunk), each = divide_up(count, SORTERS) * WARP;
    const int64_t begin = part * each, end = smaller(begin + each, count);
    uint32_t* places = shared.places[part];
    places[lane] = 0;
    __syncwarp();
    for (int64_t i = begin + lane; i < end; i += WARP) atomicAdd(&places[(uint32_t)widths[i] % WIDTHS], 1u);
    __syncthreads();
    if (part == 0) find_places(args, chunk, shared);
    __syncthreads();
    for (int64_t first = begin; first < end; first += WARP) {
      const bool valid = first + lane < end;
      const uint32_t width = valid ? (uint32_t)widths[first + lane] % WIDTHS : 0;
      const uint32_t lanes = alike(width, valid), before = lanes & ((1u << lane) - 1);
      const uint32_t place = places[width];
      __syncwarp();
      if (valid) {
        order[place + __popc(before)] = (int32_t)((first + lane) * args.chunks + chunk);
        if (before == 0) places[width] = place + __popc(lanes);
      }
      __syncwarp();
    }
    __syncthreads();
  }
}

}  // namespace

GRADWIRE_API int gradwire_message_order(const gradwire_order* args) {
  GRADWIRE_CUDA_BEGIN(message_order, args);
  const int grid = (int)smaller(args->chunks, (int64_t)1 << 15);
  GRADWIRE_LAUNCH(message_order, grid, SORTERS, stream, *args);
  return cudaGetLastError();
}
