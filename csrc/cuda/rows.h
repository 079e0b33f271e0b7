// Rows of 512 coordinates, one to a warp: each lane has 16 neighbours, as values and as codes of any width.
//
// A row's codes are a whole number of 16-byte units. Lanes put theirs together in shared memory, from where
// the warp copies whole units, or write them directly where a lane's are such a unit or a half or quarter of
// it.
#pragma once
#include "gradwire/bitpack.h"
#include "gradwire/coordinate_bits.h"
#include "gradwire/groups.h"
#include "launch.h"

namespace gradwire_cuda {
inline namespace rows {

using namespace gradwire;

constexpr int EACH = NEIGHBOURS;  // coordinates of a lane

// 32-bit words that its codes fill.
template <int BITS>
constexpr int WORDS = words_of(EACH, BITS);

// A row's bit stream, of up to 32 bits per coordinate.
struct alignas(16) Stage {
  uint32_t words[ROW];
};
typedef Stage Stages[WARPS];

template <int BITS>
struct Width {
  static constexpr int value = BITS;
};

// f(Width<bits>()), which is compiled for LEAST to MOST.
template <int LEAST, int MOST, class Function>
__device__ __forceinline__ void with_width(int bits, Function f) {
  switch (bits) {
#define GRADWIRE_WIDTH(B)                                        \
  case B:                                                        \
    if constexpr (B >= LEAST && B <= MOST) return f(Width<B>()); \
    break;
#define GRADWIRE_EIGHT_WIDTHS(B) \
  GRADWIRE_WIDTH(B)              \
  GRADWIRE_WIDTH(B + 1)          \
  GRADWIRE_WIDTH(B + 2)          \
  GRADWIRE_WIDTH(B + 3)          \
  GRADWIRE_WIDTH(B + 4)          \
  GRADWIRE_WIDTH(B + 5)          \
  GRADWIRE_WIDTH(B + 6)          \
  GRADWIRE_WIDTH(B + 7)
    GRADWIRE_EIGHT_WIDTHS(1)
    GRADWIRE_EIGHT_WIDTHS(9)
    GRADWIRE_EIGHT_WIDTHS(17)
    GRADWIRE_EIGHT_WIDTHS(25)
#undef GRADWIRE_EIGHT_WIDTHS
#undef GRADWIRE_WIDTH
  }
}

// A lane's values; those that are not there, beyond `valid`, are zeros.
template <class T>
__device__ __forceinline__ void load_values(const T* source, int64_t valid, bool vectors, float* values) {
  if (vectors && valid >= EACH)
    load_aligned<EACH>(source, values);
  else
    load_some<EACH>(source, valid, values);
}
// Adds what a message stands for; what is beyond `valid` stays zeros.
__device__ __forceinline__ void add_values(const float* decoded, int64_t valid, float* values) {
#pragma unroll
  for (int i = 0; i < EACH; ++i) values[i] = i < valid ? gradwire::add(values[i], decoded[i]) : 0.0f;
}
// Values of a lane that are stored at a time.
constexpr int TURN = 4;

// From a lane's neighbours to every other four of those of two lanes, even lanes the first of every eight: a
// pair of lanes then has a sector of 32 bytes in each turn.
__device__ __forceinline__ void to_turns(bool odd, float* values) {
  float turns[EACH];
#pragma unroll
  for (int i = 0; i < EACH / 2; ++i) {
    const int low = i / TURN * (2 * TURN) + i % TURN, high = low + TURN;
    const float received = __shfl_xor_sync(ALL, odd ? values[low] : values[high], 1);
    turns[i] = odd ? received : values[low];
    turns[EACH / 2 + i] = odd ? values[high] : received;
  }
#pragma unroll
  for (int i = 0; i < EACH; ++i) values[i] = turns[i];
}

// A row's values to where they belong, or added to what is there; `count` are left from the row's first on.
// All of the warp's lanes come here. Left to itself nvcc takes stores of 16 bytes apart where values were
// made as integers: a warp would then write a sector four bytes at a time.
__device__ __forceinline__ void store_values(float* row, int64_t count, bool vectors, bool add, int lane,
                                             float* values) {
  float before[EACH] = {};
  if (vectors && count >= ROW) {
    const bool odd = lane % 2;
    float* const target = row + lane / 2 * (2 * EACH) + (odd ? TURN : 0);
    to_turns(odd, values);
    if (add) {
#pragma unroll
      for (int i = 0; i < EACH; i += TURN) load_aligned<TURN>(target + 2 * i, before + i);
#pragma unroll
      for (int i = 0; i < EACH; ++i) values[i] = gradwire::add(before[i], values[i]);
    }
#pragma unroll
    for (int i = 0; i < EACH; i += TURN)
      ptx::st_global_v4(target + 2 * i, bits_of(values[i]), bits_of(values[i + 1]), bits_of(values[i + 2]),
                        bits_of(values[i + 3]));
    return;
  }
  const int64_t valid = count - lane * EACH;
  if (add) {
    load_some<EACH>(row + lane * EACH, valid, before);
#pragma unroll
    for (int i = 0; i < EACH; ++i) values[i] = gradwire::add(before[i], values[i]);
  }
  store_some<EACH>(row + lane * EACH, valid, values);
}

__device__ __forceinline__ void copy_row(const uint8_t* source, uint8_t* target, int bytes, bool vectors,
                                         int lane) {
  const int units = vectors ? bytes / 16 : 0;
  const uint4* const from = reinterpret_cast<const uint4*>(source);
  uint4* const to = reinterpret_cast<uint4*>(target);
#pragma unroll 2
  for (int i = lane; i < units; i += WARP) to[i] = from[i];
#pragma unroll 1
  for (int i = 16 * units + lane; i < bytes; i += WARP) target[i] = source[i];
}

// Whether a lane's codes are written or read at once.
template <int BITS>
constexpr bool is_direct = BITS == 2 || BITS == 4 || BITS == 8;

// Writes the codes of a row, `count` of which are there, to the row's part of a stream.
template <int BITS>
__device__ __forceinline__ void store_codes(const uint32_t* codes, int64_t count, bool vectors,
                                            uint8_t* stream, Stage& stage, int lane) {
  uint32_t words[WORDS<BITS>];
  pack_values<BITS, EACH>(codes, words);
  if constexpr (is_direct<BITS>) {
    if (vectors && count == ROW) {
      uint8_t* const target = stream + lane * 2 * BITS;
      if constexpr (BITS == 2) *reinterpret_cast<uint32_t*>(target) = words[0];
      if constexpr (BITS == 4) *reinterpret_cast<uint2*>(target) = make_uint2(words[0], words[1]);
      if constexpr (BITS == 8)
        *reinterpret_cast<uint4*>(target) = make_uint4(words[0], words[1], words[2], words[3]);
      return;
    }
  }
  __syncwarp();  // until nobody reads what was here before
  if constexpr (BITS % 2 == 0) {
#pragma unroll
    for (int i = 0; i < BITS / 2; ++i) stage.words[lane * (BITS / 2) + i] = words[i];
  } else {
    uint16_t* const halves = reinterpret_cast<uint16_t*>(stage.words) + lane * BITS;
#pragma unroll
    for (int i = 0; i < BITS; ++i) halves[i] = (uint16_t)(words[i / 2] >> i % 2 * 16);
  }
  __syncwarp();
  copy_row(reinterpret_cast<const uint8_t*>(stage.words), stream, (int)code_bytes(count, BITS), vectors,
           lane);
}

// The inverse. Codes that are not there are whatever they are.
template <int BITS>
__device__ __forceinline__ void load_codes(const uint8_t* stream, int64_t count, bool vectors, Stage& stage,
                                           int lane, uint32_t* codes) {
  uint32_t words[WORDS<BITS>];
  if constexpr (is_direct<BITS>) {
    if (vectors && count == ROW) {
      const uint8_t* const source = stream + lane * 2 * BITS;
      if constexpr (BITS == 2) words[0] = *reinterpret_cast<const uint32_t*>(source);
      if constexpr (BITS == 4) {
        const uint2 part = *reinterpret_cast<const uint2*>(source);
        words[0] = part.x;
        words[1] = part.y;
      }
      if constexpr (BITS == 8) {
        const uint4 part = *reinterpret_cast<const uint4*>(source);
        words[0] = part.x;
        words[1] = part.y;
        words[2] = part.z;
        words[3] = part.w;
      }
      unpack_values<BITS, EACH>(words, codes);
      return;
    }
  }
  __syncwarp();
  copy_row(stream, reinterpret_cast<uint8_t*>(stage.words), (int)code_bytes(count, BITS), vectors, lane);
  __syncwarp();
  if constexpr (BITS % 2 == 0) {
#pragma unroll
    for (int i = 0; i < BITS / 2; ++i) words[i] = stage.words[lane * (BITS / 2) + i];
  } else {
    const uint16_t* const halves = reinterpret_cast<const uint16_t*>(stage.words) + lane * BITS;
#pragma unroll
    for (int i = 0; i < WORDS<BITS>; ++i)
      words[i] = halves[2 * i] | (2 * i + 1 < BITS ? (uint32_t)halves[2 * i + 1] << 16 : 0u);
  }
  unpack_values<BITS, EACH>(words, codes);
}

// Scales of COUNT 16-bit halves, at any address.
template <int COUNT>
__device__ __forceinline__ void store_halves(uint8_t* target, uint32_t word) {
  if (((uintptr_t)target & (2 * COUNT - 1)) == 0) {
    if constexpr (COUNT == 2)
      *reinterpret_cast<uint32_t*>(target) = word;
    else
      *reinterpret_cast<uint16_t*>(target) = (uint16_t)word;
  } else {
#pragma unroll
    for (int i = 0; i < 2 * COUNT; ++i) target[i] = (uint8_t)(word >> 8 * i);
  }
}
template <int COUNT>
__device__ __forceinline__ uint32_t load_halves(const uint8_t* source) {
  if (((uintptr_t)source & (2 * COUNT - 1)) == 0) {
    if constexpr (COUNT == 2)
      return *reinterpret_cast<const uint32_t*>(source);
    else
      return *reinterpret_cast<const uint16_t*>(source);
  }
  uint32_t word = 0;
#pragma unroll
  for (int i = 0; i < 2 * COUNT; ++i) word |= (uint32_t)source[i] << 8 * i;
  return word;
}

// A lane's random bits, for the coordinates from `first` on, a multiple of 8.
__device__ __forceinline__ void find_dithers(const Stream& stream, int64_t first, uint32_t* dithers) {
  const Words low = coordinate_words(stream, first / COUNTER),
              high = coordinate_words(stream, first / COUNTER + 1);
  const uint32_t words[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
  for (int i = 0; i < EACH / 2; ++i) {
    dithers[2 * i] = words[i] & 0xffffu;
    dithers[2 * i + 1] = words[i] >> 16;
  }
}

}  // namespace rows
}  // namespace gradwire_cuda
