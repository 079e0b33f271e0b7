// One warp per row of 512 coordinates, 16 neighbours to a lane. Groups of up to a row are a warp's own;
// several warps of a block share a longer one, and read it twice.
#include "gradwire/signs.h"

#include "group_sums.h"

using namespace gradwire;
using namespace gradwire_cuda;

namespace {

// What the means of the group are found from.
struct Parts {
  uint32_t largest;
  float positive, negative;  // sums
  int32_t there, below;      // coordinates, and negative ones
};

template <int COUNT>
__device__ __forceinline__ uint32_t signs_of(const float* x) {
  uint32_t signs = 0;
#pragma unroll
  for (int i = 0; i < COUNT; ++i) signs |= (x[i] < 0.0f ? 1u : 0u) << i;
  return signs;
}

template <int COUNT>
__device__ __forceinline__ float sum_of(const float* x, float normalizer, bool negative) {
  float part[COUNT];
#pragma unroll
  for (int i = 0; i < COUNT; ++i)
    part[i] = negative ? negative_part(x[i], normalizer) : positive_part(x[i], normalizer);
  return fold<COUNT>(part);
}

// The parts of a lane's COUNT coordinates, `valid` of which exist; `lanes` neighbouring lanes have the whole
// group.
template <int COUNT>
__device__ __forceinline__ Parts find_parts(const float* x, int64_t valid, int lanes) {
  Parts parts;
  parts.largest = largest_of_lanes(largest_of(x, COUNT), lanes);
  const float normalizer = normalizer_of_largest(parts.largest).factor;
  parts.positive = fold_lanes(sum_of<COUNT>(x, normalizer, false), lanes);
  parts.negative = fold_lanes(sum_of<COUNT>(x, normalizer, true), lanes);
  const int32_t there = (int32_t)smaller(larger(valid, (int64_t)0), (int64_t)COUNT);
  // Both counts in one word: neither exceeds 512.
  const int32_t counts = count_lanes(there << 16 | __popc(signs_of<COUNT>(x)), lanes);
  parts.there = counts >> 16;
  parts.below = counts & 0xffff;
  return parts;
}

__device__ __forceinline__ void store_means(const Parts& parts, uint8_t* means) {
  const float positive = sign_mean(parts.positive, parts.there - parts.below, parts.largest);
  const float negative = sign_mean(parts.negative, parts.below, parts.largest);
  store_halves<2>(means, bits_of(positive));
  store_halves<2>(means + 4, bits_of(negative));
}

// A lane's 16 signs, of which `valid` are there.
__device__ __forceinline__ void store_signs(uint8_t* target, uint32_t signs, int64_t valid) {
  if (valid > 8)
    store_halves<1>(target, signs);
  else if (valid > 0)
    *target = (uint8_t)signs;
}

// A lane's values that a message stands for.
__device__ __forceinline__ void read_values(const gradwire_signs& args, int64_t first, float* values) {
  const int64_t valid = args.numel - first;
  const int shift = shift_of(args.group);
  const uint8_t* const all_means = scales_of(args.message_in, args.numel, 1);
  const uint8_t* const source = args.message_in + first / 8;
  const uint32_t signs = valid > 8 ? load_halves<1>(source) : valid > 0 ? *source : 0u;
#pragma unroll
  for (int half = 0; half < EACH; half += EACH / 2) {
    float positive = 0.0f, negative = 0.0f;
    if (valid > half) {
      const uint8_t* const means = all_means + ((first + half) >> shift) * 8;
      positive = float_of(load_halves<2>(means));
      negative = float_of(load_halves<2>(means + 4));
    }
#pragma unroll
    for (int i = half; i < half + EACH / 2; ++i) values[i] = signs >> i & 1 ? negative : positive;
  }
}

// A lane's coordinates, or if SUM their sums with what a message stands for.
template <class T, bool SUM>
__device__ __forceinline__ void load_lane(const gradwire_signs& args, int64_t first, bool vectors, float* x) {
  load_values((const T*)args.values_in + first, args.numel - first, vectors, x);
  if constexpr (SUM) {
    float received[EACH];
    read_values(args, first, received);
    add_values(received, args.numel - first, x);
  }
}

template <class T, bool SUM>
__global__ void __launch_bounds__(THREADS, 4)
    encode(const GRADWIRE_GRID_CONSTANT gradwire_signs args, bool vectors) {
  const int lane = lane_of_thread(), shift = shift_of(args.group);
  const int lanes = args.group / EACH;  // that have a group; 0: a lane has two
  uint8_t* const means = args.message_out + code_bytes(args.numel, 1);
  const int64_t rows = items_signs_encode(args);
  for (int64_t row = warp_of_grid(); row < rows; row += warps_of_grid()) {
    const int64_t first = row * ROW + lane * EACH, valid = args.numel - first;
    float x[EACH];
    load_lane<T, SUM>(args, first, vectors, x);
    store_signs(args.message_out + first / 8, signs_of<EACH>(x), valid);
    uint8_t* const own = means + (first >> shift) * 8;
    if (lanes) {
      const Parts parts = find_parts<EACH>(x, valid, lanes);
      if (lane % lanes == 0 && valid > 0) store_means(parts, own);
    } else {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int64_t left = valid - half * (EACH / 2);
        const Parts parts = find_parts<EACH / 2>(x + half * (EACH / 2), left, 1);
        if (left > 0) store_means(parts, own + 8 * half);
      }
    }
  }
}

template <class T, bool SUM>
__global__ void __launch_bounds__(THREADS, 4)
    encode_long(const GRADWIRE_GRID_CONSTANT gradwire_signs args, bool vectors) {
  GRADWIRE_SHARED(WarpWords, maxima);
  GRADWIRE_SHARED(WarpWords, positives);
  GRADWIRE_SHARED(WarpWords, negatives);
  GRADWIRE_SHARED(WarpWords, counts);
  const int lane = lane_of_thread(), warp = threadIdx.x / WARP, shift = shift_of(args.group);
  const Division division = division_of(args.numel, args.group);
  uint8_t* const means = args.message_out + code_bytes(args.numel, 1);
  for (int64_t item = blockIdx.x; item < division.total; item += gridDim.x) {
    const int64_t begin = item * division.span + warp * ROW, own = begin + lane * EACH;
    float x[EACH];
    Parts parts = {};
    for (int64_t tile = 0; tile < division.span; tile += TILE) {
      load_lane<T, SUM>(args, own + tile, vectors, x);
      parts.largest = larger(parts.largest, largest_of(x, EACH));
    }
    parts.largest = largest_of_warps(maxima, parts.largest, warp, division.warps);
    const float normalizer = normalizer_of_largest(parts.largest).factor;
    for (int64_t tile = 0; tile < division.span; tile += TILE) {
      const int64_t first = own + tile, valid = args.numel - first;
      load_lane<T, SUM>(args, first, vectors, x);
      const uint32_t signs = signs_of<EACH>(x);
      const float positive = sum_of<EACH>(x, normalizer, false), negative = sum_of<EACH>(x, normalizer, true);
      store_signs(args.message_out + first / 8, signs, valid);
      parts.positive = tile ? add(parts.positive, positive) : positive;  // 0 plus -0 would be 0
      parts.negative = tile ? add(parts.negative, negative) : negative;
      parts.below += __popc(signs);
    }
    parts.positive = fold_warps(positives, parts.positive, warp, division.warps);
    parts.negative = fold_warps(negatives, parts.negative, warp, division.warps);
    parts.below = count_warps(counts, parts.below, warp, division.warps);
    if (warp % division.warps == 0 && lane == 0 && begin < args.numel) {
      parts.there = (int32_t)smaller(args.numel - begin, (int64_t)args.group);
      store_means(parts, means + (begin >> shift) * 8);
    }
    __syncthreads();  // until nobody reads what warps have shared
  }
}

__global__ void __launch_bounds__(THREADS)
    decode(const GRADWIRE_GRID_CONSTANT gradwire_signs args, bool add, bool vectors) {
  const int lane = lane_of_thread();
  const int64_t rows = items_signs_decode(args);
  for (int64_t row = warp_of_grid(); row < rows; row += warps_of_grid()) {
    const int64_t begin = row * ROW;
    float values[EACH];
    read_values(args, begin + lane * EACH, values);
    store_values(args.values_out + begin, args.numel - begin, vectors, add, lane, values);
  }
}

template <class T, bool SUM>
int launch_encode(const gradwire_signs& args, cudaStream_t stream) {
  const auto launch = [&](auto kernel, int64_t blocks) {
    const int grid = grid_of(kernel, blocks);
    GRADWIRE_LAUNCH(kernel, grid, THREADS, stream, args, aligned(args.values_in));
  };
  if (args.group > ROW)
    launch(encode_long<T, SUM>, division_of(args.numel, args.group).total);
  else
    launch(encode<T, SUM>, divide_up(items_signs_encode(args), WARPS));
  return cudaGetLastError();
}

int launch_decode(const gradwire_signs& args, bool add, cudaStream_t stream) {
  const auto kernel = decode;
  const int grid = grid_of(kernel, divide_up(items_signs_decode(args), WARPS));
  GRADWIRE_LAUNCH(kernel, grid, THREADS, stream, args, add, aligned(args.values_out));
  return cudaGetLastError();
}

}  // namespace

GRADWIRE_API int gradwire_signs_encode(const gradwire_signs* args) {
  GRADWIRE_CUDA_BEGIN(signs_encode, args);
  if (args->message_in) return launch_encode<float, true>(*args, stream);
  return args->call.dtype == GRADWIRE_FLOAT32 ? launch_encode<float, false>(*args, stream)
                                              : launch_encode<uint16_t, false>(*args, stream);
}

GRADWIRE_API int gradwire_signs_decode(const gradwire_signs* args) {
  GRADWIRE_CUDA_BEGIN(signs_decode, args);
  return launch_decode(*args, false, stream);
}

GRADWIRE_API int gradwire_signs_add(const gradwire_signs* args) {
  GRADWIRE_CUDA_BEGIN(signs_add, args);
  return launch_decode(*args, true, stream);
}
