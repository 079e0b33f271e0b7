// Blocks of elements on CPUs: sixteen at a time, so that whole vectors are filled even with what each has
// once.
#pragma once
#include "bitstream.h"
#include "gradwire/mxfp.h"

GRADWIRE_NAMESPACE_BEGIN

enum { BLOCKS = 16, VALUES = BLOCKS * BLOCK };

// Codes below 2^WIDTH to their places, and back; of the `room` bytes after the blocks some may be
// overwritten, or read.
template <int WIDTH>
static inline void pack_codes(const uint32_t* codes, int64_t blocks, uint8_t* out, int64_t room) {
#ifdef __AVX512F__
  if constexpr (WIDTH == 8) {
    for (int64_t k = 0; k < blocks * BLOCK; k += 16)
      _mm_storeu_si128((__m128i*)(out + k), _mm512_cvtepi32_epi8(_mm512_load_si512(codes + k)));
    return;
  }
#endif
  if constexpr (WIDTH == 8) {
    GRADWIRE_SIMD
    for (int64_t k = 0; k < blocks * BLOCK; ++k) out[k] = (uint8_t)codes[k];
  } else {
    pack_array<WIDTH>(codes, blocks * (BLOCK / EIGHT), out, room);
  }
}
template <int WIDTH>
static inline void unpack_codes(const uint8_t* in, int64_t blocks, uint32_t* codes, int64_t room) {
#ifdef __AVX2__
  if constexpr (WIDTH == 8) {
    for (int64_t k = 0; k < blocks * BLOCK; k += 8) {
      const __m128i eight = _mm_loadl_epi64((const __m128i*)(in + k));
      _mm256_store_si256((__m256i*)(codes + k), _mm256_cvtepu8_epi32(eight));
    }
    return;
  }
#endif
  unpack_array<WIDTH>(in, blocks * (BLOCK / EIGHT), codes, room);
}

static inline void count(const gradwire_mxfp& args, int64_t saturated) {
  if (saturated) __atomic_fetch_add(args.saturated, saturated, __ATOMIC_RELAXED);
}

GRADWIRE_NAMESPACE_END
