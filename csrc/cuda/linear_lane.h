// What one lane does: it has a block of 32 coordinates, or half of one, in turns of as many as take 16 bytes.
// With two lanes to a block, even ones have the first of every two turns and odd ones the second: what a warp
// loads or stores at a time are whole sectors, and all but one stage of a transform stay within lanes.
#pragma once
#include "gradwire/linear.h"
#include "launch.h"

namespace gradwire_cuda {

using namespace gradwire;

// Consecutive coordinates of a lane; all of its coordinates; all of a warp; blocks of a warp.
template <class T>
constexpr int TURN = 16 / sizeof(T);
template <int LANES>
constexpr int OWN = HADAMARD / LANES;
template <int LANES>
constexpr int PART = WARP * OWN<LANES>;
template <int LANES>
constexpr int PART_BLOCKS = WARP / LANES;

__device__ __forceinline__ float larger_magnitude(float a, float b) { return ptx::max_nan(a, fabsf(b)); }

// ---- Coordinates of a block; `side` is which of its lanes
//
// WHOLE: all of them are there, and the block is aligned to 16 bytes.
template <int LANES, bool WHOLE, class T>
__device__ __forceinline__ void load_turns(const T* block, int side, int64_t valid, float* values) {
  constexpr int EACH = TURN<T>;
#pragma unroll
  for (int i = 0; i < OWN<LANES>; i += EACH) {
    const int first = LANES * i + side * EACH;
    if (WHOLE)
      load_aligned<EACH>(block + first, values + i);
    else
      load_some<EACH>(block + first, valid - first, values + i);
  }
}

__device__ __forceinline__ void store_turn(float* target, const float* v) {
  ptx::st_global_v4(target, bits_of(v[0]), bits_of(v[1]), bits_of(v[2]), bits_of(v[3]));
}
__device__ __forceinline__ void store_turn(uint16_t* target, const float* v) {
  ptx::st_global_v4(target, two_bfloat16(v[0], v[1]), two_bfloat16(v[2], v[3]), two_bfloat16(v[4], v[5]),
                    two_bfloat16(v[6], v[7]));
}
template <int LANES, bool WHOLE, class T>
__device__ __forceinline__ void store_turns(T* block, int side, int64_t valid, const float* values) {
  constexpr int EACH = TURN<T>;
#pragma unroll
  for (int i = 0; i < OWN<LANES>; i += EACH) {
    const int first = LANES * i + side * EACH;
    if (WHOLE)
      store_turn(block + first, values + i);
    else
      store_some<EACH>(block + first, valid - first, values + i);
  }
}

template <int LANES, class T>
__device__ __forceinline__ void transform(float* values, int side) {
  constexpr int COUNT = OWN<LANES>, EACH = LANES == 1 ? COUNT : TURN<T>;
  butterflies<COUNT, 1, EACH>(values);
  if (LANES == 1) return;
  const float sign = side ? -1.0f : 1.0f;
#pragma unroll
  for (int i = 0; i < COUNT; ++i)
    values[i] = butterfly_side(values[i], __shfl_xor_sync(ALL, values[i], 1), sign);
  butterflies<COUNT, EACH, COUNT>(values);
}

// ---- Codes of a block
//
// Words that a lane's codes take.
template <int LANES, int BITS>
constexpr int WORDS = OWN<LANES> * BITS / 32;

// Codes are packed raised by 8 at 4 bits, so that those of a byte are added without borrowing.
template <int BITS>
constexpr int RAISE = BITS == 4 ? 8 : 0;

// Bytes AT of four words.
template <int AT>
__device__ __forceinline__ uint32_t gather(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  constexpr uint32_t TWO = (AT + 4) << 4 | AT;
  return __byte_perm(__byte_perm(a, b, TWO), __byte_perm(c, d, TWO), 0x5410);
}
// COUNT words from raised codes in byte AT of theirs; `alive` is 0 to make all codes 0, and otherwise all
// ones.
template <int BITS, int AT, int COUNT>
__device__ __forceinline__ void pack(const uint32_t* codes, uint32_t alive, uint32_t (&words)[COUNT]) {
#pragma unroll
  for (int word = 0; word < COUNT; ++word) {
    const uint32_t* c = codes + word * (32 / BITS);
    if constexpr (BITS == 8) {
      words[word] = gather<AT>(c[0], c[1], c[2], c[3]) & alive;
    } else {
      const uint32_t low = gather<AT>(c[0], c[2], c[4], c[6]), high = gather<AT>(c[1], c[3], c[5], c[7]);
      words[word] = ((low + 16 * high) ^ 0x88888888u) & alive;
    }
  }
}
// To integers as float32: a code with 2^(BITS - 1) added to it is the lowest byte of a float32 from 2^23 on.
template <int BITS, int COUNT>
__device__ __forceinline__ void unpack(const uint32_t (&words)[COUNT], float* values) {
  constexpr int RAISED = 1 << (BITS - 1), EACH = 32 / BITS;
#pragma unroll
  for (int word = 0; word < COUNT; ++word) {
    const uint32_t raised = words[word] ^ (BITS == 8 ? 0x80808080u : 0x88888888u);
    const uint32_t low = BITS == 8 ? raised : raised & 0x0f0f0f0fu, high = raised >> 4 & 0x0f0f0f0fu;
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
      const uint32_t source = BITS == 8 || i % 2 == 0 ? low : high, byte = BITS == 8 ? i : i / 2;
      const float value = float_of(__byte_perm(source, 0x4b000000u, 0x7550 + byte));
      values[EACH * word + i] = sub(value, (float)((1 << 23) + RAISED));
    }
  }
}

template <int COUNT>
__device__ __forceinline__ void store_words(uint8_t* target, const uint32_t (&words)[COUNT]) {
  if constexpr (COUNT == 2) {
    *reinterpret_cast<uint2*>(target) = make_uint2(words[0], words[1]);
  } else {
#pragma unroll
    for (int i = 0; i < COUNT; i += 4)
      reinterpret_cast<uint4*>(target)[i / 4] =
          make_uint4(words[i], words[i + 1], words[i + 2], words[i + 3]);
  }
}

// Stores 32 bytes of each lane that is `there`, one lane's after another's. Lanes of a pair exchange halves,
// so that they store a whole sector at a time, first the even lane's. All of the warp's lanes come here.
__device__ __forceinline__ void store_pairs(uint8_t* target, bool there, bool odd, const uint32_t (&own)[8]) {
  uint32_t first[4], second[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t received = __shfl_xor_sync(ALL, odd ? own[i] : own[4 + i], 1);
    first[i] = odd ? received : own[i];
    second[i] = odd ? own[4 + i] : received;
  }
  const unsigned lanes = __ballot_sync(ALL, there) >> (lane_of_thread() & ~1);
  uint8_t* const sector = target - (odd ? 16 : 0);  // this lane's half of the even lane's
  if (lanes & 1) store_words(sector, first);
  if (lanes & 2) store_words(sector + 32, second);
}

// Two lanes exchange halves of what they have, so that each has half of the block in the order of the
// message. A turn is TURN_BYTES of codes.
template <int TURN_BYTES, int COUNT>
__device__ __forceinline__ void to_message(const uint32_t (&own)[COUNT], int side, uint32_t (&words)[COUNT]) {
  constexpr int HALF = COUNT / 2;
  uint32_t first[HALF], second[HALF];  // of even and odd turns
#pragma unroll
  for (int i = 0; i < HALF; ++i) {
    const uint32_t kept = side ? own[HALF + i] : own[i], sent = side ? own[i] : own[HALF + i];
    const uint32_t received = __shfl_xor_sync(ALL, sent, 1);
    first[i] = side ? received : kept;
    second[i] = side ? kept : received;
  }
  if (TURN_BYTES == 2) {
    words[0] = __byte_perm(first[0], second[0], 0x5410);
    words[1] = __byte_perm(first[0], second[0], 0x7632);
  } else {
    static_assert(TURN_BYTES == 2 || TURN_BYTES == 4, "float32's turns");
#pragma unroll
    for (int i = 0; i < HALF; ++i) words[2 * i] = first[i], words[2 * i + 1] = second[i];
  }
}
// Both lanes load the whole block, and keep their turns.
template <int TURN_BYTES, int COUNT>
__device__ __forceinline__ void from_message(const uint8_t* block, int side, uint32_t (&own)[COUNT]) {
  uint32_t all[2 * COUNT];
#pragma unroll
  for (int i = 0; i < COUNT / 2; ++i) {
    const uint4 part = reinterpret_cast<const uint4*>(block)[i];
    all[4 * i] = part.x, all[4 * i + 1] = part.y, all[4 * i + 2] = part.z, all[4 * i + 3] = part.w;
  }
  const uint32_t halves = side ? 0x7632 : 0x5410;
#pragma unroll
  for (int i = 0; i < COUNT; ++i) {
    if (TURN_BYTES == 2)
      own[i] = __byte_perm(all[2 * i], all[2 * i + 1], halves);
    else if (TURN_BYTES == 4)
      own[i] = side ? all[2 * i + 1] : all[2 * i];
    else
      own[i] = side ? all[i / 2 * 4 + 2 + i % 2] : all[i / 2 * 4 + i % 2];
  }
}

}  // namespace gradwire_cuda
