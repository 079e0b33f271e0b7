// Group-wise linear quantizers with a Hadamard smoother (SDP4Bit §3); codecs/linear/definition.py defines
// them, and the messages.
#pragma once
#include "gradwire/abi.h"
#include "gradwire/arithmetic.h"
#include "gradwire/coordinate_bits.h"
#include "gradwire/hadamard.h"

typedef struct {
  gradwire_call call;
  const void* x;        // `numel` of call.dtype
  uint8_t* message;     // at a multiple of 16 bytes
  int64_t numel;        //
  int64_t first;        // index of x[0] for random bits, a multiple of 32
  int32_t bits;         // 4 or 8
  int32_t group;        // a power of two from 32 to 2048
  int32_t scale_dtype;  // GRADWIRE_FLOAT32 or GRADWIRE_BFLOAT16
  int32_t hadamard;     // 0 or 1: transform every 32 coordinates
  int32_t stochastic;   // 0 or 1: round at random, with bits that depend on what follows
  uint32_t key0, key1, rank;
} gradwire_linear_encoding;

typedef struct {
  gradwire_call call;
  const uint8_t* messages;  // `count` of them, each at a multiple of 16 bytes
  int64_t stride;           // bytes from one to the next
  void* out;                // `numel` of call.dtype
  int64_t numel;            //
  int32_t count;            // at least 1
  int32_t bits, group, scale_dtype;
  int32_t hadamard;  // 0 or 1: transform every 32 coordinates of the result
} gradwire_linear_decoding;

GRADWIRE_API int gradwire_linear_quantize(const gradwire_linear_encoding* args);
// The values of one message, or these added to what is there.
GRADWIRE_API int gradwire_linear_dequantize(const gradwire_linear_decoding* args);
GRADWIRE_API int gradwire_linear_add(const gradwire_linear_decoding* args);
// The sum of the values of at least two messages.
GRADWIRE_API int gradwire_linear_reduce(const gradwire_linear_decoding* args);

GRADWIRE_NAMESPACE_BEGIN

enum { LARGEST_GROUP = 2048, FRACTION_BITS = 14 };

// ---- Messages: scales, then codes, both in multiples of 16 bytes
GRADWIRE_HD int64_t groups_of(int64_t numel, int32_t group) { return divide_up(numel, group); }
GRADWIRE_HD int32_t scale_size(int32_t scale_dtype) { return scale_dtype == GRADWIRE_FLOAT32 ? 4 : 2; }
// Scales with those that fill the section up.
GRADWIRE_HD int64_t scales_of(int64_t numel, int32_t group, int32_t scale_dtype) {
  const int32_t each = 16 / scale_size(scale_dtype);
  return divide_up(groups_of(numel, group), each) * each;
}
GRADWIRE_HD int64_t scale_bytes_of(int64_t numel, int32_t group, int32_t scale_dtype) {
  return scales_of(numel, group, scale_dtype) * scale_size(scale_dtype);
}

// ---- Scales and what follows from them
GRADWIRE_HD float peak_of(int32_t bits) { return bits == 4 ? 7.0f : 127.0f; }
GRADWIRE_HD float hadamard_norm() { return float_of(0x3e3504f3u); }  // 1/√32

// The stored scale of a group with the largest magnitude `maximum`, as the bits of a float32.
GRADWIRE_HD uint32_t scale_of(uint32_t maximum, bool hadamard, int32_t scale_dtype) {
  if (hadamard) maximum = bits_of(mul(float_of(maximum), hadamard_norm()));
  uint32_t scale = larger(maximum, 0x0d800000u);  // 2^-100
  if (scale_dtype == GRADWIRE_BFLOAT16) scale = (scale + 0xffffu) & 0xffff0000u;
  return scale < INFINITE ? scale : (uint32_t)NOT_A_NUMBER;
}
// What coordinates are multiplied by; NaN for a scale that is.
GRADWIRE_HD float factor_of(uint32_t scale, int32_t bits, bool hadamard, bool stochastic) {
  const float factor = div(peak_of(bits), float_of(scale));
  return mul(factor, mul(hadamard ? hadamard_norm() : 1.0f, stochastic ? (float)(1 << FRACTION_BITS) : 1.0f));
}
// What codes are multiplied by: the scale times 1/peak, with the smoother's factor in it.
GRADWIRE_HD float step_of(float scale, int32_t bits, bool hadamard) {
  const uint32_t inverse =
      bits == 4 ? (hadamard ? 0x3ccee116u : 0x3e124925u) : (hadamard ? 0x3ab671d7u : 0x3c010204u);
  return mul(scale, float_of(inverse));
}

// ---- Codes
// Added to a number below 2^22 it leaves the nearest integer in the lowest bits, ties to even. Codes come out
// raised by `raise`, a power of two or 0.
GRADWIRE_HD float rounder_of(bool stochastic, int32_t raise) {
  return 12582912.0f + (float)(stochastic ? raise << FRACTION_BITS : raise);  // 1.5·2^23, exactly more
}

// The code of a coordinate times its factor, in the lowest byte.
GRADWIRE_HD uint32_t nearest_code(float scaled, float rounder) { return bits_of(add(scaled, rounder)); }
// In bits 16 to 23 is the code; `dither` is 16 random bits.
GRADWIRE_HD uint32_t stochastic_code(float scaled, float rounder, uint32_t dither) {
  return (nearest_code(scaled, rounder) << (16 - FRACTION_BITS)) + dither;
}
GRADWIRE_HD Stream stream_of(const gradwire_linear_encoding& args) {
  return Stream{{args.key0, args.key1}, args.rank};
}

// ---- Arguments
//
// Items are what a CPU treats at a time: whole groups.
enum { LINEAR_TILE = 2048 };

GRADWIRE_HD int check_format(int32_t bits, int32_t group, int32_t scale_dtype, int32_t hadamard) {
  const bool whole = group >= HADAMARD && group <= LARGEST_GROUP && (group & (group - 1)) == 0;
  const bool known =
      (bits == 4 || bits == 8) && (scale_dtype == GRADWIRE_FLOAT32 || scale_dtype == GRADWIRE_BFLOAT16);
  return whole && known && (hadamard == 0 || hadamard == 1) ? GRADWIRE_OK : GRADWIRE_BAD_ARGUMENT;
}
GRADWIRE_HD int64_t items_linear_quantize(const gradwire_linear_encoding& args) {
  return divide_up(args.numel, LINEAR_TILE);
}
GRADWIRE_HD int check_linear_quantize(const gradwire_linear_encoding& args) {
  if (const int error = check_format(args.bits, args.group, args.scale_dtype, args.hadamard)) return error;
  const int64_t last = ((int64_t)COUNTER << 32) - LARGEST_GROUP;
  const bool there = args.numel == 0 || (args.x && args.message);
  const bool counted = args.numel >= 0 && args.first >= 0 && args.first % HADAMARD == 0 &&
                       (!args.stochastic || (args.first <= last && args.numel <= last - args.first));
  if (!there || !counted) return GRADWIRE_BAD_ARGUMENT;
  return (uintptr_t)args.message % 16 ? GRADWIRE_MISALIGNED : GRADWIRE_OK;
}
GRADWIRE_HD int64_t items_linear_reduce(const gradwire_linear_decoding& args) {
  return divide_up(args.numel, LINEAR_TILE);
}
GRADWIRE_HD int check_linear_reduce(const gradwire_linear_decoding& args) {
  if (const int error = check_format(args.bits, args.group, args.scale_dtype, args.hadamard)) return error;
  const bool there = args.numel == 0 || (args.messages && args.out);
  if (!there || args.numel < 0 || args.count < 1) return GRADWIRE_BAD_ARGUMENT;
  const bool aligned = (uintptr_t)args.messages % 16 == 0 && (args.numel == 0 || args.stride % 16 == 0);
  return aligned ? GRADWIRE_OK : GRADWIRE_MISALIGNED;
}
GRADWIRE_HD int64_t items_linear_dequantize(const gradwire_linear_decoding& args) {
  return items_linear_reduce(args);
}
GRADWIRE_HD int64_t items_linear_add(const gradwire_linear_decoding& args) {
  return items_linear_reduce(args);
}
GRADWIRE_HD int check_linear_dequantize(const gradwire_linear_decoding& args) {
  return check_linear_reduce(args);
}
GRADWIRE_HD int check_linear_add(const gradwire_linear_decoding& args) { return check_linear_reduce(args); }

GRADWIRE_NAMESPACE_END
