// DynamiQ: super-groups to codes and back (DynamiQ §3.3, §3.4); codecs/dynamiq/definition.py defines it.
//
// One operation serves every hop. What is summed is what is given: coordinates of the bucket (`x`, gathered
// by `order`, less the mean) or partial sums (`x`, in the order of the message), and an `incoming` message.
// Where it goes is what is given, too: an `outgoing` message, or values (`out`), as sums or as the means of
// the result. Given both, the values are those that the message stands for.
//
// A message holds the super-groups' codes by width, the widest first, then their group scales, then the
// scales of super-groups. Code k of a super-group begins at bit k·width.
//
// How many super-groups have each width is read where the kernel runs, so that nobody waits for it. Counts
// that are not those of the chunk, or need more bytes than its messages have, give NaN.
//
// A call may be for several chunks whose rows and messages lie one after another: their messages have been
// received together, or leave together.
#pragma once
#include "gradwire/abi.h"
#include "gradwire/random.h"
#include "gradwire/statistics.h"

enum { GRADWIRE_DYNAMIQ_WIDTHS = 8 };  // 16, 8, 6, 5, 4, 3, 2, 1 bits: the order of a message

enum { GRADWIRE_SIGN = 0, GRADWIRE_UNIFORM = 1, GRADWIRE_GEOMETRIC = 2, GRADWIRE_DISTINCT = 3 };  // values

// The quantization values of one width; of each of two ε where there are codebooks.
typedef struct {
  int32_t kind;        // GRADWIRE_SIGN, …
  int32_t largest;     // the largest level of positive coordinates
  int32_t points;      // steps at which the costs of codebooks are tabulated; 0 without codebooks
  int32_t first_cost;  // where they begin in `costs`
  float span[2], centre[2], unit[2], negative_factor[2];
  float levels_per_octave[2],
      levels_per_step[2];  // 1/log2(a) and 1/(a - 1): estimates, their last bits decide nothing
  float thresholds[2][128];
  float decoded[2][256];  // by code; at 16 bits a level is decoded by a division
} gradwire_values;

// All of this is host memory.
typedef struct {
  gradwire_call call;
  const gradwire_values* values;  // one for each width
  const uint64_t* costs;          // see codecs/dynamiq/codebooks.py
  int32_t codebooks;              // 1 or 4
  uint8_t* tables;                // GRADWIRE_DYNAMIQ_TABLE_BYTES, at a multiple of 16 bytes
} gradwire_dynamiq_values;

enum { GRADWIRE_DYNAMIQ_TABLE_BYTES = 45808 };

// One of several chunks. One without rows has no bytes.
typedef struct {
  int64_t rows;   // its super-groups
  int64_t bytes;  // of its message, a multiple of 16
} gradwire_dynamiq_chunk;

typedef struct {
  gradwire_call call;     // dtype: of `x` if it is gathered, of `out` if it is the result
  const void* x;          // the bucket, or the sums of this chunk (float32), or null
  void* out;              // means of the bucket, or sums, or null
  int64_t numel;          // coordinates of the bucket
  int64_t rows;           // super-groups of the chunk, or of all chunks
  const int32_t* order;   // they, in the order of the message
  const float* mean;      // theirs, in the same order
  const int32_t* counts;  // 17: how many of them have each width, as `gradwire_dynamiq_plan` says;
                          // of several chunks 17 each
  const gradwire_dynamiq_chunk* chunks;  // in host memory: several chunks; null: one
  const uint8_t* incoming;               // at multiples of 16 bytes
  uint8_t* outgoing;                     //
  int64_t incoming_bytes;                //
  int64_t outgoing_bytes;                // what codes and scales leave is zeroed
  const gradwire_values* values;         // one for each width
  const uint64_t* costs;                 // see codecs/dynamiq/codebooks.py
  const uint8_t* tables;                 // both, by `gradwire_dynamiq_tables`; kernels for CPUs do without
  int32_t gather;                        // whether `x` is the bucket
  int32_t scatter;                       // whether `out` is the result: out = sum·inverse + mean
  float inverse;                         // 1 / workers
  int32_t group;                         // coordinates that share a scale: 16 or 32
  int32_t bf16_scales;  // one bfloat16 a group instead of a byte a group and a bfloat16 a super-group
  int32_t ceil_scales;  // round group scales up instead of at random
  int32_t correlated;   // rounding among the workers
  int32_t codebooks;    // 1 or 4
  int32_t kind;         // of the values of 2 to 8 bits: GRADWIRE_UNIFORM, …
  uint32_t key0, key1;  // of the round's randomness
  uint32_t rank, workers;
  int32_t chunk_count;        // how many `chunks` there are
  const uint32_t* key_place;  // where on the device the two words of the key are; null: they are key0, key1
} gradwire_dynamiq;

GRADWIRE_API int gradwire_dynamiq_hop(const gradwire_dynamiq* args);
GRADWIRE_API int gradwire_dynamiq_tables(const gradwire_dynamiq_values* args);

GRADWIRE_NAMESPACE_BEGIN

enum : int { WIDTH_SLOTS = GRADWIRE_DYNAMIQ_WIDTHS, GROUPS = SUPER_GROUP / 16 };
enum : int { COUNTED = 17 };  // numbers of a chunk's `counts`

GRADWIRE_HD int width_of_slot(int slot) {
  return slot == 0 ? 16 : slot == 1 ? 8 : slot == 2 ? 6 : slot == 3 ? 5 : 8 - slot;
}

GRADWIRE_HD Key key_of(const gradwire_dynamiq& args) { return key_of(args.key_place, args.key0, args.key1); }
GRADWIRE_HD int64_t items_dynamiq_hop(const gradwire_dynamiq& args) { return args.rows; }
// Bytes of a super-group's group scales, and of its own scale.
GRADWIRE_HD int64_t bytes_of_groups(const gradwire_dynamiq& args) {
  return (args.group == 32 ? SUPER_GROUP / 32 : SUPER_GROUP / 16) * (args.bf16_scales ? 2 : 1);
}
GRADWIRE_HD int64_t bytes_of_scale(const gradwire_dynamiq& args) { return args.bf16_scales ? 0 : 2; }

// The arguments for `count` of several chunks from number `first` on.
GRADWIRE_HD gradwire_dynamiq chunks_of(const gradwire_dynamiq& args, int32_t first, int32_t count) {
  gradwire_dynamiq some = args;
  int64_t rows_before = 0, bytes_before = 0, bytes = 0;
  for (int32_t i = 0; i < first; ++i) {
    rows_before += args.chunks[i].rows;
    bytes_before += args.chunks[i].bytes;
  }
  some.rows = 0;
  for (int32_t i = first; i < first + count; ++i) {
    some.rows += args.chunks[i].rows;
    bytes += args.chunks[i].bytes;
  }
  some.order += rows_before;
  some.mean += rows_before;
  some.counts += (int64_t)COUNTED * first;
  if (args.x && !args.gather) some.x = (const float*)args.x + rows_before * SUPER_GROUP;
  if (args.out && !args.scatter) some.out = (float*)args.out + rows_before * SUPER_GROUP;
  if (args.incoming) some.incoming += bytes_before, some.incoming_bytes = bytes;
  if (args.outgoing) some.outgoing += bytes_before, some.outgoing_bytes = bytes;
  some.chunks = count > 1 ? args.chunks + first : nullptr;
  some.chunk_count = count > 1 ? count : 0;
  return some;
}

// Where a chunk's messages hold the super-groups of each width: those of slot s are the rows from `rows[s]`
// on up to `rows[s + 1]`, their codes begin at byte `codes[s]`.
struct Layout {
  int64_t rows[WIDTH_SLOTS + 1], codes[WIDTH_SLOTS + 1], end_of_groups, used_bytes;
  bool possible;  // if not, there are no rows
};

// Whether a chunk with these counts in all, whose messages take `used_bytes`, is the one that is asked for.
GRADWIRE_HD bool is_possible(const gradwire_dynamiq& args, int64_t rows, int64_t used_bytes) {
  return rows == args.rows && (!args.incoming || used_bytes <= args.incoming_bytes) &&
         (!args.outgoing || used_bytes <= args.outgoing_bytes);
}
GRADWIRE_HD Layout layout_of(const gradwire_dynamiq& args) {
  Layout layout;
  bool possible = true;
  layout.rows[0] = layout.codes[0] = 0;
  for (int slot = 0; slot < WIDTH_SLOTS; ++slot) {
    const int64_t count = args.counts[width_of_slot(slot)];
    if (count < 0) possible = false;
    layout.rows[slot + 1] = layout.rows[slot] + count;
    layout.codes[slot + 1] = layout.codes[slot] + count * 32 * width_of_slot(slot);
  }
  layout.end_of_groups = layout.codes[WIDTH_SLOTS] + args.rows * bytes_of_groups(args);
  layout.used_bytes = layout.end_of_groups + args.rows * bytes_of_scale(args);
  layout.possible = possible && is_possible(args, layout.rows[WIDTH_SLOTS], layout.used_bytes);
  if (layout.possible) return layout;
  for (int slot = 0; slot <= WIDTH_SLOTS; ++slot) layout.rows[slot] = 0;
  layout.used_bytes = 0;
  return layout;
}
// What a message holds behind its codes and scales.
GRADWIRE_HD uint8_t rest_of_message(bool possible) { return possible ? 0 : 0xFF; }  // NaN

GRADWIRE_HD int64_t items_dynamiq_tables(const gradwire_dynamiq_values&) { return 0; }
GRADWIRE_HD int check_dynamiq_tables(const gradwire_dynamiq_values& args) {
  const bool there = args.values && args.costs && args.tables;
  if (!there || (args.codebooks != 1 && args.codebooks != 4)) return GRADWIRE_BAD_ARGUMENT;
  return ((uintptr_t)args.tables & 15) ? GRADWIRE_MISALIGNED : GRADWIRE_OK;
}
GRADWIRE_HD int check_chunks(const gradwire_dynamiq& args) {
  if (!args.chunks) return args.chunk_count == 0 ? GRADWIRE_OK : GRADWIRE_BAD_ARGUMENT;
  if (args.chunk_count < 1) return GRADWIRE_BAD_ARGUMENT;
  int64_t rows = 0, bytes = 0;
  for (int32_t i = 0; i < args.chunk_count; ++i) {
    const gradwire_dynamiq_chunk& chunk = args.chunks[i];
    if (chunk.rows < 0 || chunk.bytes < 0 || (chunk.rows == 0 && chunk.bytes > 0))
      return GRADWIRE_BAD_ARGUMENT;
    if (chunk.bytes % 16) return GRADWIRE_MISALIGNED;
    rows += chunk.rows;
    bytes += chunk.bytes;
  }
  const bool incoming = !args.incoming || args.incoming_bytes == bytes,
             outgoing = !args.outgoing || args.outgoing_bytes == bytes;
  return rows == args.rows && incoming && outgoing ? GRADWIRE_OK : GRADWIRE_BAD_ARGUMENT;
}
GRADWIRE_HD int check_dynamiq_hop(const gradwire_dynamiq& args) {
  const bool encodes = args.outgoing && args.x, decodes = args.out && !args.outgoing;
  if (!encodes && !decodes) return GRADWIRE_BAD_ARGUMENT;
  if (!args.x && !args.incoming) return GRADWIRE_BAD_ARGUMENT;
  if (!args.order || !args.counts || !args.mean || !args.values || (args.codebooks > 1 && !args.costs))
    return GRADWIRE_BAD_ARGUMENT;
  if (args.rows < 0 || args.rows > INT32_MAX || args.incoming_bytes < 0 || args.outgoing_bytes < 0)
    return GRADWIRE_BAD_ARGUMENT;
  if ((args.group != 16 && args.group != 32) || (args.codebooks != 1 && args.codebooks != 4))
    return GRADWIRE_BAD_ARGUMENT;
  if (args.workers < 1 || args.workers > 256 || args.rank >= args.workers) return GRADWIRE_BAD_ARGUMENT;
  if (((uintptr_t)args.incoming | (uintptr_t)args.outgoing) & 15) return GRADWIRE_MISALIGNED;
  return check_chunks(args);
}

// ---- Randomness: codecs/dynamiq/definition.py

// Sixteen bits for each of the coordinates 8·part … 8·part + 7; stream 0 is shared by all workers.
GRADWIRE_HD Words coordinate_words(uint32_t super_group, uint32_t stream, uint32_t part, Key key) {
  return philox(super_group, stream, part, 0, key);
}
// A group's random word, private to the worker: the low half is its key within an interval, the high half
// rounds its scale.
GRADWIRE_HD uint32_t private_base(uint32_t super_group, uint32_t rank, Key key) {
  return mix(super_group ^ key.second) + key.first + (rank + 1) * 0x85EBCA6Bu;
}
GRADWIRE_HD uint32_t private_word(uint32_t base, uint32_t group) { return mix(base + group * 0xC2B2AE35u); }
// The workers are ordered by these hashes; ties by worker.
GRADWIRE_HD uint32_t order_base(uint32_t super_group, Key key) {
  return mix(super_group ^ key.first) + key.second;
}
GRADWIRE_HD uint32_t order_hash(uint32_t base, uint32_t worker) {
  return (mix(base + worker * 0x27D4EB2Fu) & ~0xFFu) | worker;
}
// V in [0, N), N = 2^16·workers: (h·n + σ·2^16) mod N, and the private key within the interval. With one
// worker, σ = 0 and no key it is h: independent rounding.
GRADWIRE_HD uint32_t correlated_dither(uint32_t half, uint32_t workers, uint32_t order, uint32_t within) {
  const uint32_t interval = half * workers + (order << 16), wrapped = interval - (workers << 16);
  return smaller(interval, wrapped) ^ within;  // what wraps below zero is the larger one
}
// w = centre ± (V + ½ − N/2)·unit; minus where x < 0.
GRADWIRE_HD float scaled_dither(uint32_t dither, float middle, float unit, float centre, uint32_t sign) {
  const float shift = mul(sub((float)(int32_t)dither, middle), unit);
  return add(float_of(bits_of(shift) ^ sign), centre);
}

// ---- Scales: codecs/dynamiq/format.py

enum : uint32_t {
  SMALLEST_SCALE = (uint32_t)SMALLEST_EXPONENT << 23,
  LARGEST_BF16 = 0x7F7F,
  NAN_BF16 = 0x7FC0
};

// The smallest bfloat16 >= a maximum (given as its bits) whose last `spare` bits are 0, see `rounded_scale`.
GRADWIRE_HD uint32_t rounded_scale(uint32_t maximum, uint32_t addend, uint32_t spare) {
  const uint32_t pattern =
      smaller((maximum + addend) >> (16 + spare) << spare, LARGEST_BF16 >> spare << spare);
  return maximum >= INFINITE ? (uint32_t)NAN_BF16 : maximum < SMALLEST_SCALE ? 0u : pattern;
}
GRADWIRE_HD float scale_value(uint32_t pattern) { return float_of(pattern << 16); }
GRADWIRE_HD bool is_dead(uint32_t pattern) { return pattern == 0 || pattern == NAN_BF16; }
GRADWIRE_HD float normalizer_of_scale(uint32_t pattern) { return normalizer_of(exponent_of(pattern << 16)); }

struct GroupScale {
  uint32_t code;
  float reference;  // what its coordinates are normalised by; 0 if the group is sent as zeros
};
// The scale of a group with the normalised maximum `maximum` in a super-group with the normalised scale
// `scale`.
GRADWIRE_HD GroupScale group_scale(float maximum, float scale, float quotient_unit, bool ceil,
                                   uint32_t noise) {
  const bool silent = maximum < 1.4901161193847656e-08f;  // 2^-26
  const float quotient = mul(maximum, quotient_unit);
  GroupScale result;
  if (ceil) {
    const float rounded = ceil_of(quotient) < 255.0f ? ceil_of(quotient) : 255.0f;
    result.code = (uint32_t)(int32_t)rounded;
    result.reference = mul(rounded, div(scale, 255.0f));
  } else {
    const float floor = floor_of(quotient);
    const float uniform = mul(add((float)(int32_t)noise, 0.5f), 1.0f / 65536);
    result.code = smaller((uint32_t)(int32_t)floor + (uniform < sub(quotient, floor) ? 1u : 0u), 255u);
    result.reference = maximum;
  }
  if (silent) return GroupScale{0, 0.0f};
  return result;
}

// ---- Codes: codecs/dynamiq/values.py

GRADWIRE_HD uint32_t signed_code(int32_t level, uint32_t sign, int width) {
  return (uint32_t)level | (level ? sign >> (32 - width) : 0u);
}
// The level is #{k < largest : t > T[k]·w}, T[k] = a^k. With log_a(t) - log_a(w) off by less than a half, one
// threshold is left to be compared: the nearest one. log_a(w) is nearly (w - 1)/(a - 1), in [0, 1]; the
// estimate is above -1, which the conversion to an integer makes 0.
GRADWIRE_HD int32_t nearest_level(float log2_t, float w, float levels_per_octave, float levels_per_step,
                                  int32_t largest) {
  const float below = about(w, -levels_per_step, levels_per_step + 0.5f);
  return smaller((int32_t)about(log2_t, levels_per_octave, below), largest - 1);
}
GRADWIRE_HD int32_t exact_level(int32_t level, float t, float w, float threshold) {
  return level + (t > mul(threshold, w) ? 1 : 0);
}
GRADWIRE_HD uint32_t uniform_code(float y, float w, uint32_t sign, int32_t largest, int width) {
  const float limited = y < (float)largest ? y : (float)largest, floor = floor_of(limited);
  return signed_code((int32_t)floor + (sub(limited, floor) > w ? 1 : 0), sign, width);
}
// 1 bit: the sign is kept iff y > w; groups of zeros have code 0.
GRADWIRE_HD uint32_t sign_code(float y, float w, uint32_t sign, bool alive) {
  const bool kept = y > w;
  return alive && (sign != 0) == kept ? 1u : 0u;
}

// The costs of negative coordinates are those of positive ones with neighbours swapped: the mirrored
// codebooks.
GRADWIRE_HD uint64_t mirrored_costs(uint64_t costs) {
  return (costs & 0x0000FFFF0000FFFFull) << 16 | (costs >> 16 & 0x0000FFFF0000FFFFull);
}

// ---- Decoding

GRADWIRE_HD float decoded_level(uint32_t code) {  // 16 bits
  const float level = div((float)(int32_t)(code & 0x7FFFu), 32767.0f);
  return float_of(bits_of(level) | (code & 0x8000u) << 16);
}
// One group's step: r·(scale/255), negative for a mirrored codebook; a marked pattern has the larger ε.
GRADWIRE_HD float group_step(uint32_t pattern, uint32_t code) {
  return mul(div(scale_value(pattern), 255.0f), (float)(int32_t)code);
}

GRADWIRE_NAMESPACE_END
