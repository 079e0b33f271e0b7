// Elements of 8, 6 or 4 bits in blocks of 32 with a common scale (DynamiQ §5, Appendix C): codecs/mxfp
// defines the scales and the cast (formats.py) and what is done with them (definition.py).
#pragma once
#include "gradwire/abi.h"
#include "gradwire/arithmetic.h"

typedef struct {
  gradwire_call call;
  const void* x;           // the bucket, numel of call.dtype: to take maxima of, and to quantize
  uint16_t* block_maxima;  // the bucket's maxima, bfloat16, one per block
  const uint16_t* maxima;  // those reduced over the workers
  uint8_t* elements;       // packed: written by quantize, added to by add, read by dequantize
  const uint8_t* message;  // packed elements that are added
  int64_t* saturated;      // a count that is added to
  void* mean;              // numel of call.dtype
  int64_t numel;           // coordinates; of add, a multiple of 32
  float mu;
  int32_t rule;           // of scales: MXFP_...
  int32_t width;          // of an element: 8 is E4M3, 6 is E3M2, 4 is E2M1
  int32_t workers;        // that the sums are divided by
  const float* mu_place;  // where mu is read from in each launch of a CUDA graph; null: it is `mu`
} gradwire_mxfp;

enum { MXFP_BF16_MU = 0, MXFP_E8M0_FLOOR = 1, MXFP_E8M0_EVEN = 2, MXFP_E8M0_CEIL = 3 };

GRADWIRE_API int gradwire_mxfp_maxima(const gradwire_mxfp* args);
GRADWIRE_API int gradwire_mxfp_quantize(const gradwire_mxfp* args);
GRADWIRE_API int gradwire_mxfp_add(const gradwire_mxfp* args);
GRADWIRE_API int gradwire_mxfp_dequantize(const gradwire_mxfp* args);

GRADWIRE_NAMESPACE_BEGIN

enum { BLOCK = 32 };

GRADWIRE_HD int64_t items_mxfp_maxima(const gradwire_mxfp& args) { return divide_up(args.numel, BLOCK); }
GRADWIRE_HD int64_t items_mxfp_quantize(const gradwire_mxfp& args) { return items_mxfp_maxima(args); }
GRADWIRE_HD int64_t items_mxfp_add(const gradwire_mxfp& args) { return items_mxfp_maxima(args); }
GRADWIRE_HD int64_t items_mxfp_dequantize(const gradwire_mxfp& args) { return items_mxfp_maxima(args); }

GRADWIRE_HD int check_mxfp(const gradwire_mxfp& args, bool there) {
  return args.numel >= 0 && (there || args.numel == 0) ? GRADWIRE_OK : GRADWIRE_BAD_ARGUMENT;
}
GRADWIRE_HD int check_mxfp_format(const gradwire_mxfp& args, bool there) {
  const bool format = args.width == 8 || args.width == 6 || args.width == 4;
  const bool rule = args.rule >= MXFP_BF16_MU && args.rule <= MXFP_E8M0_CEIL;
  return check_mxfp(args, there && format && rule && args.elements);
}
GRADWIRE_HD int check_mxfp_maxima(const gradwire_mxfp& args) {
  return check_mxfp(args, args.x && args.block_maxima);
}
GRADWIRE_HD int check_mxfp_quantize(const gradwire_mxfp& args) {
  return check_mxfp_format(args, args.x && args.maxima && args.saturated);
}
GRADWIRE_HD int check_mxfp_add(const gradwire_mxfp& args) {
  return check_mxfp_format(args, args.message && args.saturated && args.numel % BLOCK == 0);
}
GRADWIRE_HD int check_mxfp_dequantize(const gradwire_mxfp& args) {
  return check_mxfp_format(args, args.maxima && args.mean && args.workers >= 1);
}

// An element format by its width. Patterns are float32's.
template <int WIDTH>
struct Element {
  static constexpr uint32_t EXPONENT_BITS = WIDTH / 2, MANTISSA_BITS = WIDTH - 1 - EXPONENT_BITS;
  static constexpr uint32_t BIAS = (1 << (EXPONENT_BITS - 1)) - 1;
  // E4M3's last code is its NaN; the others have none.
  static constexpr uint32_t SIGN_BIT = 1 << (WIDTH - 1), LARGEST_CODE = SIGN_BIT - (WIDTH == 8 ? 2 : 1);
  static constexpr uint32_t LARGEST_EXPONENT = (LARGEST_CODE >> MANTISSA_BITS) - BIAS;
  // From a code to its pattern, and what a pattern has beyond it: mantissa bits and bias.
  static constexpr uint32_t SHIFT = 23 - MANTISSA_BITS, REBIAS = (127 - BIAS) << 23;
  static constexpr uint32_t LARGEST = (LARGEST_CODE << SHIFT) + REBIAS, BEYOND = LARGEST + (1u << SHIFT);
  static constexpr uint32_t SMALLEST_BINADE = REBIAS + (1u << 23);
  static constexpr uint32_t BYTES = BLOCK * WIDTH / 8;  // of a block
};

// ---- Scales: BlockScales in codecs/mxfp/formats.py, the way in and the way out

struct WayIn {
  float normalizer, factor;
  uint32_t alive;  // all ones, or 0
};
struct WayOut {
  float step, restorer;
};

GRADWIRE_HD int32_t block_field(uint16_t maximum) {
  const int32_t field = (int32_t)((uint32_t)maximum << 16) >> 23;
  return smaller(larger(field, (int32_t)1), (int32_t)254);
}
GRADWIRE_HD float shared_scale(uint16_t maximum, int32_t field, float mu) {
  return mul(mul(from_bfloat16(maximum), power_of_two(255 - field)), mu);
}
// The exponent field of a scale that is a power of two.
template <int WIDTH>
GRADWIRE_HD int32_t power_field(float shared, int32_t rule) {
  using E = Element<WIDTH>;
  const uint32_t bits = bits_of(shared);  // all ones, but for the sign, where a device has a NaN
  const uint32_t half = rule == MXFP_E8M0_EVEN ? 1u << (22 - E::MANTISSA_BITS) : 0u;
  const int32_t field = rule == MXFP_E8M0_CEIL
                            ? ((int32_t)(bits - (uint32_t)E::LARGEST + 0x7fffffu) >> 23) + 127
                            : ((int32_t)(bits + half) >> 23) - (int32_t)E::LARGEST_EXPONENT;
  return smaller(larger(field, (int32_t)1), (int32_t)253);
}

GRADWIRE_HD bool is_finite_bfloat16(uint16_t bits) { return (bits & 0x7f80) != 0x7f80; }

template <int WIDTH>
GRADWIRE_HD WayIn way_in(uint16_t maximum, float mu, int32_t rule) {
  const int32_t field = block_field(maximum);
  const float shared = shared_scale(maximum, field, mu);
  const float factor = rule == MXFP_BF16_MU ? div(float_of(Element<WIDTH>::LARGEST), shared)
                                            : power_of_two(254 - power_field<WIDTH>(shared, rule));
  const bool alive = is_finite_bfloat16(maximum) && (int16_t)maximum > 0;
  return WayIn{power_of_two(255 - field), factor, alive ? ~0u : 0u};
}

template <int WIDTH>
GRADWIRE_HD WayOut way_out(uint16_t maximum, float mu, int32_t rule, int32_t workers) {
  const int32_t field = block_field(maximum);
  const float shared = shared_scale(maximum, field, mu);
  const float unit = rule == MXFP_BF16_MU ? div(shared, float_of(Element<WIDTH>::LARGEST))
                                          : power_of_two(power_field<WIDTH>(shared, rule));
  const float step = div(unit, (float)(2 * workers));
  return WayOut{is_finite_bfloat16(maximum) ? step : float_of(NOT_A_NUMBER), power_of_two(field)};
}

// The bfloat16 that is not below a block's maximum, given as float32's bits; NaN if that is not finite.
GRADWIRE_HD uint32_t rounded_up(uint32_t maximum) {
  const uint32_t rounded = smaller((maximum + 0xffffu) >> 16, 0x7f7fu);
  return maximum >= INFINITE ? NOT_A_NUMBER >> 16 : rounded;
}

// ---- Elements: `cast` in codecs/mxfp/formats.py, and back

// The code of a magnitude, given as float32's bits, in [0, LARGEST_CODE + 1]: the last one stands for all
// that saturates. With 2^e <= |x| < 2^(e+1) and c = 2^(e+23-M), |x| + c is a multiple of the step 2^(e-M),
// rounded once; its bits minus those of c count steps.
template <int WIDTH>
GRADWIRE_HD uint32_t magnitude_code(uint32_t magnitude) {
  using E = Element<WIDTH>;
  magnitude = smaller(magnitude, E::BEYOND);
  const uint32_t binade = larger(magnitude & INFINITE, E::SMALLEST_BINADE);
  const uint32_t constant = binade + (E::SHIFT << 23);
  const uint32_t rounded = bits_of(add(float_of(magnitude), float_of(constant)));
  // A binade further up starts 2^M codes later; its steps are counted from 2^M.
  return rounded - constant - (E::SMALLEST_BINADE >> E::SHIFT) + (binade >> E::SHIFT);
}
// 1 for the code that stands for what saturates, 0 for all others.
template <int WIDTH>
GRADWIRE_HD uint32_t saturates(uint32_t code) {
  return code - smaller(code, Element<WIDTH>::LARGEST_CODE);
}
template <int WIDTH>
GRADWIRE_HD uint32_t sign_of(uint32_t bits) {
  return bits >> (32 - WIDTH) & Element<WIDTH>::SIGN_BIT;
}

// An element's value, without arithmetic on subnormal numbers, which takes a CPU long. With S the smallest
// normal value, an element of field 0 is first read as n = S·(1 + m)/2 and should be 2n − S: n − S, which is
// negative for such elements alone, is added to n.
template <int WIDTH>
GRADWIRE_HD float element_value(uint32_t code) {
  using E = Element<WIDTH>;
  const uint32_t magnitude = code & (E::SIGN_BIT - 1), sign = (code & E::SIGN_BIT) << (32 - WIDTH);
  const float normal = float_of((magnitude << E::SHIFT) + E::REBIAS);
  const float missing = sub(normal, float_of(E::SMALLEST_BINADE));
  // Negative numbers are negative integers too.
  const float corrected = add(normal, float_of((uint32_t)smaller((int32_t)bits_of(missing), (int32_t)0)));
  const bool number = WIDTH != 8 || magnitude <= E::LARGEST_CODE;
  return float_of((number ? bits_of(corrected) : (uint32_t)NOT_A_NUMBER) | sign);
}

// ---- Sums of elements, computed in float16, two in a word
//
// Where float16 has the low bits of its exponent and the high ones of its mantissa, an element's bits are the
// element divided by a power of two, subnormal where the element is. The sum of two is rounded to 11 bits,
// and then to the 4 or fewer of an element: with 11 >= 2·4 + 2 that is as if it were rounded once (Figueroa,
// "When is double rounding innocuous?", 1995).

template <int WIDTH>
struct Halves {
  using E = Element<WIDTH>;
  static constexpr uint32_t BOTH = 0x00010001, SIGNS = 0x80008000;
  static constexpr uint32_t SHIFT = 10 - E::MANTISSA_BITS;
  static constexpr uint32_t MAGNITUDES = ((E::SIGN_BIT - 1) << SHIFT) * BOTH;
  // A word of the stream has so many pairs of elements; of 6 bits it is 24 bits long.
  static constexpr int PAIRS = WIDTH == 4 ? 4 : 2;
};

// From two elements at the top of a word's halves; what is below them does not matter.
template <int WIDTH>
GRADWIRE_HD uint32_t to_halves(uint32_t tops) {
  using H = Halves<WIDTH>;
  return (tops >> (5 - Element<WIDTH>::EXPONENT_BITS) & H::MAGNITUDES) | (tops & H::SIGNS);
}
// To the codes of two elements in the low bits of the word's halves. Adds 1 to the half of `saturated` of
// each that saturates.
template <int WIDTH>
GRADWIRE_HD uint32_t from_halves(uint32_t halves, uint32_t& saturated) {
  using H = Halves<WIDTH>;
  constexpr uint32_t LARGEST = Element<WIDTH>::LARGEST_CODE;
  uint32_t codes = halves & ~H::SIGNS;
  codes +=
      (codes >> H::SHIFT & H::BOTH) + ((1u << (H::SHIFT - 1)) - 1) * H::BOTH;  // to nearest, ties to even
  codes = codes >> H::SHIFT & ((1u << (16 - H::SHIFT)) - 1) * H::BOTH;
  const uint32_t exceeded = ((codes + (0x7fffu - LARGEST) * H::BOTH) & H::SIGNS) >> 15;
  const uint32_t all = (exceeded << 15) - exceeded;  // 15 ones where a code is too large
  saturated += exceeded;
  return (codes & ~all) | (LARGEST * H::BOTH & all) | (halves & H::SIGNS) >> (16 - WIDTH);
}

// The elements of a word of the stream so that each pair can be shifted to the top of two halves, and back.
template <int WIDTH>
GRADWIRE_HD uint32_t spread(uint32_t word) {
  return WIDTH == 6 ? (word & 0xfff) | (word & 0xfff000) << 4 : word;
}
template <int WIDTH>
GRADWIRE_HD uint32_t gather(uint32_t word) {
  return WIDTH == 6 ? (word & 0xfff) | (word >> 4 & 0xfff000) : word;
}
template <int WIDTH>
GRADWIRE_HD uint32_t pair_of(uint32_t spread_word, int pair) {
  return to_halves<WIDTH>(spread_word << (16 - WIDTH * (pair + 1)));
}

GRADWIRE_NAMESPACE_END
