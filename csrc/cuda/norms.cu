// A block of at most 256 coordinates has 4 to 32 lanes of a warp with 8 coordinates each, a longer one a warp
// or, beyond PARTIAL_SUMS tiles, all warps of a CUDA block, a warp to a tile.
#include "gradwire/norms.h"

#include "launch.h"

using namespace gradwire;
using namespace gradwire_cuda;

namespace {

// Sum over LANES lanes, at least 4, of what they have at (4·lane + i) and (4·(LANES + lane) + i): k with
// k + 4·LANES, then with k + 2·LANES, … Each exchange halves what a lane keeps, until one value is left that
// lanes add pairwise.
template <int LANES>
__device__ __forceinline__ float fold(const float* values, int lane) {
  float four[4], two[2];
#pragma unroll
  for (int i = 0; i < 4; ++i) four[i] = add(values[i], values[4 + i]);
  const bool upper = lane & (LANES / 2);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float sent = upper ? four[i] : four[2 + i];
    two[i] = add(upper ? four[2 + i] : four[i], __shfl_xor_sync(ALL, sent, LANES / 2));
  }
  const bool odd = lane & (LANES / 4);
  const float sent = odd ? two[0] : two[1];
  float sum = add(odd ? two[1] : two[0], __shfl_xor_sync(ALL, sent, LANES / 4));
  // Left are LANES sums k: 4·(lane mod LANES/4) + 2·(lane div LANES/2) + (lane div LANES/4 mod 2).
#pragma unroll
  for (int distance = LANES / 8; distance; distance /= 2) sum = add(sum, __shfl_xor_sync(ALL, sum, distance));
  sum = add(sum, __shfl_xor_sync(ALL, sum, LANES / 2));
  return add(sum, __shfl_xor_sync(ALL, sum, LANES / 4));
}

// The energy of `count` coordinates, at most 8·LANES; all lanes of the warp take part and get the sum.
template <int LANES, class T>
__device__ __forceinline__ double energy(const T* x, int64_t count, bool vectors) {
  const int lane = lane_of_thread() % LANES, first = 4 * lane, second = 4 * (LANES + lane);
  float values[8];
  if (vectors && count >= 8 * LANES) {
    load_four(x + first, values);
    load_four(x + second, values + 4);
  } else {
    load_some<4>(x + first, count - first, values);
    load_some<4>(x + second, count - second, values + 4);
  }
  uint32_t maximum = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) maximum = larger(maximum, magnitude_bits(values[i]));
#pragma unroll
  for (int distance = LANES / 2; distance; distance /= 2)
    maximum = larger(maximum, __shfl_xor_sync(ALL, maximum, distance));
  const int32_t field = exponent_of(maximum);
  const float normalizer = normalizer_of(field);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    values[i] = mul(values[i], normalizer);
    values[i] = mul(values[i], values[i]);
  }
  return tile_energy(fold<LANES>(values, lane), field);
}

template <int LANES, class T>
__global__ void __launch_bounds__(THREADS)
    short_blocks(const GRADWIRE_GRID_CONSTANT gradwire_norms args, bool vectors) {
  constexpr int EACH = WARP / LANES;
  const int64_t total = items_block_energies(args);
  for (int64_t first = warp_of_grid() * EACH; first < total; first += warps_of_grid() * EACH) {
    const int64_t block = first + lane_of_thread() / LANES;
    const int64_t count =
        smaller(args.numel - block * args.block, args.block);  // below 1 beyond the last block
    const double sum = energy<LANES>((const T*)args.x + block * args.block, count, vectors);
    if (block < total && lane_of_thread() % LANES == 0) args.energies[block] = block_energy(sum);
  }
}

// The fold of one partial sum of every lane.
__device__ __forceinline__ double fold_partial_sums(double sum) {
#pragma unroll
  for (int distance = WARP / 2; distance; distance /= 2) sum = add(sum, __shfl_xor_sync(ALL, sum, distance));
  return sum;
}

// TEAM warps add up a block; lane l has partial sum l, of which warp w fills those with l mod TEAM = w.
template <int TEAM, class T>
__global__ void __launch_bounds__(THREADS)
    long_blocks(const GRADWIRE_GRID_CONSTANT gradwire_norms args, bool vectors) {
  typedef double Sums[PARTIAL_SUMS];
  GRADWIRE_SHARED(Sums, sums);
  const int lane = lane_of_thread(), member = (int)(threadIdx.x / WARP) % TEAM;
  const int64_t total = items_block_energies(args);
  for (int64_t block = warp_of_grid() / TEAM; block < total; block += warps_of_grid() / TEAM) {
    const T* x = (const T*)args.x + block * args.block;
    const int64_t count = smaller(args.numel - block * args.block, args.block);
    double sum = 0.0;
    for (int64_t tile = member; tile * TILE < count; tile += TEAM) {
      const double part = energy<WARP>(x + tile * TILE, count - tile * TILE, vectors);
      if (tile % PARTIAL_SUMS == lane) sum = add(sum, part);
    }
    if (TEAM > 1) {
      if (lane % TEAM == member) sums[lane] = sum;
      __syncthreads();
      sum = sums[lane];
      __syncthreads();
    }
    sum = fold_partial_sums(sum);
    if (member == 0 && lane == 0) args.energies[block] = block_energy(sum);
  }
}

template <class Kernel>
int launch(Kernel kernel, const gradwire_norms& args, int64_t lanes_each, cudaStream_t stream) {
  const int grid = grid_of(kernel, divide_up(items_block_energies(args) * lanes_each, THREADS));
  GRADWIRE_LAUNCH(kernel, grid, THREADS, stream, args, aligned(args.x) && args.block % 4 == 0);
  return cudaGetLastError();
}

template <class T>
int launch(const gradwire_norms& args, cudaStream_t stream) {
  if (args.block <= 32) return launch(short_blocks<4, T>, args, 4, stream);
  if (args.block <= 64) return launch(short_blocks<8, T>, args, 8, stream);
  if (args.block <= 128) return launch(short_blocks<16, T>, args, 16, stream);
  if (args.block <= TILE) return launch(short_blocks<WARP, T>, args, WARP, stream);
  if (args.block <= TILE * PARTIAL_SUMS) return launch(long_blocks<1, T>, args, WARP, stream);
  return launch(long_blocks<WARPS, T>, args, THREADS, stream);
}

}  // namespace

GRADWIRE_API int gradwire_block_energies(const gradwire_norms* args) {
  GRADWIRE_CUDA_BEGIN(block_energies, args);
  return args->call.dtype == GRADWIRE_FLOAT32 ? launch<float>(*args, stream)
                                              : launch<uint16_t>(*args, stream);
}
