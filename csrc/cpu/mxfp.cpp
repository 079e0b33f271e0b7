// Blocks are processed sixteen at a time, so that their scales are computed by whole vectors too.
#include "gradwire/mxfp.h"

#include "mxfp_blocks.h"

using namespace gradwire;

namespace {

// Coordinates of a block as float32, zeros beyond the bucket's end.
template <class T>
const T* whole_block(const T* x, int64_t left, T* padded) {
  if (left >= BLOCK) return x;
  for (int k = 0; k < BLOCK; ++k) padded[k] = k < left ? x[k] : T(0);
  return padded;
}

template <class T>
void maxima(const gradwire_mxfp& args, int64_t begin, int64_t end) {
  for (int64_t block = begin; block < end; ++block) {
    T padded[BLOCK];
    const T* x = whole_block((const T*)args.x + block * BLOCK, args.numel - block * BLOCK, padded);
    uint32_t maximum = 0;
#pragma omp simd reduction(max : maximum)
    for (int k = 0; k < BLOCK; ++k) maximum = larger(maximum, magnitude_bits(load(x + k)));
    args.block_maxima[block] = (uint16_t)rounded_up(maximum);
  }
}

template <int WIDTH, class T>
void quantize(const gradwire_mxfp& args, int64_t begin, int64_t end) {
  const float mu = args.mu_place ? *args.mu_place : args.mu;
  int64_t saturated = 0;
  for (int64_t first = begin; first < end; first += BLOCKS) {
    const int64_t blocks = smaller(end - first, (int64_t)BLOCKS);
    uint16_t maximum[BLOCKS] = {};
    memcpy(maximum, args.maxima + first, 2 * blocks);
    alignas(64) float normalizer[BLOCKS], factor[BLOCKS];
    alignas(64) uint32_t alive[BLOCKS], codes[VALUES];
    GRADWIRE_SIMD
    for (int b = 0; b < BLOCKS; ++b) {
      const WayIn scale = way_in<WIDTH>(maximum[b], mu, args.rule);
      normalizer[b] = scale.normalizer;
      factor[b] = scale.factor;
      alive[b] = scale.alive;
    }
    alignas(64) uint32_t exceeded[BLOCK] = {};
    for (int64_t b = 0; b < blocks; ++b) {
      T padded[BLOCK];
      const int64_t place = (first + b) * BLOCK;
      const T* x = whole_block((const T*)args.x + place, args.numel - place, padded);
      GRADWIRE_SIMD
      for (int k = 0; k < BLOCK; ++k) {
        const uint32_t bits = bits_of(mul(mul(load(x + k), normalizer[b]), factor[b])) & alive[b];
        const uint32_t code = magnitude_code<WIDTH>(bits & MAGNITUDE), over = saturates<WIDTH>(code);
        exceeded[k] += over;
        codes[b * BLOCK + k] = (code - over) | sign_of<WIDTH>(bits);
      }
    }
    for (int k = 0; k < BLOCK; ++k) saturated += exceeded[k];
    const int64_t room = (end - first - blocks) * Element<WIDTH>::BYTES;
    pack_codes<WIDTH>(codes, blocks, args.elements + first * Element<WIDTH>::BYTES, room);
  }
  count(args, saturated);
}

template <int WIDTH, class T>
void dequantize(const gradwire_mxfp& args, int64_t begin, int64_t end) {
  const float mu = args.mu_place ? *args.mu_place : args.mu;
  for (int64_t first = begin; first < end; first += BLOCKS) {
    const int64_t blocks = smaller(end - first, (int64_t)BLOCKS);
    uint16_t maximum[BLOCKS] = {};
    memcpy(maximum, args.maxima + first, 2 * blocks);
    alignas(64) float step[BLOCKS], restorer[BLOCKS];
    alignas(64) uint32_t codes[VALUES];
    GRADWIRE_SIMD
    for (int b = 0; b < BLOCKS; ++b) {
      const WayOut scale = way_out<WIDTH>(maximum[b], mu, args.rule, args.workers);
      step[b] = scale.step;
      restorer[b] = scale.restorer;
    }
    const int64_t room = (end - first - blocks) * Element<WIDTH>::BYTES;
    unpack_codes<WIDTH>(args.elements + first * Element<WIDTH>::BYTES, blocks, codes, room);
    for (int64_t b = 0; b < blocks; ++b) {
      const int64_t place = (first + b) * BLOCK, left = args.numel - place;
      T rest[BLOCK], *target = (T*)args.mean + place, *whole = left >= BLOCK ? target : rest;
      GRADWIRE_SIMD
      for (int k = 0; k < BLOCK; ++k)
        store(whole + k, mul(mul(element_value<WIDTH>(codes[b * BLOCK + k]), step[b]), restorer[b]));
      if (left < BLOCK) memcpy(target, rest, left * sizeof(T));
    }
  }
}

// f(Width<width>(), T()) for an element's width and the type of coordinates.
template <class Function>
void with_format(const gradwire_mxfp& args, Function f) {
  const bool single = args.call.dtype == GRADWIRE_FLOAT32;
  if (args.width == 8)
    single ? f(Width<8>(), float()) : f(Width<8>(), uint16_t());
  else if (args.width == 6)
    single ? f(Width<6>(), float()) : f(Width<6>(), uint16_t());
  else
    single ? f(Width<4>(), float()) : f(Width<4>(), uint16_t());
}

}  // namespace

GRADWIRE_CPU_KERNEL(mxfp_maxima, gradwire_mxfp, 1 << 14) {
  if (args.call.dtype == GRADWIRE_FLOAT32)
    maxima<float>(args, begin, end);
  else
    maxima<uint16_t>(args, begin, end);
}

GRADWIRE_CPU_KERNEL(mxfp_quantize, gradwire_mxfp, 1 << 13) {
  with_format(args,
              [&](auto width, auto x) { quantize<decltype(width)::value, decltype(x)>(args, begin, end); });
}

GRADWIRE_CPU_KERNEL(mxfp_dequantize, gradwire_mxfp, 1 << 13) {
  with_format(args,
              [&](auto width, auto x) { dequantize<decltype(width)::value, decltype(x)>(args, begin, end); });
}
