#include "gradwire/thc.h"

#include "rotation.h"

using namespace gradwire;
using namespace gradwire_cuda;

static_assert((int)GRADWIRE_THC_SMALL_BLOCK <= (int)TILE, "small blocks are transformed in one pass");

namespace {

// The blocks that a thread's groups are in. All threads of a tile that is in one block look up the same one.
struct Finder {
  template <class Place>
  __device__ __forceinline__ Finder(const Blocks& blocks, const float* root_mean_squares, float t_p,
                                    const Place& place)
      : blocks(blocks), root_mean_squares(root_mean_squares), t_p(t_p) {
    if (Place::one_block) find(place.first);
  }
  // For a position before the end.
  __device__ __forceinline__ void find(int64_t position) {
    log = log_at(blocks, position);
    range = range_of(root_mean_squares[index_at(blocks, position, log)], t_p);
  }

  const Blocks& blocks;
  const float* root_mean_squares;
  float t_p;
  int32_t log = 0;
  Range range = {};
};

// The random signs of a thread's groups. Four lanes have sixteen coordinates in a row of each of GROUPS
// units, so each of them computes those of two.
struct Signs {
  template <class Place>
  __device__ __forceinline__ Signs(const Place& place, Key key) {
    const int lane = lane_of_thread();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int64_t position = place.of((lane & 3) + 4 * i);
      const Words found = signs_of(position >> UNIT_LOG, key);
      const uint32_t lower = position & 32 ? found.y : found.x, upper = position & 32 ? found.w : found.z;
      words[i] = position & 64 ? upper : lower;
    }
  }
  // Whole warps call it.
  template <class Place>
  __device__ __forceinline__ void flip(const Place& place, int group, float (&v)[4]) const {
    const uint32_t word = __shfl_sync(ALL, words[group / 4], (lane_of_thread() & ~3) | (group & 3));
    const int32_t first = (int32_t)place.of(group) & 31;
#pragma unroll
    for (int k = 0; k < 4; ++k) v[k] = flipped(v[k], flip_of(word, first + k));
  }
  uint32_t words[2];
};

// The random words of groups `group` and `group` + 1 of a thread, two each. Two lanes have eight coordinates
// in a row, for which there are four words: each lane computes those of one group. Whole warps call it.
template <class Place>
__device__ __forceinline__ void dither_of_groups(Key key, uint32_t rank, const Place& place, int group,
                                                 uint32_t (&words)[2][2]) {
  const bool odd = lane_of_thread() & 1;
  const int64_t position = place.of(group + (odd ? 1 : 0));
  const Words found = dither_words(position >> UNIT_LOG, (uint32_t)position % UNIT / 8, rank, key);
  const uint32_t own[2] = {odd ? found.z : found.x, odd ? found.w : found.y};
  const uint32_t given[2] = {odd ? found.x : found.z, odd ? found.y : found.w};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t taken = __shfl_xor_sync(ALL, given[i], 1);
    words[0][i] = odd ? taken : own[i];
    words[1][i] = odd ? own[i] : taken;
  }
}

// A table other than the uniform one, in shared memory: what lies at or below an integer, and how far the
// next is.
struct Entries {
  float2 at[256];
};
__device__ __forceinline__ const Entries& shared_entries(const gradwire_thc_in& args) {
  GRADWIRE_SHARED(Entries, entries);
  if (args.table) {
    for (int i = (int)threadIdx.x; i <= args.granularity; i += TILE_THREADS)
      entries.at[i] = make_float2(args.table[i], args.table[args.granularity + 1 + i]);
    __syncthreads();
  }
  return entries;
}

template <class T>
struct Quantize {
  __device__ __forceinline__ Quantize(const gradwire_thc_in& args, bool aligned)
      : args(args),
        blocks(blocks_of(args)),
        key(key_of(args)),
        between((float*)args.integers),
        aligned(aligned),
        entries(shared_entries(args)) {}

  template <class Place>
  __device__ __forceinline__ void load(const Place& place, float (&v)[GROUPS][4]) const {
    const Signs signs(place, key);
    load_tile((const T*)args.x, args.numel, aligned, place, v);
    Finder here(blocks, args.root_mean_squares, args.t_p, place);
#pragma unroll
    for (int i = 0; i < GROUPS; ++i) {
      if (!Place::one_block && place.has(i)) here.find(place.of(i));
      const float normalizer = here.range.normalizer;
#pragma unroll
      for (int k = 0; k < 4; ++k) v[i][k] = mul(v[i][k], normalizer);
      signs.flip(place, i, v[i]);
    }
  }

  template <class Place>
  __device__ __forceinline__ void finish(const Place& place, float (&v)[GROUPS][4]) const {
    const float granularity = (float)args.granularity, half = mul(granularity, 0.5f);
    Finder here(blocks, args.root_mean_squares, args.t_p, place);
    float scale = scale_of(here.log), factor = div(half, here.range.limit);
    uint32_t words[2][2];
#pragma unroll
    for (int i = 0; i < GROUPS; ++i) {
      if (i % 2 == 0) dither_of_groups(key, args.rank, place, i, words);
      const int64_t position = place.of(i);
      if (!place.has(i)) continue;
      if (!Place::one_block) {
        here.find(position);
        scale = scale_of(here.log);
        factor = div(half, here.range.limit);
      }
      uint32_t integers[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const float at = place_of(mul(v[i][k], scale), factor, here.range.alive, half, granularity);
        integers[k] = rounded(at, dither_of(words[i % 2][k / 2] >> 16 * (k % 2) & 0xffffu));
      }
      ptx::st_global_v4(args.integers + position, integers[0], integers[1], integers[2], integers[3]);
    }
  }
  __device__ __forceinline__ uint32_t rounded(float at, float dither) const {
    const int32_t low = (int32_t)at;
    if (!args.table) return (uint32_t)(low + (goes_up(at, (float)low, dither) ? 1 : 0));
    const float2 entry = entries.at[low];
    return (uint32_t)(int32_t)(goes_up(at, entry.x, entry.y, dither) ? add(entry.x, entry.y) : entry.x);
  }

  const gradwire_thc_in& args;
  Blocks blocks;
  Key key;
  float* between;
  bool aligned;
  const Entries& entries;
  static constexpr bool vectors = true;
};

template <class T>
struct Dequantize {
  __device__ __forceinline__ explicit Dequantize(const gradwire_thc_out& args)
      : args(args), blocks(blocks_of(args)), between(args.between) {}

  template <class Place>
  __device__ __forceinline__ void load(const Place& place, float (&v)[GROUPS][4]) const {
    const float whole = (float)(2 * args.peak);
    Finder here(blocks, args.root_mean_squares, args.t_p, place);
    float step = div(here.range.limit, whole);
#pragma unroll
    for (int i = 0; i < GROUPS; ++i) {
      const int64_t position = place.of(i);
      uint4 sums = make_uint4(0, 0, 0, 0);
      if (place.has(i)) {
        sums = *reinterpret_cast<const uint4*>(args.sums + position);
        if (!Place::one_block) {
          here.find(position);
          step = div(here.range.limit, whole);
        }
      }
      const uint32_t four[4] = {sums.x, sums.y, sums.z, sums.w};
#pragma unroll
      for (int k = 0; k < 4; ++k) v[i][k] = mul(centred((int32_t)four[k], args.peak), step);
    }
  }

  template <class Place>
  __device__ __forceinline__ void finish(const Place& place, float (&v)[GROUPS][4]) const {
    T* mean = (T*)args.mean;
    const Signs signs(place, key_of(args));
    Finder here(blocks, args.root_mean_squares, args.t_p, place);
#pragma unroll
    for (int i = 0; i < GROUPS; ++i) {
      signs.flip(place, i, v[i]);
      const int64_t position = place.of(i);
      if (!place.has(i)) continue;
      if (!Place::one_block) here.find(position);
      const float scale = scale_of(here.log);
#pragma unroll
      for (int k = 0; k < 4; ++k) v[i][k] = restored(mul(v[i][k], scale), here.range.restorer);
      store_four(mean + position, v[i]);
    }
  }

  const gradwire_thc_out& args;
  Blocks blocks;
  float* between;
  static constexpr bool vectors = true;
};

template <class T>
__global__ void __launch_bounds__(TILE_THREADS, 2)
    quantize_near(const GRADWIRE_GRID_CONSTANT gradwire_thc_in args, bool aligned) {
  rotate_near(Quantize<T>(args, aligned));
}
__global__ void __launch_bounds__(TILE_THREADS, 2)
    quantize_far(const GRADWIRE_GRID_CONSTANT gradwire_thc_in args) {
  rotate_far(Quantize<float>(args, true));
}
template <class T>
__global__ void __launch_bounds__(TILE_THREADS, 2)
    dequantize_near(const GRADWIRE_GRID_CONSTANT gradwire_thc_out args) {
  rotate_near(Dequantize<T>(args));
}
template <class T>
__global__ void __launch_bounds__(TILE_THREADS, 2)
    dequantize_far(const GRADWIRE_GRID_CONSTANT gradwire_thc_out args) {
  rotate_far(Dequantize<T>(args));
}

template <class T>
int launch(const gradwire_thc_in& args, cudaStream_t stream) {
  const Blocks blocks = blocks_of(args);
  const auto near = quantize_near<T>;
  GRADWIRE_LAUNCH(near, tile_grid(blocks), TILE_THREADS, stream, args, aligned(args.x, 4 * sizeof(T)));
  if (blocks.log > TILE_LOG) GRADWIRE_LAUNCH(quantize_far, tile_grid(blocks), TILE_THREADS, stream, args);
  return cudaGetLastError();
}
template <class T>
int launch(const gradwire_thc_out& args, cudaStream_t stream) {
  const Blocks blocks = blocks_of(args);
  const auto near = dequantize_near<T>, far = dequantize_far<T>;
  GRADWIRE_LAUNCH(near, tile_grid(blocks), TILE_THREADS, stream, args);
  if (blocks.log > TILE_LOG) GRADWIRE_LAUNCH(far, tile_grid(blocks), TILE_THREADS, stream, args);
  return cudaGetLastError();
}

}  // namespace

GRADWIRE_API int gradwire_thc_quantize(const gradwire_thc_in* args) {
  GRADWIRE_CUDA_BEGIN(thc_quantize, args);
  return args->call.dtype == GRADWIRE_FLOAT32 ? launch<float>(*args, stream)
                                              : launch<uint16_t>(*args, stream);
}

GRADWIRE_API int gradwire_thc_dequantize(const gradwire_thc_out* args) {
  GRADWIRE_CUDA_BEGIN(thc_dequantize, args);
  return args->call.dtype == GRADWIRE_FLOAT32 ? launch<float>(*args, stream)
                                              : launch<uint16_t>(*args, stream);
}
