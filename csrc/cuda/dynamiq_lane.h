// What one lane of a half-warp does: sixteen coordinates of a super-group, its codes, its place in a message.
#pragma once
#include "dynamiq_shared.h"

namespace gradwire_cuda {

enum { LANES = SUPER_GROUP / 16 };

// A row of the chunk as the lanes of a half-warp see it. `active` is false for the half of a warp that an odd
// number of rows leaves idle: it computes on zeros and writes nothing, so that collectives always are a whole
// warp's.
struct Lane {
  int64_t row;
  int index;  // 0 to 15: the group of sixteen
  int warp_lane;
  bool active;
};

// Consecutive coordinates are loaded and stored by 16 bytes where the bucket allows it.
template <class T>
__device__ __forceinline__ void take(const gradwire_dynamiq& args, const Lane& lane, const T* x, bool vectors,
                                     int64_t super_group, float* values) {
  const int64_t first = super_group * SUPER_GROUP + 16 * lane.index;
  const int64_t limit = args.gather ? args.numel : (super_group + 1) * SUPER_GROUP;
  const float mean = args.gather && lane.active ? args.mean[lane.row] : 0.0f;
  if (lane.active && vectors && first + 16 <= limit) {
    load_aligned<16>(x + first, values);
    if (args.gather) {
#pragma unroll
      for (int k = 0; k < 16; ++k) values[k] = sub(values[k], mean);
    }
    return;
  }
  const int64_t valid = lane.active ? limit - first : 0;
  load_some<16>(x + first, valid, values);
  if (args.gather) {  // beyond the end are zeros, unless the mean is NaN
#pragma unroll
    for (int k = 0; k < 16; ++k) values[k] = sub(k < valid ? values[k] : mean, mean);
  }
}

template <class T>
__device__ __forceinline__ void give(const gradwire_dynamiq& args, const Lane& lane, T* out, bool vectors,
                                     float* values) {
  if (!lane.active) return;
  const int64_t super_group = args.scatter ? (int64_t)args.order[lane.row] : lane.row;
  const int64_t first = super_group * SUPER_GROUP + 16 * lane.index;
  const int64_t limit = args.scatter ? args.numel : (super_group + 1) * SUPER_GROUP;
  if (args.scatter) {
    const float mean = args.mean[lane.row], inverse = args.inverse;
#pragma unroll
    for (int k = 0; k < 16; ++k) values[k] = add(mul(values[k], inverse), mean);
  }
  if (vectors && first + 16 <= limit)
    store_aligned<16>(out + first, values);
  else
    store_some<16>(out + first, limit - first, values);
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
  __device__ __forceinline__ uint32_t get(int k) const {
    const int bit = k * WIDTH, word = bit / 32, shift = bit % 32;
    uint32_t code = words[word] >> shift;
    if (shift + WIDTH > 32) code |= words[word + 1] << (32 - shift);
    return code & (uint32_t)((1ull << WIDTH) - 1);
  }
  // `base` is where the super-group's codes begin.
  __device__ __forceinline__ void store(uint8_t* base, const Lane& lane) const {
    if constexpr (BITS % 32) {
      constexpr int WHOLE = BITS / 32;
      const uint32_t theirs = __shfl_xor_sync(ALL, words[0] & 0xFFFFu, 1);
      if (!lane.active) return;
      uint32_t* target = reinterpret_cast<uint32_t*>(base) + lane.index / 2 * WIDTH;
      if (lane.index & 1) {
#pragma unroll
        for (int i = 0; i < WHOLE; ++i) target[WHOLE + 1 + i] = words[i] >> 16 | words[i + 1] << 16;
      } else {
#pragma unroll
        for (int i = 0; i < WHOLE; ++i) target[i] = words[i];
        target[WHOLE] = words[WHOLE] | theirs << 16;
      }
    } else {
      if (!lane.active) return;
      if constexpr (WORDS % 4 == 0) {
#pragma unroll
        for (int i = 0; i < WORDS / 4; ++i)
          reinterpret_cast<uint4*>(base)[lane.index * (WORDS / 4) + i] =
              make_uint4(words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]);
      } else if constexpr (WORDS == 2) {
        reinterpret_cast<uint2*>(base)[lane.index] = make_uint2(words[0], words[1]);
      } else {
#pragma unroll
        for (int i = 0; i < WORDS; ++i) reinterpret_cast<uint32_t*>(base)[lane.index * WORDS + i] = words[i];
      }
    }
  }
  __device__ __forceinline__ void load(const uint8_t* base, const Lane& lane) {
    clear();
    if constexpr (BITS % 32) {
      constexpr int WHOLE = BITS / 32;
      uint32_t own[WORDS] = {};
      if (lane.active) {
        const uint32_t* source = reinterpret_cast<const uint32_t*>(base) + lane.index / 2 * WIDTH;
        if (lane.index & 1) {
#pragma unroll
          for (int i = 0; i < WHOLE; ++i) own[i] = source[WHOLE + 1 + i];
        } else {
#pragma unroll
          for (int i = 0; i <= WHOLE; ++i) own[i] = source[i];
        }
      }
      const uint32_t theirs = __shfl_xor_sync(ALL, own[WHOLE] >> 16, 1);
      if (lane.index & 1) {
        words[0] = theirs | own[0] << 16;
#pragma unroll
        for (int i = 1; i < WORDS; ++i) words[i] = own[i - 1] >> 16 | (i < WHOLE ? own[i] << 16 : 0u);
      } else {
#pragma unroll
        for (int i = 0; i < WORDS; ++i) words[i] = own[i];
      }
    } else {
      if (!lane.active) return;
      if constexpr (WORDS % 4 == 0) {
#pragma unroll
        for (int i = 0; i < WORDS / 4; ++i) {
          const uint4 part = reinterpret_cast<const uint4*>(base)[lane.index * (WORDS / 4) + i];
          words[4 * i] = part.x;
          words[4 * i + 1] = part.y;
          words[4 * i + 2] = part.z;
          words[4 * i + 3] = part.w;
        }
      } else if constexpr (WORDS == 2) {
        const uint2 part = reinterpret_cast<const uint2*>(base)[lane.index];
        words[0] = part.x;
        words[1] = part.y;
      } else {
#pragma unroll
        for (int i = 0; i < WORDS; ++i)
          words[i] = reinterpret_cast<const uint32_t*>(base)[lane.index * WORDS + i];
      }
    }
  }
};

__device__ __forceinline__ int64_t place_of_group(const gradwire_dynamiq& args, const Sections& sections,
                                                  const Lane& lane) {
  const int64_t group = lane.row * sections.groups + lane.index / sections.wide;
  return sections.end_of_codes + (args.bf16_scales ? 2 * group : group);
}
__device__ __forceinline__ int64_t place_of_scale(const Sections& sections, const Lane& lane) {
  return sections.end_of_groups + 2 * lane.row;
}

// What the lane's part of a message stands for, added to `values`, or in their place.
template <int WIDTH, bool ADD>
__device__ __forceinline__ void decode(const gradwire_dynamiq& args, const Sections& sections,
                                       const Tables& tables, int slot, const Lane& lane,
                                       const uint8_t* codes_at, float* values) {
  Codes<WIDTH> codes;
  codes.load(codes_at, lane);
  float step = 0.0f;
  int book = 0;
  if (lane.active) {
    const uint8_t* group_scale = args.incoming + place_of_group(args, sections, lane);
    if (args.bf16_scales) {
      step = scale_value(*reinterpret_cast<const uint16_t*>(group_scale));
    } else {
      const uint32_t pattern =
          *reinterpret_cast<const uint16_t*>(args.incoming + place_of_scale(sections, lane));
      book = tables.points[slot] ? (int)(pattern & 1u) : 0;
      step = group_step(args.codebooks > 1 ? pattern & ~1u : pattern, *group_scale);
    }
  }
  const float* decoded = tables.decoded[book] + (WIDTH == 16 ? 0 : decoded_base(slot));
#pragma unroll
  for (int k = 0; k < 16; ++k) {
    const float value = mul(WIDTH == 16 ? decoded_level(codes.get(k)) : decoded[codes.get(k)], step);
    values[k] = ADD ? add(values[k], value) : value;
  }
}

}  // namespace gradwire_cuda
