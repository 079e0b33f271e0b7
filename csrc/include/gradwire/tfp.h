// Truncation of floating-point numbers (AQGB §4.4); codecs/tfp defines it: the formats (definition.py) and
// the messages (coder.py).
#pragma once
#include "gradwire/coordinate_bits.h"
#include "gradwire/groups.h"

typedef struct {
  gradwire_call call;
  const void* values_in;      // to encode: numel of call.dtype, the bucket's coordinates from `first` on
  float* values_out;          // to decode, or to add to: numel
  const uint8_t* message_in;  // of bits_in bits; to encode: what is added to float32 values, or none
  const uint8_t* plane_in;    // the bits that follow them, or none
  uint8_t* message_out;       // of `bits` bits; or the plane from bits_in on
  int64_t numel, first;       // first is a multiple of 8
  int32_t bits;               // of a code, 2 to 32
  int32_t bits_in;            // at most `bits`
  int32_t base;               // TFP_PLAIN, TFP_SCALED or TFP_EMBEDDED
  int32_t stochastic;         // otherwise towards zero
  uint32_t key0, key1, rank;
  const uint32_t* key_place;  // where on the device the two words of the key are; null: they are key0, key1
} gradwire_tfp;

enum { TFP_PLAIN = 0, TFP_SCALED = 1, TFP_EMBEDDED = 2 };

GRADWIRE_API int gradwire_tfp_encode(const gradwire_tfp* args);
GRADWIRE_API int gradwire_tfp_plane(const gradwire_tfp* args);   // what encoding writes beyond bits_in bits
GRADWIRE_API int gradwire_tfp_refine(const gradwire_tfp* args);  // a message and its plane to a message
GRADWIRE_API int gradwire_tfp_decode(const gradwire_tfp* args);
GRADWIRE_API int gradwire_tfp_add(const gradwire_tfp* args);

GRADWIRE_NAMESPACE_BEGIN

enum { BLOCK = 32, SCALE_BYTES = 2, MANTISSA = 23, WIDEST_SCALED = 9 };

// How positions are found and decoded: single precision from 10 bits on, half precision from 7 on, with
// infinities; E4M3 and E2M1 without; fixed point.
enum Kind { SINGLE, HALF, TINY, EMBEDDED };

GRADWIRE_HD Kind kind_of(const gradwire_tfp& args) {
  return args.base == TFP_EMBEDDED ? EMBEDDED : args.bits >= 10 ? SINGLE : args.bits >= 7 ? HALF : TINY;
}
GRADWIRE_HD bool has_scales(const gradwire_tfp& args) { return args.base != TFP_PLAIN; }

GRADWIRE_HD Stream stream_of(const gradwire_tfp& args) {
  return Stream{key_of(args.key_place, args.key0, args.key1), args.rank};
}

// Items are rows of 512 coordinates.
GRADWIRE_HD int64_t items_tfp_encode(const gradwire_tfp& args) { return divide_up(args.numel, ROW); }
GRADWIRE_HD int64_t items_tfp_plane(const gradwire_tfp& args) { return divide_up(args.numel, ROW); }
GRADWIRE_HD int64_t items_tfp_refine(const gradwire_tfp& args) { return divide_up(args.numel, ROW); }
GRADWIRE_HD int64_t items_tfp_decode(const gradwire_tfp& args) { return divide_up(args.numel, ROW); }
GRADWIRE_HD int64_t items_tfp_add(const gradwire_tfp& args) { return divide_up(args.numel, ROW); }

GRADWIRE_HD int check_tfp(const gradwire_tfp& args, bool there) {
  const bool numbers = args.numel >= 0 && args.first >= 0 && args.first % COUNTER == 0 && args.bits_in >= 2 &&
                       args.bits_in <= args.bits && args.bits <= 32 && args.base >= TFP_PLAIN &&
                       args.base <= TFP_EMBEDDED && !(args.stochastic && args.base == TFP_EMBEDDED) &&
                       !(args.base == TFP_SCALED && args.bits > WIDEST_SCALED);
  return numbers && (there || args.numel == 0) ? GRADWIRE_OK : GRADWIRE_BAD_ARGUMENT;
}
GRADWIRE_HD int check_tfp_encode(const gradwire_tfp& args) {
  const bool addable = !args.message_in || (args.call.dtype == GRADWIRE_FLOAT32 && args.bits_in == args.bits);
  return check_tfp(args, args.values_in && args.message_out && addable);
}
GRADWIRE_HD int check_tfp_plane(const gradwire_tfp& args) {
  return check_tfp(args, args.values_in && !args.message_in && args.message_out && args.bits_in < args.bits &&
                             !args.stochastic);
}
GRADWIRE_HD int check_tfp_refine(const gradwire_tfp& args) {
  return check_tfp(args, args.message_in && args.plane_in && args.message_out && args.bits_in < args.bits);
}
GRADWIRE_HD int check_tfp_decode(const gradwire_tfp& args) {
  return check_tfp(args,
                   args.message_in && args.values_out && (args.plane_in != 0) == (args.bits_in < args.bits));
}
GRADWIRE_HD int check_tfp_add(const gradwire_tfp& args) { return check_tfp_decode(args); }

// A format. Exponent and mantissa as one integer are a position; its last bits are dropped. Positions are
// counted from `offset` on.
struct Format {
  int32_t bits, dropped, bias;
  int32_t offset;          // bits of the smallest normal number where it is not that of single precision
  int32_t last;            // position of the largest finite magnitude
  float linear;            // positions in 1, below the smallest normal number
  float maximum, limit;    // that scales bring blocks to, and the largest scale, which does not overflow
  uint32_t infinity, nan;  // codes, without sign
  uint32_t sign;           // bit of it
};

GRADWIRE_HD Format format_of(Kind kind, int32_t bits) {
  Format format;
  const int32_t exponent = kind == SINGLE ? 8 : kind == HALF ? 5 : bits >= 5 ? 4 : 2;
  const int32_t mantissa = bits - 1 - exponent;  // -1 where the exponent is cut, too
  format.bits = bits;
  format.sign = 1u << (bits - 1);
  format.bias = (1 << (exponent - 1)) - 1;
  if (kind == EMBEDDED) {
    format.dropped = 32 - bits;
    format.maximum = 1.0f;
    format.infinity = format.nan = 0;
    format.last = format.offset = 0;
    format.linear = 0.0f;
  } else {
    const bool infinite = kind == SINGLE || kind == HALF;
    const int32_t normal = (128 - format.bias) << MANTISSA;
    format.dropped = MANTISSA - mantissa;
    format.infinity = infinite ? ((1u << exponent) - 1) << larger(mantissa, 0) : format.sign;
    format.nan = infinite ? format.infinity | 1u << larger(mantissa - 1, 0) : format.sign;
    format.offset = kind == SINGLE ? 0 : normal;
    format.last = (int32_t)((format.infinity - 1) << format.dropped);
    format.linear = power_of_two(127 + MANTISSA - 1 + format.bias);
    // The largest magnitude of every format that has scales is a normal number.
    format.maximum = float_of((uint32_t)(format.last + normal - (1 << MANTISSA)));
    format.last += format.offset;
  }
  format.limit = div(float_of(INFINITE - 1), format.maximum);
  return format;
}

// What a block's coordinates are divided by, so that it can be done without dividing: divide_by_scale.
struct Divisor {
  float factor, scale, reciprocal;
};

// A block's scale from its largest magnitude, as the bits of a bfloat16. NaN if that is not finite.
GRADWIRE_HD uint32_t block_scale(uint32_t largest, const Format& format, bool round_up) {
  const uint32_t quotient = bits_of(div(float_of(largest), format.maximum));
  const uint32_t scale = (round_up ? smaller(quotient + 0xffffu, bits_of(format.limit)) : quotient) >> 16;
  return largest < INFINITE ? scale : NOT_A_NUMBER >> 16;
}

// The scale times a power of two, `factor`, that keeps its reciprocal and what is left of dividing by it
// within range: 1 for scales from 2^-64 to 2^64.
GRADWIRE_HD Divisor divisor_of(uint32_t scale) {
  const bool small = scale<(63u << 7), large = scale>(191u << 7);
  Divisor divisor;
  divisor.factor = small ? power_of_two(127 + 64) : large ? power_of_two(127 - 64) : 1.0f;
  divisor.scale = scale ? mul(float_of(scale << 16), divisor.factor) : divisor.factor;
  divisor.reciprocal = div(1.0f, divisor.scale);
  return divisor;
}

// x / scale of a divisor, x times its factor, rounded once. By Markstein's theorem, since the scale's 8 bits
// are not all ones of 24; where `x` is so small that the remainder is not exact, the quotient is below every
// position. (Checked for all mantissas.)
GRADWIRE_HD float divide_by_scale(float x, float scale, float reciprocal) {
#if defined(GRADWIRE_DEVICE_CODE)
  const float quotient = __fmul_rn(x, reciprocal);
  return __fmaf_rn(__fmaf_rn(-quotient, scale, x), reciprocal, quotient);
#elif defined(__FMA__)
  const float quotient = x * reciprocal;
  return __builtin_fmaf(__builtin_fmaf(-quotient, scale, x), reciprocal, quotient);
#else
  (void)reciprocal;
  return div(x, scale);
#endif
}

// The random bits that are added to a position before its last bits are dropped.
GRADWIRE_HD uint32_t noise_of(uint32_t dither, int32_t dropped) {
  return word_of_dither(dither) >> (32 - dropped);
}

// The position of a finite magnitude y. All below 2^31 and signed: some instruction sets have no unsigned
// comparisons.
template <Kind KIND>
GRADWIRE_HD int32_t position_of(float y, const Format& format) {
  const int32_t pattern = (int32_t)bits_of(y);
  if (KIND == SINGLE) return pattern;
  // From the smallest normal number on, the pattern and an exponent more. Below it that is less than the sum
  // of both, whose mantissa counts multiples of the smallest normal number's last bit, truncated.
#if defined(GRADWIRE_DEVICE_CODE)
  const int32_t sum = (int32_t)bits_of(__fadd_rz(y, float_of((uint32_t)format.offset)));
#else
  const float below = float_of((uint32_t)smaller(pattern, format.offset));
  const int32_t sum = (int32_t)mul(below, format.linear) + format.offset;
#endif
  return larger(sum, (int32_t)((uint32_t)pattern + (1u << MANTISSA)));
}

// The code of a finite coordinate with this pattern, y being its magnitude or that in units of the scale.
// `noise` is below 2^dropped.
template <Kind KIND>
GRADWIRE_HD uint32_t truncated(uint32_t pattern, float y, const Format& format, uint32_t noise) {
  const uint32_t sign = pattern >> (32 - format.bits) & format.sign;
  if (KIND == EMBEDDED) {
    const float position = mul(y, 2147483648.0f), last = 2147483520.0f;
    return (uint32_t)(int32_t)(position < last ? position : last) >> format.dropped | sign;
  }
  const int32_t position = smaller(position_of<KIND>(y, format), format.last);
  const uint32_t code = ((uint32_t)position + noise - (uint32_t)format.offset) >> format.dropped;
  return KIND == TINY && code == 0 ? 0u : code | sign;
}

// The code of a coordinate with this pattern, `code` if it is finite.
template <Kind KIND>
GRADWIRE_HD uint32_t if_finite(uint32_t code, uint32_t pattern, const Format& format) {
  const int32_t magnitude = (int32_t)(pattern & MAGNITUDE), infinite = (int32_t)INFINITE;
  if (KIND == TINY) return magnitude < infinite ? code : format.nan;
  const uint32_t special = magnitude == infinite ? format.infinity : format.nan;
  return magnitude < infinite ? code : special | (pattern >> (32 - format.bits) & format.sign);
}

// The value of a code, in units of the scale where there is one.
template <Kind KIND>
GRADWIRE_HD float restored(uint32_t code, const Format& format) {
  if (KIND == SINGLE) return float_of(code << (32 - format.bits));
  const uint32_t magnitude = code & (format.sign - 1), sign = (code & format.sign) << (32 - format.bits);
  if (KIND == EMBEDDED) {
    const float value = mul((float)(int32_t)magnitude, power_of_two(128 - format.bits));
    return float_of(bits_of(value) | sign);
  }
  // Below the smallest normal number the mantissa has no leading one: with a larger exponent it gets one, and
  // loses it again.
  const uint32_t position = magnitude << format.dropped, rebias = (uint32_t)(127 - format.bias) << MANTISSA;
  const float below =
      sub(float_of(position + rebias + (1u << MANTISSA)), float_of(rebias + (1u << MANTISSA)));
  uint32_t value = (position >> MANTISSA ? position + rebias : bits_of(below)) | sign;
  if (KIND == HALF) {
    if (magnitude >= format.infinity) value = (magnitude > format.infinity ? NOT_A_NUMBER : INFINITE) | sign;
  } else {
    if (code == format.sign) value = NOT_A_NUMBER;
  }
  return float_of(value);
}

GRADWIRE_NAMESPACE_END
