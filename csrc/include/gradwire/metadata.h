// Metadata of all ranks combined, hop by hop; harness/comm/collective/metadata.py defines it.
//
// The parts of a rank's metadata lie one after another, by descending size of their elements, so that all are
// aligned; what may follow pads. A message is a stretch of such memory, which may begin and end within a
// part, at a multiple of the first part's element.
#pragma once
#include "gradwire/abi.h"
#include "gradwire/arithmetic.h"

// What an element is and how two become one. Sums of bfloat16 are float32 ones, rounded; norms are
// sqrt(a² + b²) in float64, rounded to float32 and to the element; maxima are of signed integers, but for
// bytes.
enum {
  GRADWIRE_OR_8 = 0,
  GRADWIRE_OR_16 = 1,
  GRADWIRE_OR_32 = 2,
  GRADWIRE_OR_64 = 3,
  GRADWIRE_MAXIMUM_8 = 4,
  GRADWIRE_MAXIMUM_16 = 5,
  GRADWIRE_MAXIMUM_32 = 6,
  GRADWIRE_MAXIMUM_64 = 7,
  GRADWIRE_SUM_BFLOAT16 = 8,
  GRADWIRE_SUM_FLOAT32 = 9,
  GRADWIRE_SUM_FLOAT64 = 10,
  GRADWIRE_SUM_32 = 11,
  GRADWIRE_SUM_64 = 12,
  GRADWIRE_NORM_BFLOAT16 = 13,
  GRADWIRE_NORM_FLOAT32 = 14,
};

typedef struct {
  gradwire_call call;
  int32_t parts;     // up to 8
  int32_t kinds[8];  // what their elements are and how two become one
  int64_t numel[8];  // their elements
  uint8_t* values;   // this rank's parts, one after another; results are written there
  int64_t first;     // byte of the values that the message begins with
  int64_t last;      // exclusive
  const uint8_t* message;
} gradwire_metadata;

GRADWIRE_API int gradwire_metadata_hop(const gradwire_metadata* args);

GRADWIRE_NAMESPACE_BEGIN

enum : int64_t { METADATA_PARTS = 8, METADATA_WORD = 8, METADATA_TILE = 2048 };

GRADWIRE_HD int64_t element_bytes(int32_t kind) {
  switch (kind) {
    case GRADWIRE_OR_8:
    case GRADWIRE_MAXIMUM_8: return 1;
    case GRADWIRE_OR_16:
    case GRADWIRE_MAXIMUM_16:
    case GRADWIRE_SUM_BFLOAT16:
    case GRADWIRE_NORM_BFLOAT16: return 2;
    case GRADWIRE_OR_64:
    case GRADWIRE_MAXIMUM_64:
    case GRADWIRE_SUM_FLOAT64:
    case GRADWIRE_SUM_64: return 8;
    default: return 4;
  }
}

GRADWIRE_HD float norm_of(float a, float b) {
  const double wide = (double)a, other = (double)b;
  return (float)square_root(add(mul(wide, wide), mul(other, other)));
}

// The words of the values that a message's bytes are in, `METADATA_TILE` bytes of them an item of work, begin
// at this byte of the values, which may lie before the message's first.
GRADWIRE_HD int64_t first_word(const gradwire_metadata& args) {
  return args.first - (int64_t)((uint64_t)(args.values + args.first) % METADATA_WORD);
}
GRADWIRE_HD int64_t items_metadata_hop(const gradwire_metadata& args) {
  return args.first < args.last ? divide_up(args.last - first_word(args), (int64_t)METADATA_TILE) : 0;
}

GRADWIRE_HD int check_metadata_hop(const gradwire_metadata& args) {
  const bool in_range = args.parts >= 1 && args.parts <= METADATA_PARTS && args.first >= 0 &&
                        args.first <= args.last && args.values && args.message;
  if (!in_range) return GRADWIRE_BAD_ARGUMENT;
  int64_t bytes = 0;
  for (int i = 0; i < args.parts; ++i) {
    const bool known = args.kinds[i] >= GRADWIRE_OR_8 && args.kinds[i] <= GRADWIRE_NORM_FLOAT32;
    if (!known || args.numel[i] < 0) return GRADWIRE_BAD_ARGUMENT;
    if (i && element_bytes(args.kinds[i]) > element_bytes(args.kinds[i - 1])) return GRADWIRE_BAD_ARGUMENT;
    bytes += args.numel[i] * element_bytes(args.kinds[i]);
  }
  const int64_t unit = element_bytes(args.kinds[0]);
  if (args.last > divide_up(bytes, unit) * unit) return GRADWIRE_BAD_ARGUMENT;
  const uint64_t places = (uint64_t)args.values | (uint64_t)args.message | (uint64_t)(args.first | args.last);
  return places % (uint64_t)unit ? GRADWIRE_MISALIGNED : GRADWIRE_OK;
}

// What two elements become; T is as wide as an element, and unsigned where bits are all that counts.
template <int KIND, class T>
GRADWIRE_HD T combined(T a, T b) {
  if constexpr (KIND <= GRADWIRE_OR_64) {
    return (T)(a | b);
  } else if constexpr (KIND <= GRADWIRE_MAXIMUM_64) {
    return a > b ? a : b;
  } else if constexpr (KIND == GRADWIRE_SUM_BFLOAT16) {
    return to_bfloat16(add(from_bfloat16(a), from_bfloat16(b)));
  } else if constexpr (KIND == GRADWIRE_SUM_FLOAT32 || KIND == GRADWIRE_SUM_FLOAT64) {
    return add(a, b);
  } else if constexpr (KIND <= GRADWIRE_SUM_64) {
    return a + b;
  } else if constexpr (KIND == GRADWIRE_NORM_BFLOAT16) {
    return to_bfloat16(norm_of(from_bfloat16(a), from_bfloat16(b)));
  } else {
    return norm_of(a, b);
  }
}

// One tile of a message: combine.template run<KIND, T>(own, message, bytes) is called for each part of it.
template <class Combine>
GRADWIRE_HD void work_on_tile(const gradwire_metadata& args, int64_t item, const Combine& combine) {
  const int64_t begin = first_word(args) + item * METADATA_TILE;
  const int64_t end = smaller(args.last, begin + METADATA_TILE);
  int64_t start = 0;  // of the part
  for (int part = 0; part < args.parts; ++part) {
    const int32_t kind = args.kinds[part];
    const int64_t stop = start + args.numel[part] * element_bytes(kind);
    const int64_t first = larger(larger(begin, args.first), start), last = smaller(end, stop);
    start = stop;
    if (first >= last) continue;
    uint8_t* const own = args.values + first;
    const uint8_t* const other = args.message + (first - args.first);
    switch (kind) {
#define GRADWIRE_KIND(KIND, T) \
  case KIND: combine.template run<KIND, T>(own, other, last - first); break;
      GRADWIRE_KIND(GRADWIRE_OR_8, uint8_t)
      GRADWIRE_KIND(GRADWIRE_OR_16, uint16_t)
      GRADWIRE_KIND(GRADWIRE_OR_32, uint32_t)
      GRADWIRE_KIND(GRADWIRE_OR_64, uint64_t)
      GRADWIRE_KIND(GRADWIRE_MAXIMUM_8, uint8_t)
      GRADWIRE_KIND(GRADWIRE_MAXIMUM_16, int16_t)
      GRADWIRE_KIND(GRADWIRE_MAXIMUM_32, int32_t)
      GRADWIRE_KIND(GRADWIRE_MAXIMUM_64, int64_t)
      GRADWIRE_KIND(GRADWIRE_SUM_BFLOAT16, uint16_t)
      GRADWIRE_KIND(GRADWIRE_SUM_FLOAT32, float)
      GRADWIRE_KIND(GRADWIRE_SUM_FLOAT64, double)
      GRADWIRE_KIND(GRADWIRE_SUM_32, uint32_t)
      GRADWIRE_KIND(GRADWIRE_SUM_64, uint64_t)
      GRADWIRE_KIND(GRADWIRE_NORM_BFLOAT16, uint16_t)
      GRADWIRE_KIND(GRADWIRE_NORM_FLOAT32, float)
#undef GRADWIRE_KIND
    }
  }
}

GRADWIRE_NAMESPACE_END
