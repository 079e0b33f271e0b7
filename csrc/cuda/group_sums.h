// Largest magnitudes and sums of groups (codecs/arithmetic/floats.py): of a lane's neighbours, of the lanes
// of a group, and, where groups are longer than a row, of the warps of a block and of tiles, one after
// another.
#pragma once
#include "rows.h"

namespace gradwire_cuda {
inline namespace rows {

__device__ __forceinline__ uint32_t largest_of(const float* x, int count) {
  uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < count; ++i) largest = larger(largest, magnitude_bits(x[i]));
  return largest;
}

// Halves are added until one value is left.
template <int COUNT>
__device__ __forceinline__ float fold(const float* x) {
  if constexpr (COUNT == 1) {
    return x[0];
  } else {
    float half[COUNT / 2];
#pragma unroll
    for (int i = 0; i < COUNT / 2; ++i) half[i] = add(x[i], x[i + COUNT / 2]);
    return fold<COUNT / 2>(half);
  }
}

// Over `lanes` neighbouring ones, a power of two; all of them get it.
__device__ __forceinline__ uint32_t largest_of_lanes(uint32_t largest, int lanes) {
  for (int distance = lanes / 2; distance; distance /= 2)
    largest = larger(largest, __shfl_xor_sync(ALL, largest, distance));
  return largest;
}
__device__ __forceinline__ float fold_lanes(float sum, int lanes) {
  for (int distance = lanes / 2; distance; distance /= 2) sum = add(sum, __shfl_xor_sync(ALL, sum, distance));
  return sum;
}
__device__ __forceinline__ int32_t count_lanes(int32_t count, int lanes) {
  for (int distance = lanes / 2; distance; distance /= 2) count += __shfl_xor_sync(ALL, count, distance);
  return count;
}

typedef uint32_t WarpWords[WARPS];

// The largest over the `warps` of a block that have a group, 2, 4 or 8, once all its warps have come here.
__device__ __forceinline__ uint32_t largest_of_warps(WarpWords& words, uint32_t largest, int warp,
                                                     int warps) {
  words[warp] = largest_of_lanes(largest, WARP);
  __syncthreads();
  largest = 0;
  for (int i = 0; i < warps; ++i) largest = larger(largest, words[warp / warps * warps + i]);
  return largest;
}
__device__ __forceinline__ float fold_warps(WarpWords& words, float sum, int warp, int warps) {
  words[warp] = bits_of(fold_lanes(sum, WARP));
  __syncthreads();
  float sums[WARPS];
#pragma unroll
  for (int i = 0; i < WARPS; ++i) sums[i] = float_of(words[(warp / warps * warps + i) % WARPS]);
  return warps == 8 ? fold<8>(sums) : warps == 4 ? fold<4>(sums) : fold<2>(sums);
}
__device__ __forceinline__ int32_t count_warps(WarpWords& words, int32_t count, int warp, int warps) {
  words[warp] = (uint32_t)count_lanes(count, WARP);
  __syncthreads();
  count = 0;
  for (int i = 0; i < warps; ++i) count += (int32_t)words[warp / warps * warps + i];
  return count;
}

// Groups are powers of two: a coordinate's is the number shifted by this.
__device__ __forceinline__ int shift_of(int32_t group) { return __ffs(group) - 1; }

// How groups longer than a row lie in blocks: a block has a tile, or a group that is longer than that, at a
// time.
struct Division {
  int64_t span;   // coordinates of a block at a time
  int64_t total;  // times
  int warps;      // that share a group
};
__host__ __device__ inline Division division_of(int64_t numel, int32_t group) {
  const int64_t span = larger(group, (int32_t)TILE);
  return Division{span, divide_up(numel, span), (int)smaller(group, (int32_t)TILE) / ROW};
}

}  // namespace rows
}  // namespace gradwire_cuda
