// A lane's sixteen coordinates to its part of a message.
#pragma once
#include "dynamiq_estimate.h"
#include "dynamiq_scale.h"

namespace gradwire_cuda {

// Coordinate 8·part + k has the lower or upper half of word k/2.
__device__ __forceinline__ uint32_t pair_of(const Words& words, int k) {
  return k / 2 == 0 ? words.x : k / 2 == 1 ? words.y : k / 2 == 2 ? words.z : words.w;
}
__device__ __forceinline__ uint32_t half_of(const Words& words, int k) {
  return k & 1 ? pair_of(words, k) >> 16 : pair_of(words, k) & 0xFFFFu;
}

// ---- The paper's values, rounded among at most 64 workers

// What |x| is multiplied by for y = (|x|·factor)·(span/reference): the product of the two if it is exact, for
// then so is |x|·factor, or else it is below 2^-126 and y below 2^-26, for spans are at most 2^74 and
// references at least 2^-26: then 1 + y is 1. Where it is not, or the group is sent as zeros, the coordinates
// are replaced: what is left is one factor again.
__device__ __forceinline__ float normalizer_of_values(const LaneScale& scale, float span, float* values) {
  const float inverse = div_normal(span, scale.reference), both = mul(scale.factor, inverse);
  if (bits_of(both) - (1u << 23) < 0x7E000000u) return both;  // from 2^-126 to 2^126
  const bool silent = !(scale.reference > 0.0f);
  const uint32_t kept = silent ? (uint32_t)SIGN : 0xFFFFFFFFu;
#pragma unroll
  for (int k = 0; k < 16; ++k) values[k] = mul(float_of(bits_of(values[k]) & kept), scale.factor);
  return silent ? 0.0f : inverse;
}

// What the paper's values are encoded with.
struct PaperLane {
  float normalizer;
  LaneDither dither;
};

// The levels and the signs of eight coordinates, those from `first` on.
template <int SLOT>
__device__ __forceinline__ void encode_exactly(const Thresholds<SLOT>& thresholds, const PaperLane& paper,
                                               const Words& words, int first, const float* x,
                                               Fields<SLOT>& fields, Codes<Width<SLOT>::BITS>& codes) {
#pragma unroll
  for (int i = 7; i >= 0; --i) {  // from the last one to the first, as fields are filled
    const float t = add(mul(fabsf(x[i]), paper.normalizer), 1.0f);
    fields.add(thresholds, x[i], t, paper.dither.of(pair_of(words, i), i & 1, x[i]));
    fields.put(first + i, codes);
  }
}

// The value, which the compiler takes for another: what is computed from it is not kept for those who
// seldom need it.
__device__ __forceinline__ uint32_t unknown(uint32_t value) {
  asm volatile("" : "+r"(value));
  return value;
}
template <int SLOT>
__device__ __forceinline__ void encode_doubtful(const EncodingTables& tables, const PaperLane& paper,
                                                const Words& words, int first, const float* values,
                                                Codes<Width<SLOT>::BITS>& codes) {
  const Words same = {unknown(words.x), unknown(words.y), unknown(words.z), unknown(words.w)};
  float x[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] = float_of(unknown(bits_of(values[i])));
  Fields<SLOT> fields;
  encode_exactly<SLOT>(Thresholds<SLOT>(tables, 0), paper, same, first, x, fields, codes);
}

// Encodes by estimates; exactly if one of them is in doubt.
template <int SLOT>
__device__ __forceinline__ void encode_by_estimates(const EncodingTables& tables, const PaperLane& paper,
                                                    const Words& words, int first, const float* x,
                                                    Codes<Width<SLOT>::BITS>& codes) {
  constexpr int WIDTH = Width<SLOT>::BITS, HALF = Estimates<SLOT>::HALF, EACH = Estimates<SLOT>::EACH;
  const Scalars& scalars = tables.scalars[SLOT][0];
  const float levels_per_octave = again(scalars.levels_per_octave), beginning = again(scalars.beginning);
  const auto level = [&](int i) {
    const float t = about(fabsf(x[i]), paper.normalizer, 1.0f),
                w = paper.dither.estimate(pair_of(words, i), i & 1, x[i]);
    return about(sub(ptx::lg2_approx_ftz(t), ptx::lg2_approx_ftz(w)), levels_per_octave, beginning);
  };
  Estimates<SLOT> estimates;
  uint32_t found[8 / EACH];
#pragma unroll
  for (int part = 0; part < 8; part += EACH) {
#pragma unroll
    for (int i = HALF - 1; i >= 0; --i) estimates.add(level(part + i), level(part + i + HALF));
    found[part / EACH] = estimates.codes(x + part);
  }
  if (estimates.doubtful(again(scalars.doubt))) {
    encode_doubtful<SLOT>(tables, paper, words, first, x, codes);
    return;
  }
#pragma unroll
  for (int part = 0; part < 8; part += EACH)
    codes.put_word((first + part) * WIDTH, found[part / EACH], EACH * WIDTH);
}

template <int SLOT, class Keys>
__device__ __forceinline__ void encode_paper(const Keys& keys, const DitherScale& dithers,
                                             const EncodingTables& tables, const Lane& lane, const Row& row,
                                             const LaneScale& scale, float* values,
                                             Codes<Width<SLOT>::BITS>& codes) {
  const PaperLane paper = {normalizer_of_values(scale, again(tables.scalars[SLOT][0].span), values),
                           LaneDither(dithers, row.order, scale.within, tables, SLOT)};
  Fields<SLOT> fields;
  Words both[2] = {{(uint32_t)row.super_group, 0, 2u * lane.index, 0},
                   {(uint32_t)row.super_group, 0, 2u * lane.index + 1, 0}};
#pragma unroll
  for (int round = 0; round < PHILOX_ROUNDS; ++round) {
    const Key key = round_key(keys, round);
    both[0] = philox_round(both[0], key);
    both[1] = philox_round(both[1], key);
  }
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const int part = ESTIMATED<SLOT> ? k : 1 - k;
    const Words words = both[part];
    if constexpr (ESTIMATED<SLOT>)
      encode_by_estimates<SLOT>(tables, paper, words, 8 * part, values + 8 * part, codes);
    else
      encode_exactly<SLOT>(Thresholds<SLOT>(tables, lane.warp_lane), paper, words, 8 * part,
                           values + 8 * part, fields, codes);
  }
}

// ---- Whatever the values and the rounding

// #{k < largest : t > T[k]·w} at 2 to 8 bits.
template <int SLOT, int KIND>
__device__ __forceinline__ int32_t count_levels(const EncodingTables& tables, const Scalars& scalars,
                                                int book, bool books, int copy, float t, float w) {
  constexpr int WIDTH = Width<SLOT>::BITS;
  constexpr int32_t LARGEST = (1 << (WIDTH - 1)) - (KIND == GRADWIRE_DISTINCT ? 0 : 1);
  const float* thresholds = tables.thresholds[book] + (WIDTH == 8 ? 0 : threshold_base(SLOT) + 1);
  if constexpr (WIDTH <= 3) {
    int32_t level = t > w ? 1 : 0;  // T[0] = 1
#pragma unroll
    for (int r = 1; r < LARGEST; ++r) level += t > mul(thresholds[r], w) ? 1 : 0;
    return level;
  } else {
    const int32_t level =
        nearest_level(approximate_log2(t), w, scalars.levels_per_octave, scalars.levels_per_step, LARGEST);
    return exact_level(level, t, w,
                       WIDTH == 8 ? wide_threshold(tables, books, book, level, copy) : thresholds[level]);
  }
}

template <int SLOT, int KIND>
__device__ __forceinline__ uint32_t code_of(const EncodingTables& tables, const Scalars& scalars, int book,
                                            bool books, int copy, float y, float w, uint32_t sign) {
  constexpr int WIDTH = Width<SLOT>::BITS;
  if constexpr (WIDTH == 16 || KIND == GRADWIRE_UNIFORM) {
    return uniform_code(y, w, sign, (1 << (WIDTH - 1)) - 1, WIDTH);
  } else if constexpr (KIND == GRADWIRE_DISTINCT) {
    const float t = add(mul(y, sign ? scalars.negative_factor : 1.0f), 1.0f);
    const int32_t level = count_levels<SLOT, KIND>(tables, scalars, book, books, copy, t, w);
    return signed_code(smaller(level, (1 << (WIDTH - 1)) - (int32_t)(sign >> 31)), sign, WIDTH);
  } else {
    return signed_code(count_levels<SLOT, KIND>(tables, scalars, book, books, copy, add(y, 1.0f), w), sign,
                       WIDTH);
  }
}

template <int SLOT, int KIND, bool PAPER, class Keys, class Shared>
__device__ __forceinline__ void encode_any(const gradwire_dynamiq& args, const Keys& keys, const Plan& plan,
                                           const Shared& tables, const Lane& lane, const Row& row,
                                           const LaneScale& scale, float* values,
                                           Codes<Width<SLOT>::BITS>& codes) {
  constexpr int WIDTH = Width<SLOT>::BITS;
  const bool silent = !(scale.reference > 0.0f);
  const uint32_t kept = silent ? (uint32_t)SIGN : 0xFFFFFFFFu;
#pragma unroll
  for (int k = 0; k < 16; ++k) values[k] = mul(float_of(bits_of(values[k]) & kept), scale.factor);
  uint32_t codebook = 0;
  bool books = false;
  if constexpr (sizeof(Shared) == sizeof(CodebookTables) && WIDTH != 16 && WIDTH != 1) {
    books = true;
    codebook = choose_codebook(args, plan, tables, SLOT, lane, scale, values);
  }
  const int book = (int)(codebook >> 1);
  const uint32_t mirror = codebook << 31;
  const Scalars scalars = scalars_of(tables, SLOT, book);
  const float inverse = silent ? 0.0f : div(scalars.span, scale.reference);
  const bool correlated = PAPER || args.correlated;
  const uint32_t stream = correlated ? 0 : args.rank + 1, workers = correlated ? args.workers : 1;
  const uint32_t within = correlated ? scale.within : 0;
  const float middle = mul((float)(int32_t)((workers << 16) - 1), 0.5f);
  const uint32_t order = correlated ? row.order : 0;
  bool alive = true;
  if constexpr (WIDTH == 1) {
    alive = false;
#pragma unroll
    for (int k = 0; k < 16; ++k) alive |= mul(fabsf(values[k]), inverse) > 0.0f;
    if (!PAPER && args.group == 32) alive |= __shfl_xor_sync(ALL, (uint32_t)alive, 1) != 0;
  }
#pragma unroll
  for (int part = 0; part < 2; ++part) {
    const Words words = philox((uint32_t)row.super_group, stream, 2 * lane.index + part, 0, keys);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int k = 8 * part + i;
      const uint32_t dither = correlated_dither(half_of(words, i), workers, order, within);
      const uint32_t sign = bits_of(values[k]) & SIGN;
      const float w = scaled_dither(dither, middle, scalars.unit, scalars.centre, sign),
                  y = mul(fabsf(values[k]), inverse);
      if constexpr (WIDTH == 1)
        codes.put(k, sign_code(y, w, sign, alive));
      else
        codes.put(k, code_of<SLOT, KIND>(tables, scalars, book, books, lane.warp_lane, y, w, sign ^ mirror));
    }
  }
}

template <int SLOT, int KIND, bool PAPER, class Keys, class Shared>
__device__ __forceinline__ void encode(const gradwire_dynamiq& args, const Keys& keys,
                                       const DitherScale& dithers, const Plan& plan, const Shared& tables,
                                       const Lane& lane, const Row& row, float* values) {
  constexpr int WIDTH = Width<SLOT>::BITS;
  const LaneScale scale = encode_scale<PAPER>(args, plan, tables, lane, row, values);
  Codes<WIDTH> codes;
  codes.clear();
  if constexpr (PAPER && WIDTH != 16 && WIDTH != 1)
    encode_paper<SLOT>(keys, dithers, tables, lane, row, scale, values, codes);
  else
    encode_any<SLOT, KIND, PAPER>(args, keys, plan, tables, lane, row, scale, values, codes);
  codes.store(codes_at<SLOT>(plan.outgoing, lane), lane);
}

}  // namespace gradwire_cuda
