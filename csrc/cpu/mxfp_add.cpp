// Where a CPU converts to float16 and back, sums are computed as on a GPU, two in a word; elsewhere in
// float32.
#include "gradwire/mxfp.h"

#include "mxfp_blocks.h"

using namespace gradwire;

namespace {

#ifdef __F16C__
// Words of the stream in sixteen blocks; of 6 bits, a word has 24.
template <int WIDTH>
constexpr int WORDS = VALUES / (2 * Halves<WIDTH>::PAIRS);

// Bytes of the stream to its words, and back. `bytes` has 16 more than blocks take.
template <int WIDTH>
void to_words(const uint8_t* bytes, uint32_t* words) {
  if constexpr (WIDTH == 6) {
    const __m128i places = _mm_setr_epi8(0, 1, 2, -1, 3, 4, 5, -1, 6, 7, 8, -1, 9, 10, 11, -1);
    for (int w = 0; w < WORDS<WIDTH>; w += 4) {
      const __m128i four = _mm_loadu_si128((const __m128i*)(bytes + 3 * w));
      _mm_store_si128((__m128i*)(words + w), _mm_shuffle_epi8(four, places));
    }
  } else {
    memcpy(words, bytes, 4 * WORDS<WIDTH>);
  }
}
template <int WIDTH>
void to_bytes(const uint32_t* words, uint8_t* bytes) {
  if constexpr (WIDTH == 6) {
    const __m128i places = _mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1);
    for (int w = 0; w < WORDS<WIDTH>; w += 4) {
      const __m128i four = _mm_load_si128((const __m128i*)(words + w));
      _mm_storeu_si128((__m128i*)(bytes + 3 * w), _mm_shuffle_epi8(four, places));
    }
  } else {
    memcpy(bytes, words, 4 * WORDS<WIDTH>);
  }
}

// Adds `count` pairs of float16 numbers, a multiple of 8, rounding to nearest.
void add_halves(uint32_t* own, const uint32_t* other, int count) {
#ifdef __AVX512F__
  for (int k = 0; k < count; k += 8) {
    const __m512 a = _mm512_cvtph_ps(_mm256_load_si256((const __m256i*)(own + k)));
    const __m512 b = _mm512_cvtph_ps(_mm256_load_si256((const __m256i*)(other + k)));
    _mm256_store_si256((__m256i*)(own + k), _mm512_cvtps_ph(_mm512_add_ps(a, b), _MM_FROUND_TO_NEAREST_INT));
  }
#else
  for (int k = 0; k < count; k += 4) {
    const __m256 a = _mm256_cvtph_ps(_mm_load_si128((const __m128i*)(own + k)));
    const __m256 b = _mm256_cvtph_ps(_mm_load_si128((const __m128i*)(other + k)));
    _mm_store_si128((__m128i*)(own + k), _mm256_cvtps_ph(_mm256_add_ps(a, b), _MM_FROUND_TO_NEAREST_INT));
  }
#endif
}

// Adds sixteen blocks, and counts what saturates.
template <int WIDTH>
uint32_t add_blocks(uint8_t* own, const uint8_t* other) {
  constexpr int PAIRS = Halves<WIDTH>::PAIRS, COUNT = WORDS<WIDTH>;
  alignas(64) uint32_t words[COUNT], others[COUNT], sums[PAIRS][COUNT], terms[PAIRS][COUNT];
  to_words<WIDTH>(own, words);
  to_words<WIDTH>(other, others);
  for (int pair = 0; pair < PAIRS; ++pair) {
    GRADWIRE_SIMD
    for (int w = 0; w < COUNT; ++w) {
      sums[pair][w] = pair_of<WIDTH>(spread<WIDTH>(words[w]), pair);
      terms[pair][w] = pair_of<WIDTH>(spread<WIDTH>(others[w]), pair);
    }
  }
  add_halves(sums[0], terms[0], PAIRS * COUNT);
  uint32_t saturated = 0;
#pragma omp simd reduction(+ : saturated)
  for (int w = 0; w < COUNT; ++w) {
    uint32_t word = 0, exceeded = 0;
    GRADWIRE_UNROLL
    for (int pair = 0; pair < PAIRS; ++pair)
      word |= from_halves<WIDTH>(sums[pair][w], exceeded) << WIDTH * pair;
    words[w] = gather<WIDTH>(word);
    saturated += exceeded;
  }
  to_bytes<WIDTH>(words, own);
  return (saturated & 0xffff) + (saturated >> 16);
}
#else
template <int WIDTH>
uint32_t add_blocks(uint8_t* own, const uint8_t* other) {
  alignas(64) uint32_t codes[VALUES], others[VALUES];
  unpack_codes<WIDTH>(own, BLOCKS, codes, BEYOND);
  unpack_codes<WIDTH>(other, BLOCKS, others, BEYOND);
  uint32_t saturated = 0;
#pragma omp simd reduction(+ : saturated)
  for (int k = 0; k < VALUES; ++k) {
    const uint32_t bits = bits_of(add(element_value<WIDTH>(codes[k]), element_value<WIDTH>(others[k])));
    const uint32_t code = magnitude_code<WIDTH>(bits & MAGNITUDE), exceeded = saturates<WIDTH>(code);
    saturated += exceeded;
    codes[k] = (code - exceeded) | sign_of<WIDTH>(bits);
  }
  pack_codes<WIDTH>(codes, BLOCKS, own, BEYOND);
  return saturated;
}
#endif

template <int WIDTH>
void add_elements(const gradwire_mxfp& args, int64_t begin, int64_t end) {
  constexpr int64_t BYTES = Element<WIDTH>::BYTES;
  int64_t saturated = 0;
  alignas(64) uint8_t own[BLOCKS * BYTES + BEYOND] = {}, other[BLOCKS * BYTES + BEYOND] = {};
  for (int64_t first = begin; first < end; first += BLOCKS) {
    const int64_t bytes = smaller(end - first, (int64_t)BLOCKS) * BYTES;
    if (bytes < BLOCKS * BYTES) {  // elements that are not there must not saturate
      memset(own, 0, sizeof own);
      memset(other, 0, sizeof other);
    }
    memcpy(own, args.elements + first * BYTES, bytes);
    memcpy(other, args.message + first * BYTES, bytes);
    saturated += add_blocks<WIDTH>(own, other);
    memcpy(args.elements + first * BYTES, own, bytes);
  }
  count(args, saturated);
}

}  // namespace

GRADWIRE_CPU_KERNEL(mxfp_add, gradwire_mxfp, 1 << 13) {
  if (args.width == 8)
    add_elements<8>(args, begin, end);
  else if (args.width == 6)
    add_elements<6>(args, begin, end);
  else
    add_elements<4>(args, begin, end);
}
