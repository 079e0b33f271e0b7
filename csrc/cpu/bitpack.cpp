#include "gradwire/bitpack.h"

#include "bitstream.h"

using namespace gradwire;

namespace {

void add_block(const uint32_t* values, int64_t count, uint32_t* sums) {
  GRADWIRE_SIMD
  for (int64_t k = 0; k < count; ++k) sums[k] += values[k];
}

// unpack_array whose values are added.
template <int BITS>
void add_array(const uint8_t* in, int64_t eights, uint32_t* sums) {
  alignas(64) uint32_t values[8 * EIGHTS];
  int64_t done = 0;
  for (; (eights - done - EIGHTS) * BITS >= BEYOND; done += EIGHTS) {
    unpack_block<BITS>(in + done * BITS, values);
    add_block(values, 8 * EIGHTS, sums + 8 * done);
  }
  for (; done < eights; done += EIGHTS) {
    const int64_t left = smaller(eights - done, (int64_t)EIGHTS);
    unpack_array<BITS>(in + done * BITS, left, values);
    add_block(values, 8 * left, sums + 8 * done);
  }
}

// The stream of the sums of values and those of a stream. `sums` is where the sums go, too, or null.
template <int BITS>
void add_and_pack_array(const uint32_t* codes, const uint8_t* in, int64_t eights, uint32_t* sums,
                        uint8_t* out) {
  alignas(64) uint32_t values[8 * EIGHTS];
  for (int64_t done = 0; done < eights; done += EIGHTS) {
    const int64_t left = smaller(eights - done, (int64_t)EIGHTS);
    unpack_array<BITS>(in + done * BITS, left, values);
    add_block(codes + 8 * done, 8 * left, values);
    pack_array<BITS>(values, left, out + done * BITS, (eights - done - left) * BITS);
    if (sums) memcpy(sums + 8 * done, values, (size_t)left * 8 * sizeof(uint32_t));
  }
}

}  // namespace

GRADWIRE_CPU_KERNEL(pack_bits, gradwire_bitpack, 1 << 16) {
  const uint32_t* codes = (const uint32_t*)args.codes_in + EIGHT * begin;
  uint8_t* packed = args.packed_out + args.bits * begin;
  with_width(args.bits, [&](auto width) { pack_array<decltype(width)::value>(codes, end - begin, packed); });
}

GRADWIRE_CPU_KERNEL(unpack_bits, gradwire_bitpack, 1 << 16) {
  const uint8_t* packed = args.packed_in + args.bits * begin;
  uint32_t* codes = (uint32_t*)args.codes_out + EIGHT * begin;
  with_width(args.bits,
             [&](auto width) { unpack_array<decltype(width)::value>(packed, end - begin, codes); });
}

GRADWIRE_CPU_KERNEL(add_bits, gradwire_bitpack, 1 << 16) {
  const uint8_t* packed = args.packed_in + args.bits * begin;
  uint32_t* sums = (uint32_t*)args.codes_out + EIGHT * begin;
  with_width(args.bits, [&](auto width) { add_array<decltype(width)::value>(packed, end - begin, sums); });
}

GRADWIRE_CPU_KERNEL(add_and_pack_bits, gradwire_bitpack, 1 << 16) {
  const uint32_t* codes = (const uint32_t*)args.codes_in + EIGHT * begin;
  const uint8_t* in = args.packed_in + args.bits * begin;
  uint32_t* sums = args.codes_out ? (uint32_t*)args.codes_out + EIGHT * begin : nullptr;
  uint8_t* out = args.packed_out + args.bits * begin;
  with_width(args.bits, [&](auto width) {
    add_and_pack_array<decltype(width)::value>(codes, in, end - begin, sums, out);
  });
}
