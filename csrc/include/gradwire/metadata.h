// Metadata of all ranks combined, hop by hop; harness/comm/collective/metadata.py defines it.
//
// The parts of a rank's metadata are split evenly over the chunks. A message has some chunks, one after
// another: of each its elements of every part, in the order of the parts, padded with zeros to `unit` bytes.
// Parts are ordered by descending size of their elements, so all are aligned.
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
enum {
  GRADWIRE_PUT = 0,
  GRADWIRE_COMBINE = 1,
  GRADWIRE_TAKE = 2
};  // own to message; both to own; message to own

typedef struct {
  gradwire_call call;
  int32_t parts;       // up to 8
  int32_t kinds[8];    // what their elements are and how two become one
  int64_t numel[8];    // their elements
  uint64_t values[8];  // the addresses of this rank's, which combining and taking write to
  int64_t chunks;      // of all
  int64_t first;       // chunk of the message
  int64_t last;        // exclusive
  int64_t unit;        // bytes, the largest element's
  int32_t action;      // GRADWIRE_PUT, GRADWIRE_COMBINE or GRADWIRE_TAKE
  int64_t message_bytes;
  uint8_t* message;  // at a multiple of `unit`
} gradwire_metadata;

GRADWIRE_API int gradwire_metadata_hop(const gradwire_metadata* args);

GRADWIRE_NAMESPACE_BEGIN

enum : int64_t { METADATA_PARTS = 8, METADATA_TILE = 2048 };  // elements of a part that are one item of work

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

// The first element of a chunk in a part.
GRADWIRE_HD int64_t first_element(const gradwire_metadata& args, int part, int64_t chunk) {
  return smaller(chunk * divide_up(args.numel[part], args.chunks), args.numel[part]);
}
// The bytes of a chunk in the parts before `part`.
GRADWIRE_HD int64_t bytes_before(const gradwire_metadata& args, int part, int64_t chunk) {
  int64_t bytes = 0;
  for (int i = 0; i < part; ++i)
    bytes +=
        element_bytes(args.kinds[i]) * (first_element(args, i, chunk + 1) - first_element(args, i, chunk));
  return bytes;
}
GRADWIRE_HD int64_t padded_bytes(const gradwire_metadata& args, int64_t chunk) {
  return divide_up(bytes_before(args, args.parts, chunk), args.unit) * args.unit;
}
// Where a chunk begins in the message of the chunks from `first` on. Chunks that are full in all parts have
// equal sizes.
GRADWIRE_HD int64_t chunk_offset(const gradwire_metadata& args, int64_t chunk) {
  int64_t full = args.chunks;
  for (int i = 0; i < args.parts; ++i) {
    const int64_t each = divide_up(args.numel[i], args.chunks);
    full = smaller(full, each ? args.numel[i] / each : args.chunks);
  }
  full = smaller(larger(full, args.first), chunk);
  int64_t offset = full > args.first ? (full - args.first) * padded_bytes(args, args.first) : 0;
  for (int64_t c = larger(full, args.first); c < chunk; ++c) offset += padded_bytes(args, c);
  return offset;
}

GRADWIRE_HD float norm_of(float a, float b) {
  const double wide = (double)a, other = (double)b;
  return (float)square_root(add(mul(wide, wide), mul(other, other)));
}

// Work is shared by tiles of a chunk.
GRADWIRE_HD int64_t tiles_of_chunk(const gradwire_metadata& args) {
  int64_t most = 1;
  for (int i = 0; i < args.parts; ++i)
    most = larger(most, divide_up(divide_up(args.numel[i], args.chunks), (int64_t)METADATA_TILE));
  return most;
}
GRADWIRE_HD int64_t items_metadata_hop(const gradwire_metadata& args) {
  return (args.last - args.first) * tiles_of_chunk(args);
}

GRADWIRE_HD int check_metadata_hop(const gradwire_metadata& args) {
  const bool in_range = args.parts >= 1 && args.parts <= METADATA_PARTS && args.chunks >= 1 &&
                        args.first >= 0 && args.first <= args.last && args.last <= args.chunks &&
                        args.action >= GRADWIRE_PUT && args.action <= GRADWIRE_TAKE && args.unit >= 1 &&
                        args.unit <= 8 && args.message;
  if (!in_range) return GRADWIRE_BAD_ARGUMENT;
  for (int i = 0; i < args.parts; ++i) {
    const bool known = args.kinds[i] >= GRADWIRE_OR_8 && args.kinds[i] <= GRADWIRE_NORM_FLOAT32;
    if (!known || args.numel[i] < 0 || (args.numel[i] && !args.values[i])) return GRADWIRE_BAD_ARGUMENT;
    if (args.unit % element_bytes(args.kinds[i])) return GRADWIRE_BAD_ARGUMENT;
    if (i && element_bytes(args.kinds[i]) > element_bytes(args.kinds[i - 1])) return GRADWIRE_BAD_ARGUMENT;
    if (args.values[i] % (uint64_t)element_bytes(args.kinds[i])) return GRADWIRE_MISALIGNED;
  }
  if ((uint64_t)args.message % (uint64_t)args.unit) return GRADWIRE_MISALIGNED;
  return chunk_offset(args, args.last) == args.message_bytes ? GRADWIRE_OK : GRADWIRE_BAD_ARGUMENT;
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

// A kernel has fifteen such loops; unrolled by nvcc they take more registers than there are.
#if defined(__CUDACC__)
#define GRADWIRE_ROLLED _Pragma("unroll 1")
#else
#define GRADWIRE_ROLLED
#endif

// Every `stride`-th of some elements of a part, from `begin` on; `own` is element 0 of the part, `message`
// where its element `start` lies.
template <int KIND, class T>
GRADWIRE_HD void work_on_elements(int32_t action, void* own, void* message, int64_t start, int64_t begin,
                                  int64_t end, int64_t stride) {
  T* here = (T*)own;
  T* there = (T*)message;
  if (action == GRADWIRE_COMBINE)
    GRADWIRE_ROLLED for (int64_t i = begin; i < end; i += stride) here[i] =
        combined<KIND, T>(here[i], there[i - start]);
  else if (action == GRADWIRE_PUT)
    GRADWIRE_ROLLED for (int64_t i = begin; i < end; i += stride) there[i - start] = here[i];
  else
    GRADWIRE_ROLLED for (int64_t i = begin; i < end; i += stride) here[i] = there[i - start];
}

// One tile of a chunk, its elements shared by `lanes` threads, of which this is number `lane`.
GRADWIRE_HD void work_on_tile(const gradwire_metadata& args, int64_t item, int64_t lane, int64_t lanes) {
  const int64_t tiles = tiles_of_chunk(args), chunk = args.first + item / tiles, tile = item % tiles;
  uint8_t* const message = args.message + chunk_offset(args, chunk);
  for (int part = 0; part < args.parts; ++part) {
    const int32_t kind = args.kinds[part], action = args.action;
    const int64_t start = first_element(args, part, chunk), stop = first_element(args, part, chunk + 1);
    const int64_t first = start + tile * METADATA_TILE, end = smaller(stop, first + METADATA_TILE);
    void* const own = (void*)args.values[part];
    void* const other = message + bytes_before(args, part, chunk);
    const int64_t begin = first + lane;
    switch (kind) {
#define GRADWIRE_KIND(KIND, T) \
  case KIND: work_on_elements<KIND, T>(action, own, other, start, begin, end, lanes); break;
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
  if (args.action == GRADWIRE_PUT && tile == 0 && lane == 0) {
    const int64_t used = bytes_before(args, args.parts, chunk), all = padded_bytes(args, chunk);
    for (int64_t i = used; i < all; ++i) message[i] = 0;
  }
}

#undef GRADWIRE_ROLLED

GRADWIRE_NAMESPACE_END
