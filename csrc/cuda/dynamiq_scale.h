// The scales of a lane's coordinates, written to its part of a message; the codebook and the order of workers
// that they are encoded with.
#pragma once
#include "dynamiq_rows.h"

namespace gradwire_cuda {

// The larger magnitude of two numbers, a NaN if one is: as bits, whose order is that of `magnitude_bits`.
__device__ __forceinline__ uint32_t larger_magnitude(uint32_t a, uint32_t b) {
  return bits_of(ptx::max_nan(fabsf(float_of(a)), fabsf(float_of(b))));
}

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

// PAPER: a byte for each sixteen coordinates, rounded at random, and a bfloat16 for the super-group.
template <bool PAPER>
__device__ __forceinline__ LaneScale encode_scale(const gradwire_dynamiq& args, const Plan& plan,
                                                  const EncodingTables& tables, const Lane& lane,
                                                  const Row& row, const float* values) {
  const bool wide = !PAPER && args.group == 32;
  uint32_t maximum = magnitude_bits(values[0]);
#pragma unroll
  for (int k = 1; k < 16; ++k) maximum = larger_magnitude(maximum, bits_of(values[k]));
  if (wide) maximum = larger(maximum, __shfl_xor_sync(ALL, maximum, 1));
  const uint32_t word = private_word(row.private_base, lane.index >> (int)wide);
  const bool writes = !wide || !(lane.index & 1);
  uint8_t* group_scale_at = group_at<PAPER>(args, plan.outgoing, lane);
  LaneScale result;
  result.within = word & 0xFFFFu;
  if (!PAPER && args.bf16_scales) {
    const uint32_t pattern = rounded_scale(maximum, args.ceil_scales ? 0xFFFFu : word >> 16, 0);
    if (writes) *reinterpret_cast<uint16_t*>(group_scale_at) = (uint16_t)pattern;
    result.pattern = pattern;
    result.factor = normalizer_of_scale(pattern);
    const float value = args.ceil_scales ? scale_value(pattern) : float_of(maximum);
    result.reference = is_dead(pattern) ? 0.0f : mul(value, result.factor);
    return result;
  }
  const uint32_t spare = !PAPER && args.codebooks > 1;
  result.pattern = rounded_scale(largest_of_row(maximum), (1u << (16 + spare)) - 1, spare);
  result.factor = normalizer_of_scale(result.pattern);
  const float normalized = mul(scale_value(result.pattern), result.factor);
  const GroupScale scale =
      group_scale(mul(float_of(is_dead(result.pattern) ? 0u : maximum), result.factor), normalized,
                  tables.quotients[result.pattern & 127u], !PAPER && args.ceil_scales, word >> 16);
  if (writes) *group_scale_at = (uint8_t)scale.code;
  if (lane.index == 0) *reinterpret_cast<uint16_t*>(scale_at(plan.outgoing, lane)) = (uint16_t)result.pattern;
  result.reference = scale.reference;
  return result;
}

// Adding it to a number of at most 2^22 leaves the nearest integer, ties to even, in the last bits of the
// sum.
enum : uint32_t { WHOLE = 0x4B000000u };

// The codebook with the least cost for the coordinates times `scale.factor`, the same in all lanes of the
// half-warp; noted in the scale.
__device__ __forceinline__ uint32_t choose_codebook(const gradwire_dynamiq& args, const Plan& plan,
                                                    const CodebookTables& tables, int slot, const Lane& lane,
                                                    const LaneScale& scale, const float* scaled) {
  const bool wide = args.group == 32;
  const int32_t points = tables.points[slot];
  const uint64_t* costs = tables.costs + tables.first_cost[slot];
  const float per_point = scale.reference > 0.0f ? div((float)points, scale.reference) : 0.0f;
  uint32_t low = 0, high = 0;  // no carries: sums of a group fit 16 bits
#pragma unroll
  for (int k = 0; k < 16; ++k) {
    const float place = fminf(mul(fabsf(scaled[k]), per_point), (float)points);
    const uint64_t cost = costs[bits_of(add(place, float_of(WHOLE))) - WHOLE];
    // The halves of `mirrored_costs`, where x < 0.
    const uint32_t halves = bits_of(scaled[k]) & SIGN ? 0x1032u : 0x3210u;
    low += __byte_perm((uint32_t)cost, 0, halves);
    high += __byte_perm((uint32_t)(cost >> 32), 0, halves);
  }
  if (wide) {
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
    if (wide && distance == 1) break;
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
  if (lane.index == 0)
    *reinterpret_cast<uint16_t*>(scale_at(plan.outgoing, lane)) =
        (uint16_t)(scale.pattern | best >> 1 | best << 15);
  return best;
}

}  // namespace gradwire_cuda
