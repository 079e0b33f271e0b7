// One warp per super-group: lane l has coordinates 4·l … 4·l + 3 and the same 128 further on, so that the
// first sums of the fold are its own and every load takes 16 bytes.
#include "gradwire/statistics.h"

#include "launch.h"

using namespace gradwire;
using namespace gradwire_cuda;

namespace {

// Sum over the warp of what lanes have at (4·lane + i): each exchange halves what a lane keeps, until one
// value is left that lanes add pairwise. Sums are those of the definition: k with k + 64, then 32, 16, …
__device__ __forceinline__ float fold(const float* values, int lane) {
  float four[4], two[2];
#pragma unroll
  for (int i = 0; i < 4; ++i) four[i] = add(values[i], values[4 + i]);
  // k and k + 64: lanes 16 apart. The upper lanes keep the upper two of four sums, the lower ones the lower.
  const bool upper = lane & 16;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float sent = upper ? four[i] : four[2 + i];
    two[i] = add(upper ? four[2 + i] : four[i], __shfl_xor_sync(ALL, sent, 16));
  }
  // Lanes now stand for (4·(lane mod 16) + 2·(lane div 16) + i).
  const bool odd = lane & 8;
  const float sent = odd ? two[0] : two[1];
  float sum = add(odd ? two[1] : two[0], __shfl_xor_sync(ALL, sent, 8));
  // Left are 32 sums k: 4·(lane mod 8) + 2·(lane div 16) + (lane div 8 mod 2).
  sum = add(sum, __shfl_xor_sync(ALL, sum, 4));   // k and k + 16
  sum = add(sum, __shfl_xor_sync(ALL, sum, 2));   // + 8
  sum = add(sum, __shfl_xor_sync(ALL, sum, 1));   // + 4
  sum = add(sum, __shfl_xor_sync(ALL, sum, 16));  // + 2
  return add(sum, __shfl_xor_sync(ALL, sum, 8));  // + 1
}

template <class T>
__global__ void __launch_bounds__(THREADS)
    statistics(const GRADWIRE_GRID_CONSTANT gradwire_statistics args, bool vectors) {
  const int lane = lane_of_thread();
  const int64_t total = items_super_group_statistics(args);
  for (int64_t group = warp_of_grid(); group < total; group += warps_of_grid()) {
    const int64_t first = group * SUPER_GROUP + 4 * lane,
                  count = smaller(args.numel - group * SUPER_GROUP, (int64_t)SUPER_GROUP);
    const T* x = (const T*)args.x + first;
    float values[8], squares[8];
    if (vectors && count == SUPER_GROUP) {
      load_four(x, values);
      load_four(x + SUPER_GROUP / 2, values + 4);
    } else {
      load_some<4>(x, args.numel - first, values);
      load_some<4>(x + SUPER_GROUP / 2, args.numel - first - SUPER_GROUP / 2, values + 4);
    }
    uint32_t maximum = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) maximum = larger(maximum, magnitude_bits(values[i]));
#pragma unroll
    for (int distance = 16; distance; distance /= 2)
      maximum = larger(maximum, __shfl_xor_sync(ALL, maximum, distance));
    const int32_t field = exponent_of(maximum);
    const float normalizer = normalizer_of(field), restorer = restorer_of(field);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      values[i] = mul(values[i], normalizer);
      squares[i] = mul(values[i], values[i]);
    }
    const float sum = fold(values, lane), energy = fold(squares, lane);
    if (lane == 0) {
      args.mean[group] = mean_of(sum, count, restorer);
      args.norm[group] = norm_of(energy, restorer);
    }
  }
}

template <class T>
int launch(const gradwire_statistics& args, cudaStream_t stream) {
  const auto kernel = statistics<T>;
  const int grid = grid_of(kernel, divide_up(items_super_group_statistics(args), WARPS));
  GRADWIRE_LAUNCH(kernel, grid, THREADS, stream, args, aligned(args.x));
  return cudaGetLastError();
}

}  // namespace

GRADWIRE_API int gradwire_super_group_statistics(const gradwire_statistics* args) {
  GRADWIRE_CUDA_BEGIN(super_group_statistics, args);
  return args->call.dtype == GRADWIRE_FLOAT32 ? launch<float>(*args, stream)
                                              : launch<uint16_t>(*args, stream);
}
