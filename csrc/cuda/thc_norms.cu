// A thread block per tile of 2^14 coordinates: a warp reads eight units of 128, four coordinates of each to a
// lane, before it adds them up together, then one warp joins the energies of all units. What larger blocks
// consist of is joined by a second kernel.
#include "gradwire/thc_norms.h"

#include "launch.h"

using namespace gradwire;
using namespace gradwire_cuda;

namespace {

enum {
  TILE_THREADS = 512,
  TILE_WARPS = TILE_THREADS / WARP,
  NODES = JOINED / WARP,
  OWN = JOINED / TILE_WARPS
};
static_assert(OWN == 8, "units of a warp: each exchange halves how many a lane keeps");

__device__ __forceinline__ float sum_of_four(const float* v) { return add(add(v[0], v[2]), add(v[1], v[3])); }

struct Largest {
  __device__ __forceinline__ uint32_t operator()(uint32_t a, uint32_t b) const { return larger(a, b); }
};
struct Sum {
  __device__ __forceinline__ float operator()(float a, float b) const { return add(a, b); }
};
// Exchanges half of COUNT values with the lane DISTANCE away, and joins what both have kept: the lower lane
// the first half, the other one the second.
template <int COUNT, int DISTANCE, class Join, class T>
__device__ __forceinline__ void halve(T* values, Join join) {
  const bool upper = lane_of_thread() & DISTANCE;
#pragma unroll
  for (int i = 0; i < COUNT / 2; ++i) {
    const T sent = upper ? values[i] : values[COUNT / 2 + i];
    values[i] = join(upper ? values[COUNT / 2 + i] : values[i], __shfl_xor_sync(ALL, sent, DISTANCE));
  }
}
// Joined are what lanes have of eight units: the result of unit lane / 4.
__device__ __forceinline__ uint32_t largest_of_units(uint32_t (&values)[OWN]) {
  halve<8, 16>(values, Largest());
  halve<4, 8>(values, Largest());
  halve<2, 4>(values, Largest());
  const uint32_t largest = larger(values[0], __shfl_xor_sync(ALL, values[0], 2));
  return larger(largest, __shfl_xor_sync(ALL, largest, 1));
}
// Lanes have of each unit what is at 4·lane + i: k is added to k + 64, then to k + 32, and so on.
__device__ __forceinline__ float fold_units(float (&values)[4 * OWN]) {
  halve<32, 16>(values, Sum());
  halve<16, 8>(values, Sum());
  halve<8, 4>(values, Sum());
  halve<4, 2>(values, Sum());  // k and k + 8 of unit lane / 4, whose four values are here
  halve<2, 1>(values, Sum());  // + 4; left is k = lane mod 4
  const float sum = add(values[0], __shfl_xor_sync(ALL, values[0], 2));
  return add(sum, __shfl_xor_sync(ALL, sum, 1));
}

// Energies of a warp: number lane + 32·i of JOINED, with its maximum.
struct Nodes {
  uint32_t maximum[NODES];
  float energy[NODES];
};
// Joins every counts[i] = counts of that block's other numbers: each of them gets the result.
__device__ __forceinline__ void join(Nodes& nodes, const int* counts) {
  uint32_t top[NODES];
#pragma unroll
  for (int i = 0; i < NODES; ++i) top[i] = nodes.maximum[i];
#pragma unroll
  for (int apart = NODES / 2; apart; apart /= 2) {
    uint32_t other[NODES];
#pragma unroll
    for (int i = 0; i < NODES; ++i) other[i] = larger(top[i], top[i ^ apart]);
#pragma unroll
    for (int i = 0; i < NODES; ++i) top[i] = counts[i] > apart * WARP ? other[i] : top[i];
  }
#pragma unroll
  for (int apart = WARP / 2; apart; apart /= 2)
#pragma unroll
    for (int i = 0; i < NODES; ++i) {
      const uint32_t other = __shfl_xor_sync(ALL, top[i], apart);
      if (counts[i] > apart) top[i] = larger(top[i], other);
    }
#pragma unroll
  for (int i = 0; i < NODES; ++i) {
    nodes.energy[i] = energy_below(nodes.energy[i], nodes.maximum[i], top[i]);
    nodes.maximum[i] = top[i];
  }
#pragma unroll
  for (int apart = NODES / 2; apart; apart /= 2) {
    float other[NODES];
#pragma unroll
    for (int i = 0; i < NODES; ++i) other[i] = add(nodes.energy[i], nodes.energy[i ^ apart]);
#pragma unroll
    for (int i = 0; i < NODES; ++i) nodes.energy[i] = counts[i] > apart * WARP ? other[i] : nodes.energy[i];
  }
#pragma unroll
  for (int apart = WARP / 2; apart; apart /= 2)
#pragma unroll
    for (int i = 0; i < NODES; ++i) {
      const float other = __shfl_xor_sync(ALL, nodes.energy[i], apart);
      if (counts[i] > apart) nodes.energy[i] = add(nodes.energy[i], other);
    }
}

struct Units {
  uint32_t maxima[JOINED];
  float energies[JOINED];
};

__device__ __forceinline__ uint32_t largest_of_four(const float* v) {
  return larger(larger(magnitude_bits(v[0]), magnitude_bits(v[1])),
                larger(magnitude_bits(v[2]), magnitude_bits(v[3])));
}

// A warp's units: number `warp`, `warp` + TILE_WARPS, …
__device__ __forceinline__ void measure_units(float (&values)[4 * OWN], Units& units, int warp) {
  uint32_t maxima[OWN];
#pragma unroll
  for (int i = 0; i < OWN; ++i) maxima[i] = largest_of_four(values + 4 * i);
  const uint32_t maximum = largest_of_units(maxima);
  const float own_normalizer = normalizer_of(maximum);
#pragma unroll
  for (int i = 0; i < OWN; ++i) {
    const float normalizer = __shfl_sync(ALL, own_normalizer, 4 * i);
#pragma unroll
    for (int k = 0; k < 4; ++k) values[4 * i + k] = energy_of(values[4 * i + k], normalizer);
  }
  const float energy = fold_units(values);
  const int lane = lane_of_thread(), unit = warp + lane / 4 * TILE_WARPS;
  if (lane % 4 == 0) {
    units.maxima[unit] = maximum;
    units.energies[unit] = energy;
  }
}

// The blocks, of `width` coordinates, of a unit.
__device__ __forceinline__ void measure_small_blocks(const gradwire_thc_norms& args, const Blocks& blocks,
                                                     const float* values, int64_t first) {
  const int lane = lane_of_thread(), width = 1 << blocks.log;
  uint32_t maximum = largest_of_four(values);
#pragma unroll
  for (int apart = WARP / 2; apart; apart /= 2) {
    const uint32_t other = __shfl_xor_sync(ALL, maximum, apart);
    if (4 * apart < width) maximum = larger(maximum, other);
  }
  const float normalizer = normalizer_of(maximum);
  float squares[4];
#pragma unroll
  for (int k = 0; k < 4; ++k) squares[k] = energy_of(values[k], normalizer);
  for (int apart = width / 8; apart; apart /= 2)
#pragma unroll
    for (int k = 0; k < 4; ++k) squares[k] = add(squares[k], __shfl_xor_sync(ALL, squares[k], apart));
  const int64_t position = first + 4 * lane;
  if (position % width == 0 && position < blocks.total)
    args.root_mean_squares[position >> blocks.log] =
        root_mean_square_of(maximum, sum_of_four(squares), blocks.log);
}

template <class T>
__global__ void __launch_bounds__(TILE_THREADS, 2)
    tiles(const GRADWIRE_GRID_CONSTANT gradwire_thc_norms args, bool vectors) {
  GRADWIRE_SHARED(Units, units);
  const Blocks blocks = blocks_of(args);
  const int64_t tile = blockIdx.x, first = tile * NORM_TILE;
  const int lane = lane_of_thread(), warp = (int)threadIdx.x / WARP;
  const int64_t own = first + warp * UNIT + 4 * lane;
  const T* x = (const T*)args.x + own;
  float values[4 * OWN];
  if (vectors && first + NORM_TILE <= args.numel) {
#pragma unroll
    for (int i = 0; i < OWN; ++i) load_four(x + i * TILE_WARPS * UNIT, values + 4 * i);
  } else {
#pragma unroll
    for (int i = 0; i < OWN; ++i) {
      const int64_t further = i * TILE_WARPS * UNIT;
      load_some<4>(x + further, args.numel - own - further, values + 4 * i);
    }
  }
  if (blocks.log >= UNIT_LOG) {
    measure_units(values, units, warp);
  } else {
#pragma unroll
    for (int i = 0; i < OWN; ++i)
      measure_small_blocks(args, blocks, values + 4 * i, first + (warp + i * TILE_WARPS) * UNIT);
  }
  __syncthreads();
  if (warp || blocks.log < UNIT_LOG) return;
  Nodes nodes;
  int logs[NODES], counts[NODES];
#pragma unroll
  for (int i = 0; i < NODES; ++i) {
    const int unit = lane + i * WARP;
    const int64_t position = first + unit * UNIT;
    nodes.maximum[i] = units.maxima[unit];
    nodes.energy[i] = units.energies[unit];
    logs[i] = position < blocks.total ? log_at(blocks, position) : (int)UNIT_LOG;
    counts[i] = 1 << (smaller(logs[i], (int)NORM_TILE_LOG) - UNIT_LOG);
  }
  join(nodes, counts);
#pragma unroll
  for (int i = 0; i < NODES; ++i) {
    const int unit = lane + i * WARP;
    const int64_t position = first + unit * UNIT;
    if (unit % counts[i] || position >= blocks.total) continue;
    if (logs[i] <= NORM_TILE_LOG) {
      args.root_mean_squares[index_at(blocks, position, logs[i])] =
          root_mean_square_of(nodes.maximum[i], nodes.energy[i], logs[i]);
    } else {
      args.maxima[tile] = nodes.maximum[i];
      args.energies[tile] = nodes.energy[i];
    }
  }
}

// A warp for each whole tile: it has work if a block larger than a tile begins there.
__global__ void __launch_bounds__(THREADS)
    large_blocks(const GRADWIRE_GRID_CONSTANT gradwire_thc_norms args) {
  const Blocks blocks = blocks_of(args);
  const int lane = lane_of_thread();
  for (int64_t tile = warp_of_grid(); (tile + 1) * NORM_TILE <= blocks.total; tile += warps_of_grid()) {
    const int64_t first = tile * NORM_TILE;
    const int log = log_at(blocks, first);
    if (log <= NORM_TILE_LOG || first != start_of(first, log)) continue;
    const int tiles = 1 << (log - NORM_TILE_LOG), joined = smaller(tiles, (int)JOINED),
              parts = tiles / joined;
    Nodes whole = {};
    for (int part = 0; part < parts; ++part) {
      Nodes nodes = {};
      int counts[NODES];
#pragma unroll
      for (int i = 0; i < NODES; ++i) {
        const int number = lane + i * WARP;
        if (number < joined) {
          nodes.maximum[i] = args.maxima[tile + part * JOINED + number];
          nodes.energy[i] = args.energies[tile + part * JOINED + number];
        }
        counts[i] = joined;
      }
      join(nodes, counts);
      const uint32_t maximum = __shfl_sync(ALL, nodes.maximum[0], 0);
      const float energy = __shfl_sync(ALL, nodes.energy[0], 0);
      whole.maximum[0] = lane == part ? maximum : whole.maximum[0];
      whole.energy[0] = lane == part ? energy : whole.energy[0];
    }
    const int counts[NODES] = {parts, 1, 1, 1};
    join(whole, counts);
    if (lane == 0)
      args.root_mean_squares[index_at(blocks, first, log)] =
          root_mean_square_of(whole.maximum[0], whole.energy[0], log);
  }
}

template <class T>
int launch(const gradwire_thc_norms& args, cudaStream_t stream) {
  const auto kernel = tiles<T>;
  GRADWIRE_LAUNCH(kernel, (int)norm_tiles(args), TILE_THREADS, stream, args, aligned(args.x, 4 * sizeof(T)));
  if (args.block > NORM_TILE) {
    const int grid = grid_of(large_blocks, divide_up(norm_tiles(args), WARPS));
    GRADWIRE_LAUNCH(large_blocks, grid, THREADS, stream, args);
  }
  return cudaGetLastError();
}

}  // namespace

GRADWIRE_API int gradwire_thc_root_mean_squares(const gradwire_thc_norms* args) {
  GRADWIRE_CUDA_BEGIN(thc_root_mean_squares, args);
  return args->call.dtype == GRADWIRE_FLOAT32 ? launch<float>(*args, stream)
                                              : launch<uint16_t>(*args, stream);
}
