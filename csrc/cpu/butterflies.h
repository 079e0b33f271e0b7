// Stages of the Walsh-Hadamard transform on whole vectors, as many stages as registers allow at a time.
#pragma once
#include "kernel.h"

namespace gradwire {
inline namespace GRADWIRE_LEVEL {

#if defined(__AVX512F__)
enum { LANES_LOG = 4, RADIX_LOG = 4 };
#define GRADWIRE_LANES 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
#elif defined(__AVX2__)
enum { LANES_LOG = 3, RADIX_LOG = 3 };
#define GRADWIRE_LANES 0, 1, 2, 3, 4, 5, 6, 7
#else
enum { LANES_LOG = 2, RADIX_LOG = 3 };
#define GRADWIRE_LANES 0, 1, 2, 3
#endif
// Stages of the first pass: within vectors, and between as many as are held in registers.
enum { LANES = 1 << LANES_LOG, FIRST_STAGES = LANES_LOG + RADIX_LOG };

typedef float Vector __attribute__((vector_size(4 * LANES)));
typedef int32_t Integers __attribute__((vector_size(4 * LANES)));

GRADWIRE_HD Vector load_vector(const float* source) {
  Vector v;
  __builtin_memcpy(&v, source, sizeof v);
  return v;
}
GRADWIRE_HD void store_vector(float* target, Vector v) { __builtin_memcpy(target, &v, sizeof v); }

// A stage that pairs lanes: of a and b, 2^STAGE lanes apart, a becomes b + a, and b becomes a + (−b).
template <int STAGE>
GRADWIRE_HD Vector within(Vector v) {
  const Integers lanes = {GRADWIRE_LANES};
  const Integers flips = (lanes & (1 << STAGE)) << (31 - STAGE);
  return __builtin_shuffle(v, lanes ^ (1 << STAGE)) + (Vector)((Integers)v ^ flips);
}
template <int STAGES>
GRADWIRE_HD Vector within_vector(Vector v) {
  if constexpr (STAGES > 0) v = within<0>(v);
  if constexpr (STAGES > 1) v = within<1>(v);
  if constexpr (STAGES > 2) v = within<2>(v);
  if constexpr (STAGES > 3) v = within<3>(v);
  return v;
}
// Stages that pair 2^STAGES vectors.
template <int STAGES>
GRADWIRE_HD void between_vectors(Vector* v) {
#pragma GCC unroll 4
  for (int stage = 0; stage < STAGES; ++stage)
#pragma GCC unroll 16
    for (int i = 0; i < 1 << STAGES; ++i)
      if (!(i >> stage & 1)) {
        const Vector a = v[i], b = v[i | 1 << stage];
        v[i] = a + b;
        v[i | 1 << stage] = a - b;
      }
}

// What a pass stores: its results, or these times a scale.
struct Unscaled {
  static Vector of(Vector v, float) { return v; }
};
struct Scaled {
  static Vector of(Vector v, float scale) { return v * scale; }
};

// The first STAGES stages of `count` consecutive values, a multiple of UNIT and of 2^STAGES. In all passes
// the target may be the source.
template <int STAGES, class Stored>
__attribute__((noinline)) void first_stages(const float* source, float* target, int64_t count, float scale) {
  constexpr int INNER = STAGES < LANES_LOG ? STAGES : LANES_LOG, OUTER = STAGES - INNER;
  for (int64_t first = 0; first < count; first += LANES << OUTER) {
    Vector v[1 << OUTER];
#pragma GCC unroll 16
    for (int i = 0; i < 1 << OUTER; ++i) v[i] = within_vector<INNER>(load_vector(source + first + i * LANES));
    between_vectors<OUTER>(v);
#pragma GCC unroll 16
    for (int i = 0; i < 1 << OUTER; ++i) store_vector(target + first + i * LANES, Stored::of(v[i], scale));
  }
}

// STAGES stages that pair 2^STAGES rows of `columns` values each, a multiple of LANES.
template <int STAGES, class Stored>
__attribute__((noinline)) void row_stages(const float* source, int64_t source_stride, float* target,
                                          int64_t target_stride, int64_t columns, float scale) {
  for (int64_t column = 0; column < columns; column += LANES) {
    Vector v[1 << STAGES];
#pragma GCC unroll 16
    for (int i = 0; i < 1 << STAGES; ++i) v[i] = load_vector(source + i * source_stride + column);
    between_vectors<STAGES>(v);
#pragma GCC unroll 16
    for (int i = 0; i < 1 << STAGES; ++i)
      store_vector(target + i * target_stride + column, Stored::of(v[i], scale));
  }
}

template <class Stored>
void first_stages(int stages, const float* source, float* target, int64_t count, float scale) {
  switch (stages) {
    case 0: return first_stages<0, Stored>(source, target, count, scale);
    case 1: return first_stages<1, Stored>(source, target, count, scale);
    case 2: return first_stages<2, Stored>(source, target, count, scale);
    case 3: return first_stages<3, Stored>(source, target, count, scale);
    case 4: return first_stages<4, Stored>(source, target, count, scale);
    case 5: return first_stages<5, Stored>(source, target, count, scale);
#if defined(__AVX2__)
    case 6: return first_stages<6, Stored>(source, target, count, scale);
#endif
#if defined(__AVX512F__)
    case 7: return first_stages<7, Stored>(source, target, count, scale);
    case 8: return first_stages<8, Stored>(source, target, count, scale);
#endif
  }
}
template <class Stored>
void row_stages(int stages, const float* source, int64_t source_stride, float* target, int64_t target_stride,
                int64_t columns, float scale) {
  switch (stages) {
    case 1: return row_stages<1, Stored>(source, source_stride, target, target_stride, columns, scale);
    case 2: return row_stages<2, Stored>(source, source_stride, target, target_stride, columns, scale);
    case 3: return row_stages<3, Stored>(source, source_stride, target, target_stride, columns, scale);
#if defined(__AVX512F__)
    case 4: return row_stages<4, Stored>(source, source_stride, target, target_stride, columns, scale);
#endif
  }
}
inline void first_stages(bool scaled, int stages, const float* source, float* target, int64_t count,
                         float scale) {
  if (scaled)
    first_stages<Scaled>(stages, source, target, count, scale);
  else
    first_stages<Unscaled>(stages, source, target, count, scale);
}
inline void row_stages(bool scaled, int stages, const float* source, int64_t source_stride, float* target,
                       int64_t target_stride, int64_t columns, float scale) {
  if (scaled)
    row_stages<Scaled>(stages, source, source_stride, target, target_stride, columns, scale);
  else
    row_stages<Unscaled>(stages, source, source_stride, target, target_stride, columns, scale);
}

// How many of `left` stages to take next, so that all passes are about as long.
GRADWIRE_HD int next_stages(int left) {
  const int passes = (left + RADIX_LOG - 1) / RADIX_LOG;
  return (left + passes - 1) / passes;
}

// The first `log` stages of `count` consecutive values, a multiple of UNIT and of 2^log: in place, but the
// results go to `target`, times `scale` if these are all stages.
inline void transform_blocks(float* values, float* target, int64_t count, int log, bool all, float scale) {
  int stage = log < FIRST_STAGES ? log : FIRST_STAGES;
  const bool done = stage == log;
  first_stages(done && all, stage, values, done ? target : values, count, scale);
  while (stage < log) {
    const int stages = next_stages(log - stage);
    const int64_t distance = (int64_t)1 << stage;
    stage += stages;
    float* to = stage == log ? target : values;
    for (int64_t first = 0; first < count; first += distance << stages)
      row_stages(stage == log && all, stages, values + first, distance, to + first, distance, distance,
                 scale);
  }
}

}  // namespace GRADWIRE_LEVEL
}  // namespace gradwire
