// Numbers as zeros and a one, and their low bits: found in a slot by warps, and put into one.
#pragma once
#include "lattice_slot.h"

namespace gradwire_cuda {
inline namespace lattice {

// The place of a one of `word` that has `before` others below it.
__device__ __forceinline__ uint32_t place_of_one(uint32_t word, uint32_t before) {
  uint32_t place = 0;
#pragma unroll
  for (int width = 16; width; width /= 2) {
    const uint32_t below = __popc(word & ((1u << width) - 1));
    if (before < below) continue;
    before -= below;
    word >>= width;
    place += width;
  }
  return place;
}

// A word of a stream that begins at the bit `first`, zeros before; `beyond` follows the slot.
__device__ __forceinline__ uint32_t word_of(const Received& in, uint32_t i, uint32_t first, uint32_t beyond) {
  const int32_t after = (int32_t)(i - first / 32);
  if (after < 0) return 0;
  const uint32_t word = i < in.count ? in.words[i] : beyond;
  return after ? word : word & ALL << first % 32;
}

// Where each super-group's numbers begin, by how many come before (memory.ones), in a stream that begins at
// the bit `first`: warps count the ones of a part each, then look for those that end a super-group's.
__device__ __forceinline__ void find_starts(const Received& in, uint32_t first, SlotMemory& memory,
                                            const Team& team) {
  const uint32_t stream = in.sector_of(first / 32),
                 turns = (in.count - stream + SLOT_THREADS - 1) / SLOT_THREADS;
  const uint32_t begin = stream + team.warp * turns * WARP;
  if ((int)threadIdx.x <= team.num && memory.ones[threadIdx.x] == 0) memory.starts[threadIdx.x] = first;
  uint32_t own = 0;
#pragma unroll 1
  for (uint32_t k = 0; k < turns; ++k) own += __popc(word_of(in, begin + k * WARP + team.lane, first, 0));
  own = __reduce_add_sync(ALL, own);
  if (team.lane == 0) memory.warps[0][team.warp] = own;
  __syncthreads();
  uint32_t before = __reduce_add_sync(ALL, team.lane < team.warp ? memory.warps[0][team.lane] : 0);
  const uint32_t after = before + own;
  int next = 0;
#pragma unroll 1
  for (int k = 0; k <= team.num; k += WARP) {
    const int s = k + team.lane;
    next += __popc(__ballot_sync(ALL, s <= team.num && memory.ones[s] <= before));
  }
#pragma unroll 1
  for (uint32_t k = begin; before < after && next <= team.num; k += WARP) {
    const uint32_t i = k + team.lane, word = word_of(in, i, first, 0);
    uint32_t total;
    const uint32_t lower = before + sum_before(__popc(word), team.lane, total);
    before += total;
    for (; next <= team.num && memory.ones[next] <= before; ++next) {
      const uint32_t ones = memory.ones[next] - lower - 1;  // below the last one of those before
      if (ones < (uint32_t)__popc(word)) memory.starts[next] = 32 * i + place_of_one(word, ones) + 1;
    }
  }
  __syncthreads();
}

// The places of the first `count` ones from a bit on. Where the slot ends, ones follow one another.
__device__ __forceinline__ void find_ones(const Received& in, uint32_t first, uint32_t count, int lane,
                                          uint32_t* places) {
  uint32_t found = 0, total;
#pragma unroll 1
  for (uint32_t k = in.sector_of(first / 32); found < count; k += WARP) {
    const uint32_t i = k + lane;
    uint32_t word = word_of(in, i, first, ALL);
    const uint32_t own = __popc(word), at = found + sum_before(own, lane, total);
    const uint32_t end = smaller(at + own, count);
    found += total;
    for (uint32_t k = at; k < end; ++k, word &= word - 1) places[k] = 32 * i + __ffs((int)word) - 1;
  }
}

// The lower r bits, at most 14, of a lane's numbers, which are r bytes.
__device__ __forceinline__ void load_low(const Received& in, uint32_t at, uint32_t r, uint32_t* low) {
  const uint32_t mask = (1u << r) - 1;
  if (!__ballot_sync(ALL, r > 4)) {
    const uint32_t word = r ? in.from(8 * at) : 0;
#pragma unroll
    for (int i = 0; i < EIGHT; ++i) low[i] = word >> i * r % 32 & mask;
    return;
  }
  const uint32_t bytes = at % 4 + r, shift = at % 4 * 8, first = at / 4;
  uint32_t words[5];
#pragma unroll
  for (int k = 0; k < 5; ++k) words[k] = 4u * k < bytes ? in.word(first + k) : 0;
#pragma unroll
  for (int k = 0; k < 4; ++k) words[k] = __funnelshift_r(words[k], words[k + 1], shift);
  const uint64_t upper = words[2] | (uint64_t)words[3] << 32;
  const uint64_t lower = words[0] | (uint64_t)words[1] << 32;
  uint64_t all = lower;
#pragma unroll
  for (int i = 0; i < EIGHT; ++i) {
    if (i == EIGHT / 2) all = lower >> 4 * r | (r ? upper << (64 - 4 * r) : 0);
    low[i] = (uint32_t)all & mask;
    all >>= r;
  }
}
__device__ __forceinline__ void put_low(Outgoing& out, const uint32_t* z, uint32_t r, uint32_t at) {
  const uint32_t mask = (1u << r) - 1;
  if (!__ballot_sync(ALL, r > 4)) {
    uint32_t word = 0;
#pragma unroll
    for (int i = 0; i < EIGHT; ++i) word |= (z[i] & mask) << i * r % 32;
    out.add_word(8 * at, word);
    return;
  }
  uint64_t halves[2] = {};
#pragma unroll
  for (int i = 0; i < EIGHT; ++i) halves[i / 4] |= (uint64_t)(z[i] & mask) << i % 4 * r;
  const uint64_t low = halves[0] | halves[1] << 4 * r, high = r ? halves[1] >> (64 - 4 * r) : 0;
  out.add_word(8 * at, (uint32_t)low);
  out.add_word(8 * at + 32, (uint32_t)(low >> 32));
  out.add_word(8 * at + 64, (uint32_t)high);
  out.add_word(8 * at + 96, (uint32_t)(high >> 32));
}

// A lane's numbers as zeros and a one, from a bit on: `sum` bits, none if they are not coded.
__device__ __forceinline__ void put_ones(Outgoing& out, const uint32_t* zeros, uint32_t at, uint32_t sum) {
  if (!__ballot_sync(ALL, sum > 32)) {
    uint32_t word = 0, place = 0;
#pragma unroll
    for (int i = 0; i < EIGHT; ++i) {
      place += zeros[i] + (i > 0);
      word |= 1u << place % 32;
    }
    out.add_word(at, sum ? word : 0);
    return;
  }
  if (!sum) return;
  uint32_t word = 0, place = at / 32;
#pragma unroll
  for (int i = 0; i < EIGHT; ++i) {
    at += zeros[i];
    if (at / 32 != place) {
      out.add_bits(place, word);
      word = 0;
      place = at / 32;
    }
    word |= 1u << at % 32;
    ++at;
  }
  out.add_bits(place, word);
}

}  // namespace lattice
}  // namespace gradwire_cuda
