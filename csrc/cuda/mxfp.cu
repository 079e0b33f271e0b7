// A warp has 32 blocks at a time. Each lane prepares the scales of one, then the warp goes through the
// blocks, four coordinates to a lane, so that all loads and stores are of consecutive words; lanes ask each
// other for scales.
#include "gradwire/mxfp.h"

#include "count.h"
#include "launch.h"

using namespace gradwire;
using namespace gradwire_cuda;

namespace {

constexpr int FOUR = 4, LANES = BLOCK / FOUR;  // a block's lanes
constexpr int BLOCKS = WARP / LANES;           // of a step
constexpr int STEPS = WARP / BLOCKS, TILE = WARP * BLOCK;

__device__ __forceinline__ void store_four(float* target, const float* values) {
  store_aligned<FOUR>(target, values);
}
__device__ __forceinline__ void store_four(uint16_t* target, const float* values) {
  *reinterpret_cast<uint2*>(target) =
      make_uint2((uint32_t)to_bfloat16(values[0]) | (uint32_t)to_bfloat16(values[1]) << 16,
                 (uint32_t)to_bfloat16(values[2]) | (uint32_t)to_bfloat16(values[3]) << 16);
}
// Whether a tile has all its coordinates, so that it needs no checks.
__device__ __forceinline__ bool is_whole(const gradwire_mxfp& args, int64_t tile) {
  return (tile + 1) * TILE <= args.numel;
}
// The number of a lane's four coordinates among all fours.
__device__ __forceinline__ int64_t group_of(int64_t tile, int step, int lane) {
  return tile * (TILE / FOUR) + step * WARP + lane;
}

// Captured rounds, whose mu is in memory, have kernels of their own: others would need registers for it.
template <bool PLACED>
__device__ __forceinline__ float mu_of(const gradwire_mxfp& args) {
  return PLACED ? *args.mu_place : args.mu;
}

// ---- Maxima

// Magnitude bits of the block that this lane writes, from what all lanes have of one step's blocks.
__device__ __forceinline__ void take_maximum(const float* values, int step, int lane, uint32_t& own) {
  uint32_t maximum = 0;
#pragma unroll
  for (int i = 0; i < FOUR; ++i) maximum = larger(maximum, magnitude_bits(values[i]));
#pragma unroll
  for (int distance = LANES / 2; distance; distance /= 2)
    maximum = larger(maximum, __shfl_xor_sync(ALL, maximum, distance));
  maximum = __shfl_sync(ALL, maximum, lane % BLOCKS * LANES);
  if (lane / BLOCKS == step) own = maximum;
}

template <class T>
__global__ void __launch_bounds__(THREADS)
    maxima(const GRADWIRE_GRID_CONSTANT gradwire_mxfp args, bool vectors) {
  const int lane = lane_of_thread();
  const T* x = (const T*)args.x;
  const int64_t blocks = items_mxfp_maxima(args), tiles = divide_up(blocks, WARP);
  for (int64_t tile = warp_of_grid(); tile < tiles; tile += warps_of_grid()) {
    uint32_t own = 0;
    if (vectors && is_whole(args, tile)) {
      float values[STEPS][FOUR];
#pragma unroll
      for (int step = 0; step < STEPS; ++step) load_four(x + group_of(tile, step, lane) * FOUR, values[step]);
#pragma unroll
      for (int step = 0; step < STEPS; ++step) take_maximum(values[step], step, lane, own);
    } else {
#pragma unroll 1
      for (int step = 0; step < STEPS; ++step) {
        float values[FOUR];
        const int64_t place = group_of(tile, step, lane) * FOUR;
        load_some<FOUR>(x + place, args.numel - place, values);
        take_maximum(values, step, lane, own);
      }
    }
    const int64_t block = tile * WARP + lane;
    if (block < blocks) args.block_maxima[block] = (uint16_t)rounded_up(own);
  }
}

// ---- Quantize

// Four elements in the low 4·WIDTH bits.
template <int WIDTH>
__device__ __forceinline__ uint32_t cast_four(const float* scaled, uint32_t alive, uint32_t& saturated) {
  constexpr uint32_t EACH = 1u | 1u << WIDTH | 1u << 2 * WIDTH | 1u << 3 * WIDTH;
  constexpr uint32_t SIGNS = Element<WIDTH>::SIGN_BIT * EACH;
  uint32_t codes = 0, tops = 0;
#pragma unroll
  for (int i = FOUR - 1; i >= 0; --i) {
    const uint32_t bits = bits_of(scaled[i]);
    codes = (codes << WIDTH) + magnitude_code<WIDTH>(bits & MAGNITUDE & alive);
    tops = tops << WIDTH | bits >> (32 - WIDTH);
  }
  // The code after the largest has the sign's bit, or in E4M3 all bits below it.
  const uint32_t exceeded = (WIDTH == 8 ? codes + EACH : codes) & SIGNS;
  saturated += __popc(exceeded);
  return (codes - (exceeded >> (WIDTH - 1))) | (tops & SIGNS & alive);
}

// The four elements of each lane at its place in the stream.
template <int WIDTH>
__device__ __forceinline__ void store_words(uint8_t* out, int64_t group, uint32_t four, int lane) {
  if (WIDTH == 8) {
    reinterpret_cast<uint32_t*>(out)[group] = four;
  } else if (WIDTH == 4) {
    reinterpret_cast<uint16_t*>(out)[group] = (uint16_t)four;
  } else {  // four lanes have three words: a lane completes its own with the next one's low bits
    const uint32_t next = __shfl_sync(ALL, four, (lane + 1) % WARP);
    const int part = lane % 4;
    if (part < 3)
      reinterpret_cast<uint32_t*>(out)[group / 4 * 3 + part] = four >> 8 * part | next << (24 - 8 * part);
  }
}
template <int WIDTH>
__device__ __forceinline__ void store_bytes(uint8_t* out, int64_t group, uint32_t four) {
  constexpr int BYTES = WIDTH / 2;
#pragma unroll
  for (int i = 0; i < BYTES; ++i) out[group * BYTES + i] = (uint8_t)(four >> 8 * i);
}

// The elements of a step's four coordinates, with the scales that lanes have prepared; those of dead blocks
// have a normalizer of 0.
template <int WIDTH>
__device__ __forceinline__ uint32_t quantize_four(float* values, float own_normalizer, float own_factor,
                                                  int from, uint32_t& saturated) {
  const float normalizer = __shfl_sync(ALL, own_normalizer, from),
              factor = __shfl_sync(ALL, own_factor, from);
#pragma unroll
  for (int i = 0; i < FOUR; ++i) values[i] = mul(mul(values[i], normalizer), factor);
  return cast_four<WIDTH>(values, bits_of(normalizer) ? ~0u : 0u, saturated);
}

template <int WIDTH, class T, bool PLACED>
__global__ void __launch_bounds__(THREADS)
    quantize(const GRADWIRE_GRID_CONSTANT gradwire_mxfp args, bool vectors) {
  const int lane = lane_of_thread();
  const T* x = (const T*)args.x;
  const int64_t blocks = items_mxfp_quantize(args), tiles = divide_up(blocks, WARP);
  uint32_t saturated = 0;
  for (int64_t tile = warp_of_grid(); tile < tiles; tile += warps_of_grid()) {
    const int64_t block = tile * WARP + lane;
    const WayIn own = way_in<WIDTH>(block < blocks ? args.maxima[block] : 0, mu_of<PLACED>(args), args.rule);
    const float normalizer = own.alive ? own.normalizer : 0.0f;
    if (vectors && is_whole(args, tile)) {
      float values[STEPS][FOUR];
#pragma unroll
      for (int step = 0; step < STEPS; ++step) load_four(x + group_of(tile, step, lane) * FOUR, values[step]);
#pragma unroll
      for (int step = 0; step < STEPS; ++step) {
        const int from = step * BLOCKS + lane / LANES;
        const uint32_t four = quantize_four<WIDTH>(values[step], normalizer, own.factor, from, saturated);
        store_words<WIDTH>(args.elements, group_of(tile, step, lane), four, lane);
      }
    } else {
#pragma unroll 1
      for (int step = 0; step < STEPS; ++step) {
        float values[FOUR];
        const int64_t group = group_of(tile, step, lane);
        const int from = step * BLOCKS + lane / LANES;
        load_some<FOUR>(x + group * FOUR, args.numel - group * FOUR, values);
        const uint32_t four = quantize_four<WIDTH>(values, normalizer, own.factor, from, saturated);
        if (tile * WARP + from < blocks) store_bytes<WIDTH>(args.elements, group, four);
      }
    }
  }
  count(args.saturated, saturated);
}

// ---- Dequantize

// The lane's four elements in the low 4·WIDTH bits.
template <int WIDTH>
__device__ __forceinline__ uint32_t load_words(const uint8_t* in, int64_t group, int lane) {
  if (WIDTH == 8) return reinterpret_cast<const uint32_t*>(in)[group];
  if (WIDTH == 4) return reinterpret_cast<const uint16_t*>(in)[group];
  const int part = lane % 4;  // of four lanes that share three words: the second and third need two of them
  const uint32_t* word = reinterpret_cast<const uint32_t*>(in) + group / 4 * 3 + (part ? part - 1 : 0);
  const uint64_t both = (uint64_t)word[part == 1 || part == 2] << 32 | word[0];
  return (uint32_t)(both >> (part ? 32 - 8 * part : 0));
}
template <int WIDTH>
__device__ __forceinline__ uint32_t load_bytes(const uint8_t* in, int64_t group) {
  constexpr int BYTES = WIDTH / 2;
  uint32_t four = 0;
#pragma unroll
  for (int i = 0; i < BYTES; ++i) four |= (uint32_t)in[group * BYTES + i] << 8 * i;
  return four;
}

// Values of four elements: their bits moved to where float32 has them, subnormal as they are, times a power
// of two.
template <int WIDTH>
__device__ __forceinline__ void values_of_four(uint32_t four, float* values) {
  using E = Element<WIDTH>;
  constexpr uint32_t BITS = SIGN | (E::SIGN_BIT - 1) << E::SHIFT;
#pragma unroll
  for (int i = 0; i < FOUR; ++i) {
    const uint32_t top = four << (32 - WIDTH * (i + 1));
    const uint32_t bits = (uint32_t)((int32_t)top >> (8 - E::EXPONENT_BITS)) & BITS;
    values[i] = mul(float_of(bits), power_of_two(254 - E::BIAS));
  }
  if (WIDTH == 8 && (((four & 0x7f7f7f7fu) + 0x01010101u) & 0x80808080u)) {
#pragma unroll
    for (int i = 0; i < FOUR; ++i)
      if ((four >> 8 * i & 0x7f) == 0x7f) values[i] = float_of(NOT_A_NUMBER);
  }
}

// Means of a step's four sums, with the scales that lanes have prepared.
template <int WIDTH>
__device__ __forceinline__ void dequantize_four(uint32_t four, const WayOut& own, int from, float* values) {
  const float scale = __shfl_sync(ALL, own.step, from), restorer = __shfl_sync(ALL, own.restorer, from);
  values_of_four<WIDTH>(four, values);
#pragma unroll
  for (int i = 0; i < FOUR; ++i) values[i] = mul(mul(values[i], scale), restorer);
}

template <int WIDTH, class T, bool PLACED>
__global__ void __launch_bounds__(THREADS)
    dequantize(const GRADWIRE_GRID_CONSTANT gradwire_mxfp args, bool vectors) {
  const int lane = lane_of_thread();
  T* mean = (T*)args.mean;
  const int64_t blocks = items_mxfp_dequantize(args), tiles = divide_up(blocks, WARP);
  for (int64_t tile = warp_of_grid(); tile < tiles; tile += warps_of_grid()) {
    const int64_t block = tile * WARP + lane;
    const WayOut own =
        way_out<WIDTH>(block < blocks ? args.maxima[block] : 0, mu_of<PLACED>(args), args.rule, args.workers);
    if (vectors && is_whole(args, tile)) {
      uint32_t fours[STEPS];
#pragma unroll
      for (int step = 0; step < STEPS; ++step)
        fours[step] = load_words<WIDTH>(args.elements, group_of(tile, step, lane), lane);
#pragma unroll
      for (int step = 0; step < STEPS; ++step) {
        float values[FOUR];
        dequantize_four<WIDTH>(fours[step], own, step * BLOCKS + lane / LANES, values);
        store_four(mean + group_of(tile, step, lane) * FOUR, values);
      }
    } else {
#pragma unroll 1
      for (int step = 0; step < STEPS; ++step) {
        float values[FOUR];
        const int64_t group = group_of(tile, step, lane), left = args.numel - group * FOUR;
        const uint32_t four = left > 0 ? load_bytes<WIDTH>(args.elements, group) : 0;
        dequantize_four<WIDTH>(four, own, step * BLOCKS + lane / LANES, values);
        store_some<FOUR>(mean + group * FOUR, left, values);
      }
    }
  }
}

// ---- Launches

template <class Kernel>
int launch(Kernel kernel, const gradwire_mxfp& args, bool vectors, cudaStream_t stream) {
  const int grid = grid_of(kernel, divide_up(items_mxfp_maxima(args), WARP * WARPS));
  GRADWIRE_LAUNCH(kernel, grid, THREADS, stream, args, vectors);
  return cudaGetLastError();
}

template <int WIDTH, class T>
int launch_quantize(const gradwire_mxfp& args, cudaStream_t stream) {
  const bool vectors = aligned(args.x) && aligned(args.elements);
  return args.mu_place ? launch(quantize<WIDTH, T, true>, args, vectors, stream)
                       : launch(quantize<WIDTH, T, false>, args, vectors, stream);
}
template <int WIDTH>
int launch_quantize(const gradwire_mxfp& args, cudaStream_t stream) {
  return args.call.dtype == GRADWIRE_FLOAT32 ? launch_quantize<WIDTH, float>(args, stream)
                                             : launch_quantize<WIDTH, uint16_t>(args, stream);
}
template <int WIDTH, class T>
int launch_dequantize(const gradwire_mxfp& args, cudaStream_t stream) {
  const bool vectors = aligned(args.mean) && aligned(args.elements);
  return args.mu_place ? launch(dequantize<WIDTH, T, true>, args, vectors, stream)
                       : launch(dequantize<WIDTH, T, false>, args, vectors, stream);
}
template <int WIDTH>
int launch_dequantize(const gradwire_mxfp& args, cudaStream_t stream) {
  return args.call.dtype == GRADWIRE_FLOAT32 ? launch_dequantize<WIDTH, float>(args, stream)
                                             : launch_dequantize<WIDTH, uint16_t>(args, stream);
}

}  // namespace

GRADWIRE_API int gradwire_mxfp_maxima(const gradwire_mxfp* args) {
  GRADWIRE_CUDA_BEGIN(mxfp_maxima, args);
  const bool vectors = aligned(args->x);
  return args->call.dtype == GRADWIRE_FLOAT32 ? launch(maxima<float>, *args, vectors, stream)
                                              : launch(maxima<uint16_t>, *args, vectors, stream);
}

GRADWIRE_API int gradwire_mxfp_quantize(const gradwire_mxfp* args) {
  GRADWIRE_CUDA_BEGIN(mxfp_quantize, args);
  switch (args->width) {
    case 8: return launch_quantize<8>(*args, stream);
    case 6: return launch_quantize<6>(*args, stream);
    default: return launch_quantize<4>(*args, stream);
  }
}

GRADWIRE_API int gradwire_mxfp_dequantize(const gradwire_mxfp* args) {
  GRADWIRE_CUDA_BEGIN(mxfp_dequantize, args);
  switch (args->width) {
    case 8: return launch_dequantize<8>(*args, stream);
    case 6: return launch_dequantize<6>(*args, stream);
    default: return launch_dequantize<4>(*args, stream);
  }
}
