// A warp quantizes a tile that has whole groups: everything stays in registers. It is 512 coordinates of
// float32, 1024 of bfloat16, and 2048 where groups are larger.
#include "linear_lane.h"

namespace {

using namespace gradwire_cuda;

// Stores the scale of the group that begins at `first`; with the last one those that fill the section up.
__device__ __forceinline__ void store_scale(const gradwire_linear_encoding& args, int64_t first,
                                            uint32_t scale) {
  const int64_t group = first >> (__ffs(args.group) - 1);
  const bool last = first + args.group >= args.numel;
  const int64_t end = last ? scales_of(args.numel, args.group, args.scale_dtype) : group + 1;
  if (args.scale_dtype == GRADWIRE_FLOAT32) {
    uint32_t* scales = reinterpret_cast<uint32_t*>(args.message);
    scales[group] = scale;
    for (int64_t i = group + 1; i < end; ++i) scales[i] = 0;
  } else {
    uint16_t* scales = reinterpret_cast<uint16_t*>(args.message);
    scales[group] = (uint16_t)(scale >> 16);
    for (int64_t i = group + 1; i < end; ++i) scales[i] = 0;
  }
}

// How many lanes have a block: one where that is 64 bytes.
template <class T>
constexpr int LANES = sizeof(T) == 4 ? 2 : 1;

// Random bits of a lane's coordinates 8·i … 8·i + 7: 16 for each, in four words.
template <int SHARING>
__device__ __forceinline__ void draw_noise(const gradwire_linear_encoding& args, int64_t block, int side,
                                           int i, uint32_t* words) {
  const int64_t counter = (args.first + block * HADAMARD) / COUNTER + SHARING * i + side;
  const Words drawn = coordinate_words(stream_of(args), counter);
  if (SHARING == 1) {
    words[0] = drawn.x, words[1] = drawn.y, words[2] = drawn.z, words[3] = drawn.w;
  } else {
    // Two turns, one with half of this lane's words and one with half of the other's.
    const uint32_t x = __shfl_xor_sync(ALL, side ? drawn.x : drawn.z, 1);
    const uint32_t y = __shfl_xor_sync(ALL, side ? drawn.y : drawn.w, 1);
    words[0] = side ? x : drawn.x, words[1] = side ? y : drawn.y;
    words[2] = side ? drawn.z : x, words[3] = side ? drawn.w : y;
  }
}

// A warp's tile of PARTS parts. WHOLE: all of it is there, and aligned.
template <class T, int BITS, bool TRANSFORM, bool STOCHASTIC, int PARTS, bool WHOLE>
__device__ __forceinline__ void quantize_tile(const gradwire_linear_encoding& args, int64_t tile,
                                              uint8_t* codes) {
  constexpr int SHARING = LANES<T>, COUNT = OWN<SHARING>, STEP = PART_BLOCKS<SHARING>;
  const int lane = lane_of_thread(), side = lane % SHARING;
  const int64_t block = tile * (PARTS * STEP) + lane / SHARING;  // of the first part
  float values[PARTS][COUNT];
  uint32_t maxima[PARTS];
#pragma unroll
  for (int part = 0; part < PARTS; ++part) {
    const int64_t first = (block + part * STEP) * HADAMARD;
    load_turns<SHARING, WHOLE>((const T*)args.x + first, side, args.numel - first, values[part]);
  }
#pragma unroll
  for (int part = 0; part < PARTS; ++part) {
    if (TRANSFORM) transform<SHARING, T>(values[part], side);
    float largest[2] = {};
#pragma unroll
    for (int i = 0; i < COUNT; ++i) largest[i % 2] = larger_magnitude(largest[i % 2], values[part][i]);
    maxima[part] = bits_of(larger_magnitude(largest[0], largest[1]));
#pragma unroll
    for (int distance = 1; distance < WARP; distance *= 2)
      if (distance * COUNT < args.group)
        maxima[part] = larger(maxima[part], __shfl_xor_sync(ALL, maxima[part], distance));
  }
#pragma unroll
  for (int distance = 1; distance < PARTS; distance *= 2)
    if (distance * PART<SHARING> < args.group) {
#pragma unroll
      for (int part = 0; part < PARTS; ++part)
        if (!(part & distance))
          maxima[part] = maxima[part ^ distance] = larger(maxima[part], maxima[part ^ distance]);
    }
#pragma unroll
  for (int part = 0; part < PARTS; ++part) {
    const int64_t own = block + part * STEP, first = own * HADAMARD;
    const uint32_t scale = scale_of(maxima[part], TRANSFORM, args.scale_dtype);
    const float factor = factor_of(scale, BITS, TRANSFORM, STOCHASTIC);
    const bool there = WHOLE || first < args.numel;
    if (side == 0 && ((int)first & (args.group - 1)) == 0 && there) store_scale(args, first, scale);
    const uint32_t alive = scale < INFINITE ? 0xffffffffu : 0;
    uint32_t integers[COUNT], words[WORDS<SHARING, BITS>];
    if (STOCHASTIC) {
#pragma unroll
      for (int i = 0; i < COUNT; i += COUNTER) {
        uint32_t noise[COUNTER / 2];
        draw_noise<SHARING>(args, own, side, i / COUNTER, noise);
#pragma unroll
        for (int k = 0; k < COUNTER; ++k) {
          const uint32_t half = k % 2 ? noise[k / 2] >> 16 : noise[k / 2] & 0xffffu;
          integers[i + k] =
              stochastic_code(mul(values[part][i + k], factor), rounder_of(true, RAISE<BITS>), half);
        }
      }
      pack<BITS, 2>(integers, alive, words);
    } else {
#pragma unroll
      for (int i = 0; i < COUNT; ++i)
        integers[i] = nearest_code(mul(values[part][i], factor), rounder_of(false, RAISE<BITS>));
      pack<BITS, 0>(integers, alive, words);
    }
    uint8_t* target = codes + (own * SHARING + side) * (4 * BITS / SHARING);
    if constexpr (SHARING == 1 && BITS == 8) {
      store_pairs(target, there, lane % 2, words);
    } else if constexpr (SHARING == 1) {
      if (there) store_words(target, words);
    } else {
      uint32_t ordered[WORDS<SHARING, BITS>];
      to_message<TURN<T> * BITS / 8>(words, side, ordered);
      if (there) store_words(target, ordered);
    }
  }
}

template <class T, int BITS, bool TRANSFORM, bool STOCHASTIC, int PARTS>
__global__ void __launch_bounds__(THREADS, PARTS == 1 ? 4 : 2)
    quantize(const GRADWIRE_GRID_CONSTANT gradwire_linear_encoding args, bool vectors) {
  constexpr int TILE = PARTS * PART<LANES<T>>;
  const int64_t whole = vectors ? args.numel / TILE : 0, tiles = divide_up(args.numel, TILE);
  uint8_t* codes = args.message + scale_bytes_of(args.numel, args.group, args.scale_dtype);
  int64_t tile = warp_of_grid();
  for (; tile < whole; tile += warps_of_grid())
    quantize_tile<T, BITS, TRANSFORM, STOCHASTIC, PARTS, true>(args, tile, codes);
  for (; tile < tiles; tile += warps_of_grid())
    quantize_tile<T, BITS, TRANSFORM, STOCHASTIC, PARTS, false>(args, tile, codes);
}

template <class T, int BITS, bool TRANSFORM, bool STOCHASTIC>
int launch(const gradwire_linear_encoding& args, cudaStream_t stream) {
  constexpr int SMALL = PART<LANES<T>>, PARTS = LARGEST_GROUP / SMALL;
  const bool large = args.group > SMALL;
  const auto kernel =
      large ? quantize<T, BITS, TRANSFORM, STOCHASTIC, PARTS> : quantize<T, BITS, TRANSFORM, STOCHASTIC, 1>;
  const int grid = grid_of(kernel, divide_up(args.numel, WARPS * (large ? LARGEST_GROUP : SMALL)));
  GRADWIRE_LAUNCH(kernel, grid, THREADS, stream, args, aligned(args.x));
  return cudaGetLastError();
}
template <class T, int BITS, bool TRANSFORM>
int launch(const gradwire_linear_encoding& args, cudaStream_t stream) {
  if (args.stochastic) return launch<T, BITS, TRANSFORM, true>(args, stream);
  return launch<T, BITS, TRANSFORM, false>(args, stream);
}
template <class T>
int launch(const gradwire_linear_encoding& args, cudaStream_t stream) {
  if (args.bits == 4)
    return args.hadamard ? launch<T, 4, true>(args, stream) : launch<T, 4, false>(args, stream);
  return args.hadamard ? launch<T, 8, true>(args, stream) : launch<T, 8, false>(args, stream);
}

// ---- Decoding
//
// Two lanes have a block, so that they store whole sectors.
enum { SHARED_BY = 2, VALUES = OWN<SHARED_BY>, TILE_VALUES = PART<SHARED_BY> };

// What a message has of a lane's coordinates.
template <int BITS>
struct Piece {
  uint32_t words[WORDS<SHARED_BY, BITS>];
  float scale;
};
template <class T, int BITS>
__device__ __forceinline__ Piece<BITS> fetch(const gradwire_linear_decoding& args, const uint8_t* message,
                                             int64_t codes, int64_t block, int side) {
  Piece<BITS> piece;
  from_message<TURN<T> * BITS / 8>(message + codes + block * (4 * BITS), side, piece.words);
  const int64_t group = block >> (__ffs(args.group / HADAMARD) - 1);
  piece.scale = args.scale_dtype == GRADWIRE_FLOAT32
                    ? reinterpret_cast<const float*>(message)[group]
                    : from_bfloat16(reinterpret_cast<const uint16_t*>(message)[group]);
  return piece;
}

// Decodes the sum of all messages if SUM; else one message, perhaps ADDED to what is there. Lanes beyond the
// last block repeat it, so that collectives are a whole warp's.
template <class T, int BITS, bool TRANSFORM, bool SUM, bool ADDED, bool WHOLE>
__device__ __forceinline__ void decode_tile(const gradwire_linear_decoding& args, int64_t tile,
                                            int64_t codes) {
  const int lane = lane_of_thread(), side = lane % SHARED_BY;
  const int64_t block = tile * PART_BLOCKS<SHARED_BY> + lane / SHARED_BY,
                valid = args.numel - block * HADAMARD;
  const int64_t known = WHOLE ? block : smaller(block, (args.numel - 1) / HADAMARD);
  T* out = (T*)args.out + block * HADAMARD;
  float values[VALUES], before[VALUES];
  if (ADDED) load_turns<SHARED_BY, WHOLE>(out, side, valid, before);
  const uint8_t* message = args.messages;
  Piece<BITS> piece = fetch<T, BITS>(args, message, codes, known, side);
  float step = step_of(piece.scale, BITS, TRANSFORM);
  unpack<BITS>(piece.words, values);
  if (SUM) {
    // The next message is fetched before this one is added.
    if (args.count > 1) piece = fetch<T, BITS>(args, message += args.stride, codes, known, side);
#pragma unroll
    for (int i = 0; i < VALUES; ++i) values[i] = mul(values[i], step);
    for (int m = 1; m < args.count; ++m) {
      float terms[VALUES];
      step = step_of(piece.scale, BITS, TRANSFORM);
      unpack<BITS>(piece.words, terms);
      if (m + 1 < args.count) piece = fetch<T, BITS>(args, message += args.stride, codes, known, side);
#pragma unroll
      for (int i = 0; i < VALUES; ++i) values[i] = add(values[i], mul(terms[i], step));
    }
    if (TRANSFORM) transform<SHARED_BY, T>(values, side);
  } else {
    // Sums of codes are exact integers: they are transformed before they are multiplied.
    if (TRANSFORM) transform<SHARED_BY, T>(values, side);
#pragma unroll
    for (int i = 0; i < VALUES; ++i)
      values[i] = ADDED ? add(before[i], mul(values[i], step)) : mul(values[i], step);
  }
  store_turns<SHARED_BY, WHOLE>(out, side, valid, values);
}

template <class T, int BITS, bool TRANSFORM, bool SUM, bool ADDED>
__global__ void __launch_bounds__(THREADS, ADDED ? 3 : 4)
    decode(const GRADWIRE_GRID_CONSTANT gradwire_linear_decoding args, bool vectors) {
  const int64_t whole = vectors ? args.numel / TILE_VALUES : 0, tiles = divide_up(args.numel, TILE_VALUES);
  const int64_t codes = scale_bytes_of(args.numel, args.group, args.scale_dtype);
  int64_t tile = warp_of_grid();
  for (; tile < whole; tile += warps_of_grid())
    decode_tile<T, BITS, TRANSFORM, SUM, ADDED, true>(args, tile, codes);
  for (; tile < tiles; tile += warps_of_grid())
    decode_tile<T, BITS, TRANSFORM, SUM, ADDED, false>(args, tile, codes);
}

template <class T, int BITS, bool SUM, bool ADDED>
int launch(const gradwire_linear_decoding& args, cudaStream_t stream) {
  const auto kernel = args.hadamard ? decode<T, BITS, true, SUM, ADDED> : decode<T, BITS, false, SUM, ADDED>;
  const int grid = grid_of(kernel, divide_up(args.numel, WARPS * TILE_VALUES));
  GRADWIRE_LAUNCH(kernel, grid, THREADS, stream, args, aligned(args.out));
  return cudaGetLastError();
}
template <bool SUM, bool ADDED>
int launch(const gradwire_linear_decoding& args, cudaStream_t stream) {
  const bool full = args.call.dtype == GRADWIRE_FLOAT32;
  if (args.bits == 4)
    return full ? launch<float, 4, SUM, ADDED>(args, stream) : launch<uint16_t, 4, SUM, ADDED>(args, stream);
  return full ? launch<float, 8, SUM, ADDED>(args, stream) : launch<uint16_t, 8, SUM, ADDED>(args, stream);
}

}  // namespace

GRADWIRE_API int gradwire_linear_quantize(const gradwire_linear_encoding* args) {
  GRADWIRE_CUDA_BEGIN(linear_quantize, args);
  return args->call.dtype == GRADWIRE_FLOAT32 ? launch<float>(*args, stream)
                                              : launch<uint16_t>(*args, stream);
}

GRADWIRE_API int gradwire_linear_dequantize(const gradwire_linear_decoding* args) {
  GRADWIRE_CUDA_BEGIN(linear_dequantize, args);
  return launch<false, false>(*args, stream);
}

GRADWIRE_API int gradwire_linear_add(const gradwire_linear_decoding* args) {
  GRADWIRE_CUDA_BEGIN(linear_add, args);
  return launch<false, true>(*args, stream);
}

GRADWIRE_API int gradwire_linear_reduce(const gradwire_linear_decoding* args) {
  GRADWIRE_CUDA_BEGIN(linear_reduce, args);
  return launch<true, false>(*args, stream);
}
