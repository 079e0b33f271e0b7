// Sums of packed elements. Each lane has 16 bytes at a time, or 48 where elements have 6 bits.
#include "gradwire/mxfp.h"

#include "count.h"
#include "launch.h"

using namespace gradwire;
using namespace gradwire_cuda;

namespace {

template <int WIDTH>
__device__ __forceinline__ uint32_t add_word(uint32_t own, uint32_t other, uint32_t& saturated) {
  const uint32_t a = spread<WIDTH>(own), b = spread<WIDTH>(other);
  uint32_t sums = 0, exceeded = 0;
#pragma unroll
  for (int pair = 0; pair < Halves<WIDTH>::PAIRS; ++pair) {
    const uint32_t halves = ptx::add_rn_f16x2(pair_of<WIDTH>(a, pair), pair_of<WIDTH>(b, pair));
    sums |= from_halves<WIDTH>(halves, exceeded) << WIDTH * pair;
  }
  saturated += (exceeded & 0xffff) + (exceeded >> 16);
  return gather<WIDTH>(sums);
}

// What a lane adds at a time: words of 32 bits, which begin with an element.
template <int WIDTH>
constexpr int ADDED_WORDS = WIDTH == 6 ? 12 : 4;

template <int WIDTH>
__device__ __forceinline__ void add_words(uint32_t* own, const uint32_t* other, uint32_t& saturated) {
  if constexpr (WIDTH == 6) {
#pragma unroll
    for (int i = 0; i < ADDED_WORDS<WIDTH>; i += 3) {  // three words are four of 24 bits
      uint32_t *a = own + i, parts[4];
      const uint32_t* b = other + i;
      parts[0] = add_word<WIDTH>(a[0], b[0], saturated);
      parts[1] = add_word<WIDTH>(a[0] >> 24 | a[1] << 8, b[0] >> 24 | b[1] << 8, saturated);
      parts[2] = add_word<WIDTH>(a[1] >> 16 | a[2] << 16, b[1] >> 16 | b[2] << 16, saturated);
      parts[3] = add_word<WIDTH>(a[2] >> 8, b[2] >> 8, saturated);
      a[0] = parts[0] | parts[1] << 24;
      a[1] = parts[1] >> 8 | parts[2] << 16;
      a[2] = parts[2] >> 16 | parts[3] << 8;
    }
  } else {
#pragma unroll
    for (int i = 0; i < ADDED_WORDS<WIDTH>; ++i) own[i] = add_word<WIDTH>(own[i], other[i], saturated);
  }
}

template <int WORDS>
__device__ __forceinline__ void load_bytes(const uint8_t* source, int64_t left, uint32_t* words) {
#pragma unroll
  for (int i = 0; i < WORDS; ++i) {
    words[i] = 0;
    for (int k = 0; k < 4; ++k)
      if (4 * i + k < left) words[i] |= (uint32_t)source[4 * i + k] << 8 * k;
  }
}
template <int WORDS>
__device__ __forceinline__ void load_words(const uint8_t* source, uint32_t* words) {
#pragma unroll
  for (int i = 0; i < WORDS; i += 4) {
    const uint4 part = reinterpret_cast<const uint4*>(source)[i / 4];
    words[i] = part.x, words[i + 1] = part.y, words[i + 2] = part.z, words[i + 3] = part.w;
  }
}

template <int WIDTH>
__global__ void __launch_bounds__(THREADS)
    add_elements(const GRADWIRE_GRID_CONSTANT gradwire_mxfp args, bool vectors) {
  constexpr int WORDS = ADDED_WORDS<WIDTH>, BYTES = 4 * WORDS;
  const int64_t bytes = items_mxfp_add(args) * Element<WIDTH>::BYTES,
                step = (int64_t)gridDim.x * THREADS * BYTES;
  uint32_t saturated = 0;
  for (int64_t byte = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * BYTES; byte < bytes; byte += step) {
    uint8_t* target = args.elements + byte;
    const uint8_t* source = args.message + byte;
    const int64_t left = bytes - byte;
    uint32_t own[WORDS], other[WORDS];
    if (vectors && left >= BYTES) {
      load_words<WORDS>(target, own);
      load_words<WORDS>(source, other);
      add_words<WIDTH>(own, other, saturated);
#pragma unroll
      for (int i = 0; i < WORDS; i += 4)
        reinterpret_cast<uint4*>(target)[i / 4] = make_uint4(own[i], own[i + 1], own[i + 2], own[i + 3]);
    } else {
      load_bytes<WORDS>(target, left, own);
      load_bytes<WORDS>(source, left, other);
      add_words<WIDTH>(own, other, saturated);
#pragma unroll
      for (int i = 0; i < BYTES; ++i)
        if (i < left) target[i] = (uint8_t)(own[i / 4] >> 8 * (i % 4));
    }
  }
  count(args.saturated, saturated);
}

template <int WIDTH>
int launch_add(const gradwire_mxfp& args, cudaStream_t stream) {
  const auto kernel = add_elements<WIDTH>;
  const int64_t lanes = divide_up(items_mxfp_add(args) * Element<WIDTH>::BYTES, 4 * ADDED_WORDS<WIDTH>);
  const bool vectors = aligned(args.elements) && aligned(args.message);
  GRADWIRE_LAUNCH(kernel, grid_of(kernel, divide_up(lanes, THREADS)), THREADS, stream, args, vectors);
  return cudaGetLastError();
}

}  // namespace

GRADWIRE_API int gradwire_mxfp_add(const gradwire_mxfp* args) {
  GRADWIRE_CUDA_BEGIN(mxfp_add, args);
  switch (args->width) {
    case 8: return launch_add<8>(*args, stream);
    case 6: return launch_add<6>(*args, stream);
    default: return launch_add<4>(*args, stream);
  }
}
