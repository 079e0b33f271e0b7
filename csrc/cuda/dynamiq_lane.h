// What one lane of a half-warp does: sixteen coordinates of a super-group, its codes, its place in a message.
#pragma once
#include "dynamiq_shared.h"

namespace gradwire_cuda {

enum { LANES = SUPER_GROUP / 16 };

// A row of the chunk as the lanes of a half-warp see it. Where an odd number of rows leaves half a warp idle,
// it does what the other half does, so that collectives always are a whole warp's; `repeats` says so.
struct Lane {
  int32_t row;
  int index;  // 0 to 15: the group of sixteen
  int warp_lane;
  bool repeats;
};
// The lane's group of sixteen in the chunk.
__device__ __forceinline__ uint32_t sixteen(const Lane& lane) {
  return (uint32_t)lane.row * LANES + lane.index;
}

// A bucket, or sums: a row of float32 each.
struct Coordinates {
  int64_t numel;
  int32_t whole;  // super-groups below can be loaded and stored by 16 bytes
  bool wide;      // float32 instead of bfloat16
};

// The lane's coordinates of a super-group less their mean.
template <class T>
__device__ __forceinline__ void take(const void* from, const Coordinates& x, int index, int32_t super_group,
                                     float mean, float* values) {
  const int64_t first = (int64_t)16 * ((uint32_t)super_group * LANES + index);
  const T* source = (const T*)from + first;
  if (super_group < x.whole) {
    load_aligned<16>(source, values);
#pragma unroll
    for (int k = 0; k < 16; ++k) values[k] = sub(values[k], mean);
    return;
  }
  load_some<16>(source, x.numel - first, values);
#pragma unroll
  for (int k = 0; k < 16; ++k)  // beyond the end are zeros, unless the mean is NaN
    values[k] = sub(k < x.numel - first ? values[k] : mean, mean);
}

// The lane's sixteen codes: 2·WIDTH bytes, 16·WIDTH bits in words. Where that is not whole words, two lanes
// have a whole number together: the lower one stores the word that both have a part of.
template <int WIDTH>
struct Codes {
  static constexpr int BITS = 16 * WIDTH, WORDS = (BITS + 31) / 32;
  uint32_t words[WORDS];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < WORDS; ++i) words[i] = 0;
  }
  __device__ __forceinline__ void put(int k, uint32_t code) {
    const int bit = k * WIDTH, word = bit / 32, shift = bit % 32;
    words[word] |= code << shift;
    if (shift + WIDTH > 32) words[word + 1] |= code >> (32 - shift);
  }
  // Puts `bits` bits of a word from bit `bit` on.
  __device__ __forceinline__ void put_word(int bit, uint32_t word, int bits) {
    words[bit / 32] |= word << bit % 32;
    if (bit % 32 + bits > 32) words[bit / 32 + 1] |= word >> (32 - bit % 32);
  }
  // Code k in the last bits of a word, whatever is above them.
  __device__ __forceinline__ uint32_t from(int k) const {
    const int bit = k * WIDTH, word = bit / 32, shift = bit % 32;
    if (shift + WIDTH > 32) return __funnelshift_r(words[word], words[word + 1], shift);
    return words[word] >> shift;
  }
  // Where the lane's words begin in a super-group's codes; of an odd lane's shared word, the word behind it.
  static __device__ __forceinline__ int first_word(int index) {
    return BITS % 32 ? index / 2 * WIDTH + (index & 1) * (BITS / 32 + 1) : index * WORDS;
  }
  __device__ __forceinline__ void store(uint8_t* at, const Lane& lane) const {
    uint32_t* target = reinterpret_cast<uint32_t*>(at);
    if constexpr (BITS % 32) {
      constexpr int WHOLE = BITS / 32;
      const uint32_t theirs = __shfl_xor_sync(ALL, words[0] & 0xFFFFu, 1);
      const bool odd = lane.index & 1;
#pragma unroll
      for (int i = 0; i < WHOLE; ++i) target[i] = odd ? words[i] >> 16 | words[i + 1] << 16 : words[i];
      if (!odd) target[WHOLE] = words[WHOLE] | theirs << 16;
    } else if constexpr (WORDS % 4 == 0) {
#pragma unroll
      for (int i = 0; i < WORDS / 4; ++i)
        reinterpret_cast<uint4*>(target)[i] =
            make_uint4(words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]);
    } else if constexpr (WORDS == 2) {
      *reinterpret_cast<uint2*>(target) = make_uint2(words[0], words[1]);
    } else {
#pragma unroll
      for (int i = 0; i < WORDS; ++i) target[i] = words[i];
    }
  }
  __device__ __forceinline__ void load(const uint8_t* at, const Lane& lane) {
    const uint32_t* source = reinterpret_cast<const uint32_t*>(at);
    if constexpr (BITS % 32) {
      constexpr int WHOLE = BITS / 32;
      const bool odd = lane.index & 1;
      uint32_t own[WORDS];
#pragma unroll
      for (int i = 0; i < WHOLE; ++i) own[i] = source[i];
      own[WHOLE] = odd ? 0 : source[WHOLE];
      const uint32_t theirs = __shfl_xor_sync(ALL, own[WHOLE] >> 16, 1);
      words[0] = odd ? theirs | own[0] << 16 : own[0];
#pragma unroll
      for (int i = 1; i < WORDS; ++i)
        words[i] = odd ? own[i - 1] >> 16 | (i < WHOLE ? own[i] << 16 : 0u) : own[i];
    } else if constexpr (WORDS % 4 == 0) {
#pragma unroll
      for (int i = 0; i < WORDS / 4; ++i) {
        const uint4 part = reinterpret_cast<const uint4*>(source)[i];
        words[4 * i] = part.x;
        words[4 * i + 1] = part.y;
        words[4 * i + 2] = part.z;
        words[4 * i + 3] = part.w;
      }
    } else if constexpr (WORDS == 2) {
      const uint2 part = *reinterpret_cast<const uint2*>(source);
      words[0] = part.x;
      words[1] = part.y;
    } else {
#pragma unroll
      for (int i = 0; i < WORDS; ++i) words[i] = source[i];
    }
  }
};

template <int SLOT>
struct Width {
  static constexpr int BITS = SLOT == 0 ? 16 : SLOT == 1 ? 8 : SLOT == 2 ? 6 : SLOT == 3 ? 5 : 8 - SLOT;
};

// Where the lane finds its codes and scales in a message.
template <int SLOT, class Byte>
__device__ __forceinline__ Byte* codes_at(const Message<Byte>& message, const Lane& lane) {
  constexpr int WIDTH = Width<SLOT>::BITS;
  Byte* first = in_global_memory(again(message.codes[SLOT]));
  if constexpr (WIDTH % 2 == 0) return first + (uint64_t)sixteen(lane) * (2 * WIDTH);
  return first + ((int64_t)lane.row * 32 * WIDTH + 4 * Codes<WIDTH>::first_word(lane.index));
}
template <bool PAPER, class Byte>
__device__ __forceinline__ Byte* group_at(const gradwire_dynamiq& args, const Message<Byte>& message,
                                          const Lane& lane) {
  Byte* first = in_global_memory(again(message.groups));
  if (PAPER) return first + sixteen(lane);
  return first + (uint64_t)(sixteen(lane) >> (args.group == 32)) * (args.bf16_scales ? 2 : 1);
}
template <class Byte>
__device__ __forceinline__ Byte* scale_at(const Message<Byte>& message, const Lane& lane) {
  return in_global_memory(again(message.scales)) + 2 * (int64_t)lane.row;
}

// The decoded values of a width. Those of up to 4 bits are kept by the half-warp, code c by lanes c, c +
// 2^WIDTH, …: a lane asks another for one, and no bits above those of the code change whom it asks.
template <int SLOT>
struct DecodedValues {
  static constexpr int WIDTH = Width<SLOT>::BITS;
  static constexpr bool BY_LANES = WIDTH <= 4;
  const float* values;
  float own;

  __device__ __forceinline__ DecodedValues(const Tables& tables, int book, const Lane& lane)
      : values(tables.decoded[book] + (WIDTH == 16 ? 0 : decoded_base(SLOT))), own(0.0f) {
    if constexpr (BY_LANES) own = values[lane.index & ((1 << WIDTH) - 1)];
  }
  // Returns the value of the code in the last bits of `bits`.
  __device__ __forceinline__ float of(uint32_t bits) const {
    if constexpr (BY_LANES) return __shfl_sync(ALL, own, (int)bits, 1 << WIDTH);
    if constexpr (WIDTH == 16) return decoded_level(bits & 0xFFFFu);
    return values[bits & ((1u << WIDTH) - 1)];
  }
};

// a/b, rounded once, where a, b, their quotient and its last bits are normal numbers: what `div` does then,
// without asking whether they are.
__device__ __forceinline__ float div_normal(float a, float b) {
  const float rough = ptx::rcp_approx_ftz(b), inverse = about(about(-b, rough, 1.0f), rough, rough),
              near = mul(a, inverse), nearer = about(about(-b, near, a), inverse, near);
  return about(about(-b, nearer, a), inverse, nearer);
}

// The step of the lane's group and which ε it has. PAPER: one codebook, a byte for the scale of each sixteen
// coordinates.
struct LaneStep {
  float step;
  int book;
};
template <int SLOT, bool PAPER>
__device__ __forceinline__ LaneStep step_of_lane(const gradwire_dynamiq& args, const Plan& plan,
                                                 const Tables& tables, const Lane& lane) {
  const uint8_t* group_scale = group_at<PAPER>(args, plan.incoming, lane);
  if (!PAPER && args.bf16_scales) return {scale_value(*reinterpret_cast<const uint16_t*>(group_scale)), 0};
  uint32_t pattern = *reinterpret_cast<const uint16_t*>(scale_at(plan.incoming, lane));
  const uint32_t code = *group_scale;
  int book = 0;
  if (!PAPER) {
    book = tables.points[SLOT] ? (int)(pattern & 1u) : 0;
    if (args.codebooks > 1) pattern &= ~1u;
  }
  // `group_step`: scales are at least 2^-100, zeros or NaN.
  return {mul(div_normal(scale_value(pattern), 255.0f), (float)(int32_t)code), book};
}

// Adds what the lane's part of a message stands for to `values`.
template <int SLOT, bool PAPER>
__device__ __forceinline__ void decode(const gradwire_dynamiq& args, const Plan& plan, const Tables& tables,
                                       const Lane& lane, float* values) {
  Codes<Width<SLOT>::BITS> codes;
  codes.load(codes_at<SLOT>(plan.incoming, lane), lane);
  const LaneStep own = step_of_lane<SLOT, PAPER>(args, plan, tables, lane);
  const DecodedValues<SLOT> decoded(tables, own.book, lane);
#pragma unroll
  for (int k = 0; k < 16; ++k) values[k] = add(values[k], mul(decoded.of(codes.from(k)), own.step));
}

}  // namespace gradwire_cuda
