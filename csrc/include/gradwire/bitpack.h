// Integers of 1 to 32 bits as a little-endian bit stream; codecs/arithmetic/bitpack.py defines it. Eight
// values take as many whole bytes as a value has bits, 32 values as many 32-bit words.
//
// pack_values and unpack_values are for values held in registers: all shifts are known when they are
// compiled. BitWriter is for widths known when they run.
#pragma once
#include "gradwire/abi.h"
#include "gradwire/arithmetic.h"

#if defined(__CUDACC__)
#define GRADWIRE_UNROLL _Pragma("unroll")
#else
#define GRADWIRE_UNROLL _Pragma("GCC unroll 64")
#endif

typedef struct {
  gradwire_call call;
  const int32_t* codes_in;   // to pack: numel values in [0, 2^bits), with those added that are unpacked
  uint8_t* packed_out;       // to pack: their stream
  const uint8_t* packed_in;  // to unpack: a stream of numel values
  int32_t* codes_out;  // to unpack: where they go, or the sums they are added to. To add and pack: where
                       // the sums go, too, which may be `codes_in`, or null
  int64_t numel;       // a multiple of 8
  int32_t bits;        // of a value: 1 to 32
} gradwire_bitpack;

GRADWIRE_API int gradwire_pack_bits(const gradwire_bitpack* args);
GRADWIRE_API int gradwire_unpack_bits(const gradwire_bitpack* args);
GRADWIRE_API int gradwire_add_bits(const gradwire_bitpack* args);
GRADWIRE_API int gradwire_add_and_pack_bits(const gradwire_bitpack* args);

GRADWIRE_NAMESPACE_BEGIN

enum { EIGHT = 8, WIDEST = 32 };

GRADWIRE_HD int64_t items_pack_bits(const gradwire_bitpack& args) { return args.numel / EIGHT; }
GRADWIRE_HD int64_t items_unpack_bits(const gradwire_bitpack& args) { return args.numel / EIGHT; }
GRADWIRE_HD int64_t items_add_bits(const gradwire_bitpack& args) { return args.numel / EIGHT; }
GRADWIRE_HD int64_t items_add_and_pack_bits(const gradwire_bitpack& args) { return args.numel / EIGHT; }

GRADWIRE_HD int check_bits(const gradwire_bitpack& args, bool there) {
  const bool numbers = args.numel >= 0 && args.numel % EIGHT == 0 && args.bits >= 1 && args.bits <= WIDEST;
  return numbers && (there || args.numel == 0) ? GRADWIRE_OK : GRADWIRE_BAD_ARGUMENT;
}
GRADWIRE_HD int check_pack_bits(const gradwire_bitpack& args) {
  return check_bits(args, args.codes_in && args.packed_out);
}
GRADWIRE_HD int check_unpack_bits(const gradwire_bitpack& args) {
  return check_bits(args, args.packed_in && args.codes_out);
}
GRADWIRE_HD int check_add_bits(const gradwire_bitpack& args) { return check_unpack_bits(args); }
GRADWIRE_HD int check_add_and_pack_bits(const gradwire_bitpack& args) {
  return check_bits(args, args.codes_in && args.packed_in && args.packed_out);
}

// 32-bit words that hold `count` values; the last one is filled up with zeros.
GRADWIRE_HD constexpr int words_of(int count, int bits) { return (count * bits + 31) / 32; }
GRADWIRE_HD constexpr uint32_t mask_of(int bits) { return ~0u >> (32 - bits); }

// COUNT values below 2^BITS, a multiple of 8, to words_of(COUNT, BITS) words.
template <int BITS, int COUNT>
GRADWIRE_HD void pack_values(const uint32_t* codes, uint32_t* words) {
  GRADWIRE_UNROLL
  for (int i = 0; i < COUNT; ++i) {
    const int word = i * BITS / 32, shift = i * BITS % 32;
    words[word] = shift ? words[word] | codes[i] << shift : codes[i];
    if (shift + BITS > 32) words[word + 1] = codes[i] >> (32 - shift) % 32;
  }
}

// The inverse.
template <int BITS, int COUNT>
GRADWIRE_HD void unpack_values(const uint32_t* words, uint32_t* codes) {
  GRADWIRE_UNROLL
  for (int i = 0; i < COUNT; ++i) {
    const int word = i * BITS / 32, shift = i * BITS % 32;
    uint32_t code = words[word] >> shift;
    if (shift + BITS > 32) code |= words[word + 1] << (32 - shift) % 32;
    codes[i] = code & mask_of(BITS);
  }
}

// Puts values of any width, one after another, together to words. After a multiple of 32 values nothing is
// held back.
struct BitWriter {
  uint32_t held = 0, word = 0;
  int32_t filled = 0;
};
// Appends `code` < 2^bits. True where that completes the stream's next word, writer.word.
GRADWIRE_HD bool put(BitWriter& writer, uint32_t code, int32_t bits) {
  const uint64_t both = (uint64_t)code << writer.filled;
  writer.held |= (uint32_t)both;
  writer.filled += bits;
  if (writer.filled < 32) return false;
  writer.filled -= 32;
  writer.word = writer.held;
  writer.held = (uint32_t)(both >> 32);
  return true;
}

GRADWIRE_NAMESPACE_END
