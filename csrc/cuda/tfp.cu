// One warp per row of 512 coordinates: each lane has 16 neighbours, two lanes a block's 32.
#include "gradwire/tfp.h"

#include "rows.h"

using namespace gradwire;
using namespace gradwire_cuda;

namespace {

// The widths that codes, and planes that refine them, can have.
template <Kind KIND>
struct Widths {
  static constexpr int least = KIND == TINY ? 2 : 1;
  static constexpr int most = KIND == TINY ? 6 : KIND == HALF ? 9 : 32;
};

template <Kind KIND>
__device__ __forceinline__ bool kind_has_scales(const gradwire_tfp& args) {
  return KIND == EMBEDDED || (KIND != SINGLE && has_scales(args));
}

__device__ __forceinline__ uint32_t largest_of(const float* x) {
  uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < EACH; ++i) largest = larger(largest, magnitude_bits(x[i]));
  return largest;
}

template <Kind KIND>
__device__ __forceinline__ void truncate(const float* x, const Format& format, const uint32_t* noise,
                                         uint32_t* codes) {
#pragma unroll
  for (int i = 0; i < EACH; ++i)
    codes[i] = truncated<KIND>(bits_of(x[i]), float_of(magnitude_bits(x[i])), format, noise[i]);
  if (largest_of(x) < INFINITE) return;
#pragma unroll
  for (int i = 0; i < EACH; ++i) codes[i] = if_finite<KIND>(codes[i], bits_of(x[i]), format);
}

template <Kind KIND>
__device__ __forceinline__ void truncate_scaled(const float* x, uint32_t scale, const Format& format,
                                                const uint32_t* noise, uint32_t* codes) {
  const Divisor divisor = divisor_of(scale);
  float y[EACH];
#pragma unroll
  for (int i = 0; i < EACH; ++i) y[i] = float_of(magnitude_bits(x[i]));
  if (divisor.factor != 1.0f) {
#pragma unroll
    for (int i = 0; i < EACH; ++i) y[i] = mul(y[i], divisor.factor);
  }
#pragma unroll
  for (int i = 0; i < EACH; ++i) {
    y[i] = divide_by_scale(y[i], divisor.scale, divisor.reciprocal);
    codes[i] = truncated<KIND>(bits_of(x[i]), y[i], format, noise[i]);
  }
  if (scale == NOT_A_NUMBER >> 16) {
#pragma unroll
    for (int i = 0; i < EACH; ++i) codes[i] = format.nan;
  }
}

// The codes of a row, put together from a message and a plane if there is one (and if there can be one,
// REFINED).
template <int LEAST, int MOST, bool REFINED>
__device__ __forceinline__ void read_codes(const gradwire_tfp& args, int64_t begin, int64_t count,
                                           bool vectors, Stage& stage, int lane, uint32_t* codes) {
  const int width = args.bits - args.bits_in;
  const uint8_t* const message = args.message_in + begin / 8 * args.bits_in;
  with_width<2, MOST>(args.bits_in, [&](auto bits) {
    load_codes<decltype(bits)::value>(message, count, vectors, stage, lane, codes);
  });
  if (!REFINED || !width) return;
  uint32_t further[EACH] = {};
  const uint8_t* const plane = args.plane_in + begin / 8 * width;
  with_width<LEAST, MOST>(width, [&](auto bits) {
    load_codes<decltype(bits)::value>(plane, count, vectors, stage, lane, further);
  });
#pragma unroll
  for (int i = 0; i < EACH; ++i) codes[i] = codes[i] << width | further[i];
}

// The values that a row's message stands for.
template <Kind KIND, bool REFINED>
__device__ __forceinline__ void read_values(const gradwire_tfp& args, const Format& format, int64_t begin,
                                            bool vectors, Stage& stage, int lane, float* values) {
  const int64_t first = begin + lane * EACH;
  uint32_t codes[EACH];
  const int64_t count = smaller(args.numel - begin, (int64_t)ROW);
  read_codes<Widths<KIND>::least, Widths<KIND>::most, REFINED>(args, begin, count, vectors, stage, lane,
                                                               codes);
#pragma unroll
  for (int i = 0; i < EACH; ++i) values[i] = restored<KIND>(codes[i], format);
  if (!kind_has_scales<KIND>(args) || first >= args.numel) return;
  const uint8_t* const scales = scales_of(args.message_in, args.numel, args.bits_in);
  const float scale = from_bfloat16((uint16_t)load_halves<1>(scales + first / BLOCK * SCALE_BYTES));
#pragma unroll
  for (int i = 0; i < EACH; ++i) values[i] = mul(values[i], scale);
}

// Blocks of a processor, which limit registers to what nothing is spilled with.
template <Kind KIND, bool SUM>
constexpr int RESIDENT = SUM && KIND != EMBEDDED ? 2 : 3;

// Encodes values, or their sum with what a message stands for.
template <class T, Kind KIND, bool SUM>
__global__ void __launch_bounds__(THREADS, RESIDENT<KIND, SUM>)
    encode(const GRADWIRE_GRID_CONSTANT gradwire_tfp args, bool plane, bool vectors_in, bool vectors_received,
           bool vectors_out) {
  GRADWIRE_SHARED(Stages, stages);
  const int lane = lane_of_thread();
  Stage& stage = stages[threadIdx.x / WARP];
  const Format format = format_of(KIND, args.bits);
  const Stream stream = stream_of(args);
  const bool scaled = kind_has_scales<KIND>(args), stochastic = args.stochastic && format.dropped > 0;
  if (SUM) plane = false;
  const int width = plane ? args.bits - args.bits_in : args.bits;
  const uint32_t mask = ~0u >> (32 - width);
  uint8_t* const scales = args.message_out + code_bytes(args.numel, width);
  const int64_t rows = items_tfp_encode(args);
  for (int64_t row = warp_of_grid(); row < rows; row += warps_of_grid()) {
    const int64_t begin = row * ROW, first = begin + lane * EACH,
                  count = smaller(args.numel - begin, (int64_t)ROW);
    float x[EACH];
    uint32_t codes[EACH], noise[EACH] = {};
    float received[EACH];
    if constexpr (SUM) read_values<KIND, false>(args, format, begin, vectors_received, stage, lane, received);
    load_values((const T*)args.values_in + first, args.numel - first, vectors_in, x);
    if constexpr (SUM) add_values(received, args.numel - first, x);
    if (stochastic) {
      find_dithers(stream, args.first + first, noise);
#pragma unroll
      for (int i = 0; i < EACH; ++i) noise[i] = noise_of(noise[i], format.dropped);
    }
    if (scaled) {
      // Its neighbour has the other half of a lane's block.
      const uint32_t own = largest_of(x), largest = larger(own, __shfl_xor_sync(ALL, own, 1));
      const uint32_t scale = block_scale(largest, format, stochastic || KIND == EMBEDDED);
      if constexpr (KIND != SINGLE) truncate_scaled<KIND>(x, scale, format, noise, codes);
      if (!plane && lane % 2 == 0 && first < args.numel)
        store_halves<1>(scales + first / BLOCK * SCALE_BYTES, scale);
    } else {
      if constexpr (KIND != EMBEDDED) truncate<KIND>(x, format, noise, codes);
    }
    if (plane) {
#pragma unroll
      for (int i = 0; i < EACH; ++i) codes[i] &= mask;
    }
    uint8_t* const target = args.message_out + begin / 8 * width;
    with_width<Widths<KIND>::least, Widths<KIND>::most>(width, [&](auto bits) {
      store_codes<decltype(bits)::value>(codes, count, vectors_out, target, stage, lane);
    });
  }
}

template <Kind KIND>
__global__ void __launch_bounds__(THREADS, 4)
    decode(const GRADWIRE_GRID_CONSTANT gradwire_tfp args, bool add, bool vectors_in, bool vectors_out) {
  GRADWIRE_SHARED(Stages, stages);
  const int lane = lane_of_thread();
  Stage& stage = stages[threadIdx.x / WARP];
  const Format format = format_of(KIND, args.bits);
  const int64_t rows = items_tfp_decode(args);
  for (int64_t row = warp_of_grid(); row < rows; row += warps_of_grid()) {
    const int64_t begin = row * ROW;
    float values[EACH];
    read_values<KIND, true>(args, format, begin, vectors_in, stage, lane, values);
    store_values(args.values_out + begin, args.numel - begin, vectors_out, add, lane, values);
  }
}

__global__ void __launch_bounds__(THREADS, 3)
    refine(const GRADWIRE_GRID_CONSTANT gradwire_tfp args, bool vectors_in, bool vectors_out) {
  GRADWIRE_SHARED(Stages, stages);
  const int lane = lane_of_thread();
  Stage& stage = stages[threadIdx.x / WARP];
  const uint8_t* const scales_in = scales_of(args.message_in, args.numel, args.bits_in);
  uint8_t* const scales_out = args.message_out + code_bytes(args.numel, args.bits);
  const int64_t rows = items_tfp_refine(args);
  for (int64_t row = warp_of_grid(); row < rows; row += warps_of_grid()) {
    const int64_t begin = row * ROW, count = smaller(args.numel - begin, (int64_t)ROW);
    uint32_t codes[EACH];
    read_codes<1, 31, true>(args, begin, count, vectors_in, stage, lane, codes);
    uint8_t* const target = args.message_out + begin / 8 * args.bits;
    with_width<2, 32>(args.bits, [&](auto bits) {
      store_codes<decltype(bits)::value>(codes, count, vectors_out, target, stage, lane);
    });
    // A row has 16 blocks, a byte of whose scales is for each lane.
    const int64_t byte = begin / BLOCK * SCALE_BYTES + lane;
    if (has_scales(args) && byte < divide_up(args.numel, BLOCK) * SCALE_BYTES)
      scales_out[byte] = scales_in[byte];
  }
}

template <class T, bool SUM>
int launch_encode(const gradwire_tfp& args, bool plane, cudaStream_t stream) {
  const bool vectors_in = aligned(args.values_in), vectors_out = aligned(args.message_out);
  const bool vectors_received = aligned(args.message_in);
  const int64_t blocks = divide_up(items_tfp_encode(args), WARPS);
  const auto launch = [&](auto kernel) {
    const int grid = grid_of(kernel, blocks);
    GRADWIRE_LAUNCH(kernel, grid, THREADS, stream, args, plane, vectors_in, vectors_received, vectors_out);
  };
  switch (kind_of(args)) {
    case SINGLE: launch(encode<T, SINGLE, SUM>); break;
    case HALF: launch(encode<T, HALF, SUM>); break;
    case TINY: launch(encode<T, TINY, SUM>); break;
    case EMBEDDED: launch(encode<T, EMBEDDED, SUM>); break;
  }
  return cudaGetLastError();
}

int launch_encode(const gradwire_tfp& args, bool plane, cudaStream_t stream) {
  if (args.message_in) return launch_encode<float, true>(args, plane, stream);
  return args.call.dtype == GRADWIRE_FLOAT32 ? launch_encode<float, false>(args, plane, stream)
                                             : launch_encode<uint16_t, false>(args, plane, stream);
}

int launch_decode(const gradwire_tfp& args, bool add, cudaStream_t stream) {
  const bool vectors_in = aligned(args.message_in) && aligned(args.plane_in),
             vectors_out = aligned(args.values_out);
  const int64_t blocks = divide_up(items_tfp_decode(args), WARPS);
  const auto launch = [&](auto kernel) {
    const int grid = grid_of(kernel, blocks);
    GRADWIRE_LAUNCH(kernel, grid, THREADS, stream, args, add, vectors_in, vectors_out);
  };
  switch (kind_of(args)) {
    case SINGLE: launch(decode<SINGLE>); break;
    case HALF: launch(decode<HALF>); break;
    case TINY: launch(decode<TINY>); break;
    case EMBEDDED: launch(decode<EMBEDDED>); break;
  }
  return cudaGetLastError();
}

}  // namespace

GRADWIRE_API int gradwire_tfp_encode(const gradwire_tfp* args) {
  GRADWIRE_CUDA_BEGIN(tfp_encode, args);
  return launch_encode(*args, false, stream);
}

GRADWIRE_API int gradwire_tfp_plane(const gradwire_tfp* args) {
  GRADWIRE_CUDA_BEGIN(tfp_plane, args);
  return launch_encode(*args, true, stream);
}

GRADWIRE_API int gradwire_tfp_decode(const gradwire_tfp* args) {
  GRADWIRE_CUDA_BEGIN(tfp_decode, args);
  return launch_decode(*args, false, stream);
}

GRADWIRE_API int gradwire_tfp_add(const gradwire_tfp* args) {
  GRADWIRE_CUDA_BEGIN(tfp_add, args);
  return launch_decode(*args, true, stream);
}

GRADWIRE_API int gradwire_tfp_refine(const gradwire_tfp* args) {
  GRADWIRE_CUDA_BEGIN(tfp_refine, args);
  const bool vectors_in = aligned(args->message_in) && aligned(args->plane_in);
  const bool vectors_out = aligned(args->message_out);
  const auto kernel = refine;
  const int grid = grid_of(kernel, divide_up(items_tfp_refine(*args), WARPS));
  GRADWIRE_LAUNCH(kernel, grid, THREADS, stream, *args, vectors_in, vectors_out);
  return cudaGetLastError();
}
