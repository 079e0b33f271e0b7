// One warp per row of 512 coordinates, 16 neighbours to a lane. Groups of up to a row are a warp's own;
// several warps of a block share a longer one, and read it two or three times.
#include "gradwire/levels.h"

#include "group_sums.h"

using namespace gradwire;
using namespace gradwire_cuda;

namespace {

template <int COUNT>
__device__ __forceinline__ void normalize(float* x, float normalizer) {
#pragma unroll
  for (int i = 0; i < COUNT; ++i) x[i] = mul(x[i], normalizer);
}

template <int COUNT>
__device__ __forceinline__ float sum_of_squares(const float* x) {
  float squares[COUNT];
#pragma unroll
  for (int i = 0; i < COUNT; ++i) squares[i] = mul(x[i], x[i]);
  return fold<COUNT>(squares);
}

// The scale of the group that a lane's COUNT coordinates belong to, all of which is in `lanes` neighbouring
// lanes. The coordinates are normalized.
template <int COUNT>
__device__ __forceinline__ LevelScale find_scale(float* x, int lanes, bool l2, float last) {
  const uint32_t largest = largest_of_lanes(largest_of(x, COUNT), lanes);
  normalize<COUNT>(x, normalizer_of_largest(largest).factor);
  float squares = 0.0f;
  if (l2) squares = fold_lanes(sum_of_squares<COUNT>(x), lanes);
  return level_scale(largest, l2, squares, last);
}

// The codes of normalized coordinates.
template <int COUNT>
__device__ __forceinline__ void find_codes(const float* x, const LevelScale& scale, float last, int32_t bits,
                                           const uint32_t* dithers, uint32_t* codes) {
#pragma unroll
  for (int i = 0; i < COUNT; ++i) codes[i] = level_code(x[i], scale.unit, last, dithers[i], bits);
  if (scale.finite) return;
#pragma unroll
  for (int i = 0; i < COUNT; ++i) codes[i] = 0;
}

__device__ __forceinline__ void store_row(const gradwire_levels& args, const uint32_t* codes, int64_t begin,
                                          bool vectors, Stage& stage, int lane) {
  uint8_t* const target = args.message_out + begin / 8 * args.bits;
  const int64_t count = smaller(args.numel - begin, (int64_t)ROW);
  with_width<2, 16>(args.bits, [&](auto bits) {
    store_codes<decltype(bits)::value>(codes, count, vectors, target, stage, lane);
  });
}

// The values that a row's message stands for.
__device__ __forceinline__ void read_values(const gradwire_levels& args, int64_t begin, bool vectors,
                                            Stage& stage, int lane, float* values) {
  const int64_t first = begin + lane * EACH, count = smaller(args.numel - begin, (int64_t)ROW);
  const int shift = shift_of(args.group);
  const uint8_t* const source = args.message_in + begin / 8 * args.bits;
  const uint8_t* const norms = scales_of(args.message_in, args.numel, args.bits);
  uint32_t codes[EACH];
  with_width<2, 16>(args.bits, [&](auto bits) {
    load_codes<decltype(bits)::value>(source, count, vectors, stage, lane, codes);
  });
  float steps[2] = {};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t own = first + half * (EACH / 2);
    if (own < args.numel)
      steps[half] = step_of(float_of(load_halves<2>(norms + (own >> shift) * 4)), args.bits);
  }
#pragma unroll
  for (int i = 0; i < EACH; ++i) values[i] = level_value(codes[i], steps[i / (EACH / 2)], args.bits);
}

// Coordinates, or if SUM their sums with what a message stands for. All of a warp's lanes come here.
template <class T, bool SUM>
__device__ __forceinline__ void load_row(const gradwire_levels& args, int64_t begin, bool vectors_in,
                                         bool vectors_received, Stage& stage, int lane, float* x) {
  const int64_t first = begin + lane * EACH;
  load_values((const T*)args.values_in + first, args.numel - first, vectors_in, x);
  if constexpr (SUM) {
    if (begin >= args.numel) return;
    float received[EACH];
    read_values(args, begin, vectors_received, stage, lane, received);
    add_values(received, args.numel - first, x);
  }
}

template <class T, bool SUM>
__global__ void __launch_bounds__(THREADS, 3)
    encode(const GRADWIRE_GRID_CONSTANT gradwire_levels args, bool vectors_in, bool vectors_received,
           bool vectors_out) {
  GRADWIRE_SHARED(Stages, stages);
  const int lane = lane_of_thread(), shift = shift_of(args.group);
  const int lanes = args.group / EACH;  // that have a group; 0: a lane has two
  Stage& stage = stages[threadIdx.x / WARP];
  uint8_t* const norms = args.message_out + code_bytes(args.numel, args.bits);
  const float last = last_position(args.bits);
  const int64_t rows = items_levels_encode(args);
  for (int64_t row = warp_of_grid(); row < rows; row += warps_of_grid()) {
    const int64_t begin = row * ROW, first = begin + lane * EACH;
    float x[EACH];
    uint32_t codes[EACH], dithers[EACH];
    load_row<T, SUM>(args, begin, vectors_in, vectors_received, stage, lane, x);
    // A key in memory is read once more for every row: kept, it would cost a block of four.
    find_dithers(stream_of(args), args.first + first, dithers);
    uint8_t* const norm = norms + (first >> shift) * 4;
    if (lanes) {
      const LevelScale scale = find_scale<EACH>(x, lanes, args.l2, last);
      find_codes<EACH>(x, scale, last, args.bits, dithers, codes);
      if (lane % lanes == 0 && first < args.numel) store_halves<2>(norm, bits_of(scale.norm));
    } else {
#pragma unroll
      for (int half = 0; half < EACH; half += EACH / 2) {
        const LevelScale scale = find_scale<EACH / 2>(x + half, 1, args.l2, last);
        find_codes<EACH / 2>(x + half, scale, last, args.bits, dithers + half, codes + half);
        if (first + half < args.numel) store_halves<2>(norm + half / (EACH / 2) * 4, bits_of(scale.norm));
      }
    }
    store_row(args, codes, begin, vectors_out, stage, lane);
  }
}

template <class T, bool SUM>
__global__ void __launch_bounds__(THREADS, 3)
    encode_long(const GRADWIRE_GRID_CONSTANT gradwire_levels args, bool vectors_in, bool vectors_received,
                bool vectors_out) {
  GRADWIRE_SHARED(Stages, stages);
  GRADWIRE_SHARED(WarpWords, maxima);
  GRADWIRE_SHARED(WarpWords, sums);
  const int lane = lane_of_thread(), warp = threadIdx.x / WARP, shift = shift_of(args.group);
  const Division division = division_of(args.numel, args.group);
  uint8_t* const norms = args.message_out + code_bytes(args.numel, args.bits);
  const float last = last_position(args.bits);
  const Stream stream = stream_of(args);
  for (int64_t item = blockIdx.x; item < division.total; item += gridDim.x) {
    const int64_t start = item * division.span, own = start + warp * ROW;  // the warp's first row
    float x[EACH];
    const auto load = [&](int64_t tile) {
      load_row<T, SUM>(args, own + tile, vectors_in, vectors_received, stages[warp], lane, x);
    };
    uint32_t largest = 0;
    for (int64_t tile = 0; tile < division.span; tile += TILE) {
      load(tile);
      largest = larger(largest, largest_of(x, EACH));
    }
    largest = largest_of_warps(maxima, largest, warp, division.warps);
    const float normalizer = normalizer_of_largest(largest).factor;
    float squares = 0.0f;
    if (args.l2) {
      for (int64_t tile = 0; tile < division.span; tile += TILE) {
        load(tile);
        normalize<EACH>(x, normalizer);
        squares = add(squares, sum_of_squares<EACH>(x));  // 0 plus the first is the first
      }
      squares = fold_warps(sums, squares, warp, division.warps);
    }
    const LevelScale scale = level_scale(largest, args.l2, squares, last);
    for (int64_t tile = 0; tile < division.span; tile += TILE) {
      const int64_t begin = own + tile;
      if (begin >= args.numel) break;  // the whole warp
      uint32_t codes[EACH], dithers[EACH];
      load(tile);
      normalize<EACH>(x, normalizer);
      find_dithers(stream, args.first + begin + lane * EACH, dithers);
      find_codes<EACH>(x, scale, last, args.bits, dithers, codes);
      store_row(args, codes, begin, vectors_out, stages[warp], lane);
    }
    if (warp % division.warps == 0 && lane == 0 && own < args.numel)
      store_halves<2>(norms + (own >> shift) * 4, bits_of(scale.norm));
    __syncthreads();  // until nobody reads what warps have shared
  }
}

__global__ void __launch_bounds__(THREADS, 4)
    decode(const GRADWIRE_GRID_CONSTANT gradwire_levels args, bool add, bool vectors_in, bool vectors_out) {
  GRADWIRE_SHARED(Stages, stages);
  const int lane = lane_of_thread();
  const int64_t rows = items_levels_decode(args);
  for (int64_t row = warp_of_grid(); row < rows; row += warps_of_grid()) {
    const int64_t begin = row * ROW;
    float values[EACH];
    read_values(args, begin, vectors_in, stages[threadIdx.x / WARP], lane, values);
    store_values(args.values_out + begin, args.numel - begin, vectors_out, add, lane, values);
  }
}

template <class T, bool SUM>
int launch_encode(const gradwire_levels& args, cudaStream_t stream) {
  const bool vectors_in = aligned(args.values_in), vectors_out = aligned(args.message_out);
  const bool vectors_received = aligned(args.message_in);
  const auto launch = [&](auto kernel, int64_t blocks) {
    const int grid = grid_of(kernel, blocks);
    GRADWIRE_LAUNCH(kernel, grid, THREADS, stream, args, vectors_in, vectors_received, vectors_out);
  };
  if (args.group > ROW)
    launch(encode_long<T, SUM>, division_of(args.numel, args.group).total);
  else
    launch(encode<T, SUM>, divide_up(items_levels_encode(args), WARPS));
  return cudaGetLastError();
}

int launch_decode(const gradwire_levels& args, bool add, cudaStream_t stream) {
  const auto kernel = decode;
  const int grid = grid_of(kernel, divide_up(items_levels_decode(args), WARPS));
  GRADWIRE_LAUNCH(kernel, grid, THREADS, stream, args, add, aligned(args.message_in),
                  aligned(args.values_out));
  return cudaGetLastError();
}

}  // namespace

GRADWIRE_API int gradwire_levels_encode(const gradwire_levels* args) {
  GRADWIRE_CUDA_BEGIN(levels_encode, args);
  if (args->message_in) return launch_encode<float, true>(*args, stream);
  return args->call.dtype == GRADWIRE_FLOAT32 ? launch_encode<float, false>(*args, stream)
                                              : launch_encode<uint16_t, false>(*args, stream);
}

GRADWIRE_API int gradwire_levels_decode(const gradwire_levels* args) {
  GRADWIRE_CUDA_BEGIN(levels_decode, args);
  return launch_decode(*args, false, stream);
}

GRADWIRE_API int gradwire_levels_add(const gradwire_levels* args) {
  GRADWIRE_CUDA_BEGIN(levels_add, args);
  return launch_decode(*args, true, stream);
}
