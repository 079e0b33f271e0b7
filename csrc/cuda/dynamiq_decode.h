// A message to values, or the sum of both, where no group's maximum is looked for: a half-warp has 64
// neighbouring coordinates of a super-group at a time, a lane four of them, so that a warp loads and stores
// whole sectors. Each lane prepares the step of one group of sixteen; lanes ask each other for them.
#pragma once
#include "dynamiq_lane.h"

namespace gradwire_cuda {

enum { FOUR = 4, FOURS = SUPER_GROUP / (FOUR * LANES) };

// The first of the lane's four coordinates within a super-group.
__device__ __forceinline__ int four_at(int index, int turn) { return FOUR * (LANES * turn + index); }

__device__ __forceinline__ void store_four(float* target, const float* values) {
  store_aligned<FOUR>(target, values);
}
__device__ __forceinline__ void store_four(uint16_t* target, const float* values) {
  *reinterpret_cast<uint2*>(target) =
      make_uint2(two_bfloat16(values[0], values[1]), two_bfloat16(values[2], values[3]));
}

// The lane's coordinates of a super-group less their mean.
template <class T>
__device__ __forceinline__ void take_fours(const void* from, const Coordinates& x, int index,
                                           int32_t super_group, float mean, float* values) {
  const int64_t first = (int64_t)super_group * SUPER_GROUP + FOUR * index;
  const T* source = (const T*)from + first;
  if (super_group < x.whole) {
#pragma unroll
    for (int turn = 0; turn < FOURS; ++turn) load_four(source + four_at(0, turn), values + FOUR * turn);
#pragma unroll
    for (int k = 0; k < 16; ++k) values[k] = sub(values[k], mean);
    return;
  }
#pragma unroll
  for (int turn = 0; turn < FOURS; ++turn) {
    const int64_t left = x.numel - first - four_at(0, turn);
    load_some<FOUR>(source + four_at(0, turn), left, values + FOUR * turn);
#pragma unroll
    for (int k = 0; k < FOUR; ++k)  // beyond the end are zeros, unless the mean is NaN
      values[FOUR * turn + k] = sub(k < left ? values[FOUR * turn + k] : mean, mean);
  }
}

template <class T>
__device__ __forceinline__ void give_fours(void* to, const Coordinates& out, int index, int32_t super_group,
                                           const float* values) {
  const int64_t first = (int64_t)super_group * SUPER_GROUP + FOUR * index;
  T* target = (T*)to + first;
  if (super_group < out.whole) {
#pragma unroll
    for (int turn = 0; turn < FOURS; ++turn) store_four(target + four_at(0, turn), values + FOUR * turn);
    return;
  }
#pragma unroll
  for (int turn = 0; turn < FOURS; ++turn)
    store_some<FOUR>(target + four_at(0, turn), out.numel - first - four_at(0, turn), values + FOUR * turn);
}

// Four codes from bit 0 on, of a lane's turn; `row` is where the super-group's codes begin. A turn's codes
// are whole words, 2·WIDTH of them.
template <int WIDTH>
__device__ __forceinline__ uint64_t load_four_codes(const uint8_t* row, int index, int turn) {
  const uint8_t* source = row + 8 * WIDTH * turn;
  if constexpr (WIDTH == 16) {
    const uint2 both = reinterpret_cast<const uint2*>(source)[index];
    return (uint64_t)both.y << 32 | both.x;
  } else if constexpr (WIDTH == 8) {
    return reinterpret_cast<const uint32_t*>(source)[index];
  } else if constexpr (WIDTH == 4) {
    return reinterpret_cast<const uint16_t*>(source)[index];
  } else if constexpr (WIDTH == 2) {
    return source[index];
  } else if constexpr (WIDTH == 1) {
    return source[index / 2] >> 4 * (index & 1);
  } else {  // the second word is the first again, unless they begin in one and end in the other
    const uint32_t* words = reinterpret_cast<const uint32_t*>(source);
    const int bit = FOUR * WIDTH * index;
    return __funnelshift_r(words[bit / 32], words[(bit + FOUR * WIDTH - 1) / 32], bit % 32);
  }
}

// What the lane's part of a message stands for, added to `values`, or in their place.
template <int SLOT, bool ADD>
__device__ __forceinline__ void decode_fours(const gradwire_dynamiq& args, const Plan& plan,
                                             const Tables& tables, const Lane& lane, float* values) {
  constexpr int WIDTH = Width<SLOT>::BITS;
  const uint8_t* row =
      in_global_memory(again(plan.incoming.codes[SLOT])) + (uint64_t)(uint32_t)lane.row * (32 * WIDTH);
  uint64_t codes[FOURS];
#pragma unroll
  for (int turn = 0; turn < FOURS; ++turn) codes[turn] = load_four_codes<WIDTH>(row, lane.index, turn);
  const LaneStep own = step_of_lane<SLOT, false>(args, plan, tables, lane);
  const DecodedValues<SLOT> decoded(tables, own.book, lane);
#pragma unroll
  for (int turn = 0; turn < FOURS; ++turn) {
    const float step = __shfl_sync(ALL, own.step, FOUR * turn + lane.index / FOUR, LANES);
#pragma unroll
    for (int k = 0; k < FOUR; ++k) {
      const float value = mul(decoded.of((uint32_t)(codes[turn] >> WIDTH * k)), step);
      float& sum = values[FOUR * turn + k];
      sum = ADD ? add(sum, value) : value;
    }
  }
}

}  // namespace gradwire_cuda
