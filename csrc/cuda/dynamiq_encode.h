// A lane's sixteen coordinates to its part of a message.
#pragma once
#include "dynamiq_lane.h"

namespace gradwire_cuda {

// The largest over the half-warp.
__device__ __forceinline__ uint32_t largest_of_row(uint32_t value) {
#pragma unroll
  for (int distance = 1; distance < LANES; distance *= 2)
    value = larger(value, __shfl_xor_sync(ALL, value, distance));
  return value;
}

// The scales of the lane's group, written to the message.
struct LaneScale {
  float factor, reference;
  uint32_t within, pattern;
};

__device__ __forceinline__ LaneScale encode_scale(const gradwire_dynamiq& args, const Sections& sections,
                                                  const Lane& lane, uint32_t super_group,
                                                  const float* values) {
  uint32_t maximum = 0;
#pragma unroll
  for (int k = 0; k < 16; ++k) maximum = larger(maximum, magnitude_bits(values[k]));
  if (sections.wide == 2) maximum = larger(maximum, __shfl_xor_sync(ALL, maximum, 1));
  const uint32_t word =
      private_word(private_base(super_group, args.rank, args.key0, args.key1), lane.index / sections.wide);
  const bool writes = lane.active && (sections.wide == 1 || !(lane.index & 1));
  uint8_t* group_at = args.outgoing + place_of_group(args, sections, lane);
  LaneScale result;
  result.within = word & 0xFFFFu;
  if (args.bf16_scales) {
    const uint32_t pattern = rounded_scale(maximum, args.ceil_scales ? 0xFFFFu : word >> 16, 0);
    if (writes) *reinterpret_cast<uint16_t*>(group_at) = (uint16_t)pattern;
    result.pattern = pattern;
    result.factor = normalizer_of_scale(pattern);
    const float value = args.ceil_scales ? scale_value(pattern) : float_of(maximum);
    result.reference = is_dead(pattern) ? 0.0f : mul(value, result.factor);
    return result;
  }
  const uint32_t spare = args.codebooks > 1;
  result.pattern = rounded_scale(largest_of_row(maximum), (1u << (16 + spare)) - 1, spare);
  result.factor = normalizer_of_scale(result.pattern);
  const float normalized = mul(scale_value(result.pattern), result.factor);
  const bool dead = is_dead(result.pattern);
  GroupScale scale = group_scale(mul(float_of(dead ? 0u : maximum), result.factor), dead ? 1.0f : normalized,
                                 div(255.0f, dead ? 1.0f : normalized), args.ceil_scales, word >> 16);
  if (writes) *group_at = (uint8_t)scale.code;
  if (lane.active && lane.index == 0)
    *reinterpret_cast<uint16_t*>(args.outgoing + place_of_scale(sections, lane)) = (uint16_t)result.pattern;
  result.reference = scale.reference;
  return result;
}

// The codebook with the least cost, the same in all lanes of the half-warp; noted in the scale.
__device__ __forceinline__ uint32_t choose_codebook(const gradwire_dynamiq& args, const Sections& sections,
                                                    const CodebookTables& tables, int slot, const Lane& lane,
                                                    const LaneScale& scale, const float* values,
                                                    const float* magnitude) {
  const int32_t points = tables.points[slot];
  const uint64_t* costs = tables.costs + tables.first_cost[slot];
  const float per_point = scale.reference > 0.0f ? div((float)points, scale.reference) : 0.0f;
  uint64_t positive = 0, negative = 0;
#pragma unroll
  for (int k = 0; k < 16; ++k) {
    const uint64_t cost = costs[smaller((int32_t)nearest_even(mul(magnitude[k], per_point)), points)];
    if (bits_of(values[k]) & SIGN)
      negative += cost;
    else
      positive += cost;
  }
  const uint64_t sum = positive + mirrored_costs(negative);
  uint32_t low = (uint32_t)sum, high = (uint32_t)(sum >> 32);
  if (sections.wide == 2) {  // no carries: sums of a group fit 16 bits
    low += __shfl_xor_sync(ALL, low, 1);
    high += __shfl_xor_sync(ALL, high, 1);
  }
  const float energy = mul(scale.reference, scale.reference);
  const uint32_t units[4] = {low & 0xFFFFu, low >> 16, high & 0xFFFFu, high >> 16};
  float cost[4];
#pragma unroll
  for (int book = 0; book < 4; ++book) cost[book] = mul((float)(int32_t)units[book], energy);
#pragma unroll
  for (int distance = LANES / 2; distance; distance /= 2) {
    if (distance < sections.wide) break;
#pragma unroll
    for (int book = 0; book < 4; ++book)
      cost[book] = add(cost[book], __shfl_xor_sync(ALL, cost[book], distance));
  }
  uint32_t best = 0;
  float least = cost[0];
#pragma unroll
  for (uint32_t book = 1; book < 4; ++book)
    if (cost[book] < least) {
      least = cost[book];
      best = book;
    }
  if (lane.active && lane.index == 0)
    *reinterpret_cast<uint16_t*>(args.outgoing + place_of_scale(sections, lane)) =
        (uint16_t)(scale.pattern | best >> 1 | best << 15);
  return best;
}

// σ: the worker's place in the order of the workers, by all lanes of the half-warp together.
__device__ __forceinline__ uint32_t worker_order(const gradwire_dynamiq& args, const Lane& lane,
                                                 uint32_t super_group) {
  const uint32_t base = order_base(super_group, args.key0, args.key1), own = order_hash(base, args.rank);
  uint32_t order = 0;
  for (uint32_t first = 0; first < args.workers; first += LANES) {
    const uint32_t worker = first + lane.index;
    const unsigned below = __ballot_sync(ALL, worker < args.workers && order_hash(base, worker) < own);
    order += __popc(below >> (lane.warp_lane & LANES) & 0xFFFFu);
  }
  return order;
}

// #{k < largest : t > T[k]·w} at 2 to 8 bits.
template <int WIDTH>
__device__ __forceinline__ int32_t count_levels(const EncodingTables& tables, int slot, int book, bool books,
                                                int copy, float t, float w, const Scalars& scalars,
                                                int32_t largest) {
  const float* thresholds = tables.thresholds[book] + (WIDTH == 8 ? 0 : threshold_base(slot));
  if constexpr (WIDTH <= 3) {
    int32_t level = 0;
#pragma unroll
    for (int r = 0; r < 1 << (WIDTH - 1); ++r) level += r < largest && t > mul(thresholds[r], w) ? 1 : 0;
    return level;
  } else {
    const int32_t level =
        nearest_level(approximate_log2(t), w, scalars.levels_per_octave, scalars.levels_per_step, largest);
    return exact_level(level, t, w,
                       WIDTH == 8 ? wide_threshold(tables, books, book, level, copy) : thresholds[level]);
  }
}

template <int WIDTH, int KIND>
__device__ __forceinline__ uint32_t code_of(const EncodingTables& tables, const Scalars& scalars, int slot,
                                            int book, bool books, int copy, float y, float w, uint32_t sign,
                                            int32_t largest) {
  if constexpr (WIDTH == 16 || KIND == GRADWIRE_UNIFORM) {
    return uniform_code(y, w, sign, largest, WIDTH);
  } else if constexpr (KIND == GRADWIRE_DISTINCT) {
    const float t = add(mul(y, sign ? scalars.negative_factor : 1.0f), 1.0f);
    const int32_t level = count_levels<WIDTH>(tables, slot, book, books, copy, t, w, scalars, largest);
    return signed_code(smaller(level, largest - (int32_t)(sign >> 31)), sign, WIDTH);
  } else {
    return signed_code(
        count_levels<WIDTH>(tables, slot, book, books, copy, add(y, 1.0f), w, scalars, largest), sign, WIDTH);
  }
}

template <int WIDTH, int KIND, class Shared>
__device__ __forceinline__ void encode(const gradwire_dynamiq& args, const Sections& sections,
                                       const Shared& tables, int slot, const Lane& lane, uint32_t super_group,
                                       const float* values, uint8_t* codes_at) {
  const LaneScale scale = encode_scale(args, sections, lane, super_group, values);
  const uint32_t kept = scale.reference > 0.0f ? (uint32_t)MAGNITUDE : 0u;
  float magnitude[16];
#pragma unroll
  for (int k = 0; k < 16; ++k) magnitude[k] = mul(float_of(bits_of(values[k]) & kept), scale.factor);
  uint32_t codebook = 0;
  bool books = false;
  if constexpr (sizeof(Shared) == sizeof(CodebookTables) && WIDTH != 16 && WIDTH != 1) {
    books = true;
    codebook = choose_codebook(args, sections, tables, slot, lane, scale, values, magnitude);
  }
  const int book = (int)(codebook >> 1);
  const uint32_t mirror = codebook << 31;
  const Scalars scalars = tables.scalars[slot][book];
  const int32_t largest = tables.largest[slot];
  const float inverse = scale.reference > 0.0f ? div(scalars.span, scale.reference) : 0.0f;
  const uint32_t stream = args.correlated ? 0 : args.rank + 1, workers = args.correlated ? args.workers : 1;
  const uint32_t within = args.correlated ? scale.within : 0;
  const float middle = mul((float)(int32_t)((workers << 16) - 1), 0.5f);
  const uint32_t order = args.correlated ? worker_order(args, lane, super_group) : 0;
  bool alive = true;
  if constexpr (WIDTH == 1) {
    alive = false;
#pragma unroll
    for (int k = 0; k < 16; ++k) alive |= mul(magnitude[k], inverse) > 0.0f;
    if (sections.wide == 2) alive |= __shfl_xor_sync(ALL, (uint32_t)alive, 1) != 0;
  }
  Codes<WIDTH> codes;
  codes.clear();
#pragma unroll
  for (int part = 0; part < 2; ++part) {
    const Words words = coordinate_words(super_group, stream, 2 * lane.index + part, args.key0, args.key1);
    const uint32_t pairs[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int k = 8 * part + i;
      const uint32_t half = i & 1 ? pairs[i / 2] >> 16 : pairs[i / 2] & 0xFFFFu;
      const uint32_t dither = correlated_dither(half, workers, order, within);
      const uint32_t sign = bits_of(values[k]) & SIGN;
      const float w = scaled_dither(dither, middle, scalars.unit, scalars.centre, sign),
                  y = mul(magnitude[k], inverse);
      uint32_t code;
      if constexpr (WIDTH == 1)
        code = sign_code(y, w, sign, alive);
      else
        code = code_of<WIDTH, KIND>(tables, scalars, slot, book, books, lane.warp_lane, y, w, sign ^ mirror,
                                    largest);
      codes.put(k, code);
    }
  }
  codes.store(codes_at, lane);
}

}  // namespace gradwire_cuda
