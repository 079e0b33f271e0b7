// Super-groups of a worker's bucket on the lattice, with their random bits, for kernels for CPUs.
#pragma once
#include "gradwire/lattice.h"
#include "philox_vectors.h"

GRADWIRE_NAMESPACE_BEGIN

// 16 random bits for every coordinate of a super-group.
static inline void halves_of(int64_t super_group, uint32_t rank, uint32_t purpose, uint32_t turn, Key key,
                             uint16_t* out) {
  enum { PART = COUNTERS * 8 };
  Wide counters = wide_sequence((uint32_t)(super_group * (SUPER_GROUP / 8)), 1);
  for (int k = 0; k < SUPER_GROUP; k += PART, counters += (uint64_t)COUNTERS) {
    alignas(64) uint32_t words[PART / 2];
    philox_words(counters, rank, Wide{} + purpose, key, words, turn);
    memcpy(out + k, words, sizeof words);
  }
}

GRADWIRE_HD int64_t counted(int64_t super_group) { return super_group < 0 ? 0 : super_group; }

// What is added before rounding down, in this worker's stratum.
static inline void strata_of(const gradwire_lattice& args, int64_t super_group, Key key, float* out) {
  alignas(64) uint16_t shared[SUPER_GROUP], within[SUPER_GROUP];
  halves_of(counted(super_group), 0, OF_SHARED, 0, key, shared);
  halves_of(counted(super_group), args.rank, OF_WORKER, 0, key, within);
  const float each = 1.0f / (float)(args.count << 16);
  const uint32_t index = (uint32_t)args.index, count = (uint32_t)args.count;
  GRADWIRE_SIMD
  for (int i = 0; i < SUPER_GROUP; ++i)
    out[i] = between_0_and_1((stratum(shared[i], index, count) << 16) + within[i], each);
}

// What all ranks add, and subtract.
static inline void dithers_of(int64_t super_group, Key key, float* out) {
  alignas(64) uint16_t shared[SUPER_GROUP];
  halves_of(counted(super_group), 0, OF_DITHER, 0, key, shared);
  GRADWIRE_SIMD
  for (int i = 0; i < SUPER_GROUP; ++i) out[i] = between_0_and_1(shared[i], 1.0f / 65536.0f);
}

// A super-group of the bucket, zeros if it is not finite or none; returns its mark.
template <class T>
static inline uint32_t load_super_group(const T* values, int64_t numel, int64_t super_group, float* row) {
  const int64_t first = super_group * SUPER_GROUP;
  const int64_t there = super_group < 0 ? 0 : smaller(numel - first, (int64_t)SUPER_GROUP);
  uint32_t largest = 0;
  if (there == SUPER_GROUP) {
#pragma omp simd reduction(max : largest)
    for (int i = 0; i < SUPER_GROUP; ++i) {
      row[i] = load(values + first + i);
      largest = larger(largest, magnitude_bits(row[i]));
    }
  } else {
    for (int i = 0; i < SUPER_GROUP; ++i) {
      row[i] = i < there ? load(values + first + i) : 0.0f;
      largest = larger(largest, magnitude_bits(row[i]));
    }
  }
  if (largest >= INFINITE) memset(row, 0, 4 * SUPER_GROUP);
  return largest >= INFINITE ? BROKEN_MARK : largest ? 0u : SILENT_MARK;
}
static inline uint32_t load_super_group(const gradwire_lattice& args, int64_t super_group, float* row) {
  return args.call.dtype == GRADWIRE_FLOAT32
             ? load_super_group((const float*)args.values, args.numel, super_group, row)
             : load_super_group((const uint16_t*)args.values, args.numel, super_group, row);
}

// row · factor + noise, rounded down.
static inline void rounded_down(const float* row, float factor, const float* noise, int32_t* q) {
  GRADWIRE_SIMD
  for (int i = 0; i < SUPER_GROUP; ++i) q[i] = floored(add(mul(row[i], factor), noise[i]));
}

// Integers halved `more` times, rounded at random; every turn has other random bits.
static inline void shift_row(const gradwire_lattice& args, int64_t super_group, Key key, uint32_t turn,
                             uint32_t more, int32_t* q) {
  if (!more) return;
  alignas(64) uint16_t random[SUPER_GROUP];
  halves_of(counted(super_group), args.rank, OF_SHIFT, turn, key, random);
  for (int i = 0; i < SUPER_GROUP; ++i)
    q[i] = (int32_t)((q[i] + (int64_t)((uint64_t)random[i] << more >> 16)) >> more);
}

GRADWIRE_NAMESPACE_END
