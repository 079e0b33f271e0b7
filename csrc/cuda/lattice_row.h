// A super-group, which a warp has: eight neighbours of each lane, as gradients, random bits and integers.
#pragma once
#include "gradwire/lattice.h"
#include "launch.h"

namespace gradwire_cuda {
inline namespace lattice {

using namespace gradwire;

constexpr int EIGHT = LANE;  // coordinates of a lane

// Integers of a super-group in shared memory: the first four of every lane, then the others, lest lanes that
// load 16 bytes share banks.
struct alignas(16) Row {
  uint32_t words[SUPER_GROUP];
};

__device__ __forceinline__ void load_row(const Row& row, int lane, uint32_t* words) {
  const uint4* const fours = reinterpret_cast<const uint4*>(row.words);
  const uint4 low = fours[lane], high = fours[WARP + lane];
  words[0] = low.x, words[1] = low.y, words[2] = low.z, words[3] = low.w;
  words[4] = high.x, words[5] = high.y, words[6] = high.z, words[7] = high.w;
}
__device__ __forceinline__ void store_row(Row& row, int lane, const uint32_t* words) {
  uint4* const fours = reinterpret_cast<uint4*>(row.words);
  fours[lane] = make_uint4(words[0], words[1], words[2], words[3]);
  fours[WARP + lane] = make_uint4(words[4], words[5], words[6], words[7]);
}
__device__ __forceinline__ void load_row(const Row& row, int lane, int32_t* q) {
  uint32_t words[EIGHT];
  load_row(row, lane, words);
#pragma unroll
  for (int i = 0; i < EIGHT; ++i) q[i] = (int32_t)words[i];
}
__device__ __forceinline__ void store_row(Row& row, int lane, const int32_t* q) {
  uint32_t words[EIGHT];
#pragma unroll
  for (int i = 0; i < EIGHT; ++i) words[i] = (uint32_t)q[i];
  store_row(row, lane, words);
}
// What `zigzags_of` has made.
__device__ __forceinline__ void load_unzigzagged(const Row& row, int lane, int32_t* q) {
  uint32_t z[EIGHT];
  load_row(row, lane, z);
#pragma unroll
  for (int i = 0; i < EIGHT; ++i) q[i] = unzigzag(z[i]);
}
__device__ __forceinline__ void zigzags_of(const int32_t* q, uint32_t* z) {
#pragma unroll
  for (int i = 0; i < EIGHT; ++i) z[i] = zigzag(q[i]);
}

// The words before those of lower lanes, added up, and of all lanes.
__device__ __forceinline__ uint32_t sum_before(uint32_t own, int lane, uint32_t& total) {
  uint32_t sum = own;
#pragma unroll
  for (int distance = 1; distance < WARP; distance *= 2) {
    const uint32_t lower = __shfl_up_sync(ALL, sum, distance);
    if (lane >= distance) sum += lower;
  }
  total = __shfl_sync(ALL, sum, WARP - 1);
  return sum - own;
}
__device__ __forceinline__ uint32_t sum_before(uint32_t own, int lane) {
  uint32_t total;
  return sum_before(own, lane, total);
}

// 16 random bits for each of the lane's coordinates.
__device__ __forceinline__ Words words_of(int64_t super_group, uint32_t rank, uint32_t purpose, uint32_t turn,
                                          Key key, int lane) {
  const uint32_t first = super_group < 0 ? 0 : (uint32_t)super_group * LANES;
  return philox(first + lane, rank, purpose, turn, key);
}
__device__ __forceinline__ void halves_of(int64_t super_group, uint32_t rank, uint32_t purpose, uint32_t turn,
                                          Key key, int lane, uint32_t* out) {
  const Words words = words_of(super_group, rank, purpose, turn, key, lane);
  const uint32_t each[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
  for (int i = 0; i < EIGHT / 2; ++i) {
    out[2 * i] = each[i] & 0xffffu;
    out[2 * i + 1] = each[i] >> 16;
  }
}

// What is added before rounding down, in this worker's stratum; `each` is 1 / (count * 2^16). `stratum` of
// lattice.h in fewer instructions: what is below 0 is more than any other, and two halves are put together.
__device__ __forceinline__ void strata_of(const gradwire_lattice& args, int64_t super_group, Key key,
                                          float each, int lane, float* out) {
  const Words shared = words_of(super_group, 0, OF_SHARED, 0, key, lane),
              within = words_of(super_group, args.rank, OF_WORKER, 0, key, lane);
  const uint32_t first[4] = {shared.x, shared.y, shared.z, shared.w},
                 second[4] = {within.x, within.y, within.z, within.w};
  const uint32_t count = (uint32_t)args.count;
#pragma unroll
  for (int i = 0; i < EIGHT; ++i) {
    const uint32_t upper = i % 2 ? first[i / 2] & 0xffff0000u : first[i / 2] << 16;
    const uint32_t over = __umulhi(upper, count) + (uint32_t)args.index, own = smaller(over, over - count);
    out[i] = between_0_and_1(__byte_perm(second[i / 2], own, i % 2 ? 0x5432 : 0x5410), each);
  }
}

// What all ranks add, and subtract.
__device__ __forceinline__ void dithers_of(int64_t super_group, Key key, int lane, float* out) {
  uint32_t shared[EIGHT];
  halves_of(super_group, 0, OF_DITHER, 0, key, lane, shared);
#pragma unroll
  for (int i = 0; i < EIGHT; ++i) out[i] = between_0_and_1(shared[i], 1.0f / 65536.0f);
}

template <class T>
__device__ __forceinline__ void load_some_of(const T* source, int64_t valid, bool vectors, float* x) {
  if (vectors && valid >= EIGHT)
    load_aligned<EIGHT>(source, x);
  else
    load_some<EIGHT>(source, valid, x);
}
// The lane's coordinates of a super-group of the bucket, zeros if it is not finite or none; returns its mark.
__device__ __forceinline__ uint32_t load_super_group(const gradwire_lattice& args, int64_t super_group,
                                                     bool vectors, int lane, float* x) {
  const int64_t first = (super_group < 0 ? 0 : super_group * SUPER_GROUP) + lane * EIGHT;
  const int64_t valid = super_group < 0 ? 0 : args.numel - first;
  if (args.call.dtype == GRADWIRE_FLOAT32)
    load_some_of((const float*)args.values + first, valid, vectors, x);
  else
    load_some_of((const uint16_t*)args.values + first, valid, vectors, x);
  uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < EIGHT; ++i) largest = larger(largest, magnitude_bits(x[i]));
  largest = __reduce_max_sync(ALL, largest);
  if (largest < INFINITE) return largest ? 0u : SILENT_MARK;
#pragma unroll
  for (int i = 0; i < EIGHT; ++i) x[i] = 0.0f;
  return BROKEN_MARK;
}

// x · factor + noise, rounded down.
__device__ __forceinline__ void rounded_down(const float* x, float factor, const float* noise, int32_t* q) {
#pragma unroll
  for (int i = 0; i < EIGHT; ++i) q[i] = __float2int_rd(add(mul(x[i], factor), noise[i]));
}

// Integers halved `more` times, rounded at random; every turn has other random bits.
__device__ __forceinline__ void shift_row(const gradwire_lattice& args, int64_t super_group, Key key,
                                          uint32_t turn, uint32_t more, int lane, int32_t* q) {
  if (!more) return;
  uint32_t random[EIGHT];
  halves_of(super_group, args.rank, OF_SHIFT, turn, key, lane, random);
#pragma unroll
  for (int i = 0; i < EIGHT; ++i)
    q[i] = (int32_t)((q[i] + (int64_t)((uint64_t)random[i] << more >> 16)) >> more);
}

// A whole number of steps D, and how many D each of them is, as float32: one rounding, and an exact product.
__device__ __forceinline__ float whole_of(int32_t q, uint32_t shift) {
  return mul((float)q, power_of_two((int32_t)shift + 127));
}

// The lane's eight words of a row of the device's memory; `vectors`: it begins at a multiple of 16 bytes.
__device__ __forceinline__ void load_eight(const int32_t* row, bool vectors, int lane, int32_t* q) {
  if (vectors) {
    const uint4* const fours = reinterpret_cast<const uint4*>(row) + 2 * lane;
    const uint4 low = fours[0], high = fours[1];
    const uint32_t words[EIGHT] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
    for (int i = 0; i < EIGHT; ++i) q[i] = (int32_t)words[i];
  } else {
#pragma unroll
    for (int i = 0; i < EIGHT; ++i) q[i] = row[lane * EIGHT + i];
  }
}
// Two lanes have a sector of 32 bytes in each of two turns.
__device__ __forceinline__ void store_eight(uint32_t* row, bool vectors, int lane, const uint32_t* words) {
  if (!vectors) {
#pragma unroll
    for (int i = 0; i < EIGHT; ++i) row[lane * EIGHT + i] = words[i];
    return;
  }
  const bool odd = lane % 2;
  uint32_t first[4], second[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t received = __shfl_xor_sync(ALL, odd ? words[i] : words[4 + i], 1);
    first[i] = odd ? received : words[i];
    second[i] = odd ? words[4 + i] : received;
  }
  uint32_t* const target = row + lane / 2 * (2 * EIGHT) + (odd ? 4 : 0);
  ptx::st_global_v4(target, first[0], first[1], first[2], first[3]);
  ptx::st_global_v4(target + EIGHT, second[0], second[1], second[2], second[3]);
}

}  // namespace lattice
}  // namespace gradwire_cuda
