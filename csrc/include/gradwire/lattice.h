// Sums of integers on a lattice, in slots of a fixed number of bits; codecs/lattice defines them.
#pragma once
#include "gradwire/abi.h"
#include "gradwire/random.h"
#include "gradwire/statistics.h"

typedef struct {
  gradwire_call call;
  const void* values;         // the bucket, numel of call.dtype; null: this worker's gradients are not added
  const int64_t* order;       // the super-group at each place of the chunk, -1 for none: slots * super_groups
  const uint8_t* message_in;  // what is received, slots * size_in / 8 bytes; null: nothing
  uint8_t* message_out;       // slots * size_out / 8 bytes; null: nothing is sent
  int32_t* sums;              // partial sums by place, 256 each; null: none are kept
  uint8_t* shifts;            // theirs, by place
  uint8_t* marks;             //
  int64_t* wanted;            // the bits that each slot would have taken: slots
  float* means;               // to decode: all super-groups of the bucket, 256 each
  const int64_t* step;        // log2 of D in parts of 1/64
  const uint8_t* nothing;     // whether all gradients are zero
  const uint32_t* key_place;  // where on the device the two words of the key are; null: they are key0, key1
  int64_t numel, slots;
  int32_t super_groups;       // of a slot
  int32_t size_in, size_out;  // bits of a slot
  int32_t held;               // whether `sums` hold something
  int32_t exact;              // whether sums are added exactly, as at a sink
  int32_t turn;               // of the random bits by which sums that are added lose bits
  int32_t packed;             // codec.code=packed, not rice
  int32_t index, count;       // the stratum of this worker, of as many
  int32_t contributions;      // in the message to write
  int32_t workers;            // of all
  int32_t coarser;            // log2 of c in parts of 1/64
  uint32_t key0, key1, rank;
} gradwire_lattice;

GRADWIRE_API int gradwire_lattice_hop(const gradwire_lattice* args);
GRADWIRE_API int gradwire_lattice_seal(const gradwire_lattice* args);
GRADWIRE_API int gradwire_lattice_unseal(const gradwire_lattice* args);
GRADWIRE_API int gradwire_lattice_means(const gradwire_lattice* args);

GRADWIRE_NAMESPACE_BEGIN

enum {
  MOST_SUPER_GROUPS = 128,  // of a slot
  RICE_GROUP = 32,
  RICE_GROUPS = 8,
  LARGEST_R = 12,
  RICE_ESCAPE = 24,
  MOST_FURTHER = 3,
  LARGEST_SHIFT = 31,
  LANE = 8,
  LANES = SUPER_GROUP / LANE,
  NUMBER_BITS = 10,
  STEP_CODES = 1 << NUMBER_BITS,
  FINEST = 16,
  UNITS = 64,
  UNITS_A_CODE = 4,
  OF_SHARED = 2,  // third words of counters
  OF_WORKER = 0,
  OF_DITHER = 3,
  OF_SHIFT = 4
};

enum : uint32_t { SILENT_MARK = 1, BROKEN_MARK = 15 };

GRADWIRE_HD int64_t items_lattice_hop(const gradwire_lattice& args) { return args.slots; }
GRADWIRE_HD int64_t items_lattice_seal(const gradwire_lattice& args) { return args.slots; }
GRADWIRE_HD int64_t items_lattice_unseal(const gradwire_lattice& args) { return args.slots; }
GRADWIRE_HD int64_t items_lattice_means(const gradwire_lattice& args) { return args.slots; }

GRADWIRE_HD int check_lattice(const gradwire_lattice& args, bool there) {
  const bool numbers = args.numel >= 0 && args.slots >= 0 && args.super_groups >= 1 &&
                       args.super_groups <= MOST_SUPER_GROUPS && args.size_in >= 0 &&
                       args.size_in % 32 == 0 && args.size_out >= 0 && args.size_out % 32 == 0 &&
                       args.count >= 1 && args.workers >= 1 && args.order && args.step;
  if (!numbers || !there) return GRADWIRE_BAD_ARGUMENT;
  return ((uintptr_t)args.message_in | (uintptr_t)args.message_out) % 16 ? GRADWIRE_MISALIGNED : GRADWIRE_OK;
}
GRADWIRE_HD int check_lattice_hop(const gradwire_lattice& args) {
  const bool sums = args.sums && args.shifts && args.marks;
  const bool from = args.values || args.message_in || args.held;
  return check_lattice(args,
                       from && (sums || !args.held) && (args.message_out ? args.wanted != nullptr : sums));
}
GRADWIRE_HD int check_lattice_seal(const gradwire_lattice& args) {
  return check_lattice(
      args, args.values && args.sums && args.shifts && args.marks && args.message_out && args.wanted);
}
GRADWIRE_HD int check_lattice_unseal(const gradwire_lattice& args) {
  return check_lattice(args, args.message_in && args.means && args.nothing);
}
GRADWIRE_HD int check_lattice_means(const gradwire_lattice& args) {
  return check_lattice(args, args.sums && args.shifts && args.marks && args.means && args.nothing);
}

GRADWIRE_HD uint32_t zigzag(int32_t q) { return (uint32_t)q << 1 ^ (uint32_t)(q >> 31); }
GRADWIRE_HD int32_t unzigzag(uint32_t z) { return (int32_t)(z >> 1 ^ (0u - (z & 1))); }

GRADWIRE_HD int32_t floored(float x) { return (int32_t)floor_of(x); }

// 2^(units/64) as float32, the nearest one.
GRADWIRE_HD float power_of_units(int64_t units) {
  static constexpr uint32_t powers[UNITS] = {
      0x3f800000u, 0x3f8164d2u, 0x3f82cd87u, 0x3f843a29u, 0x3f85aac3u, 0x3f871f62u, 0x3f88980fu, 0x3f8a14d5u,
      0x3f8b95c2u, 0x3f8d1adfu, 0x3f8ea43au, 0x3f9031dcu, 0x3f91c3d3u, 0x3f935a2bu, 0x3f94f4f0u, 0x3f96942du,
      0x3f9837f0u, 0x3f99e046u, 0x3f9b8d3au, 0x3f9d3edau, 0x3f9ef532u, 0x3fa0b051u, 0x3fa27043u, 0x3fa43516u,
      0x3fa5fed7u, 0x3fa7cd94u, 0x3fa9a15bu, 0x3fab7a3au, 0x3fad583fu, 0x3faf3b79u, 0x3fb123f6u, 0x3fb311c4u,
      0x3fb504f3u, 0x3fb6fd92u, 0x3fb8fbafu, 0x3fbaff5bu, 0x3fbd08a4u, 0x3fbf179au, 0x3fc12c4du, 0x3fc346cdu,
      0x3fc5672au, 0x3fc78d75u, 0x3fc9b9beu, 0x3fcbec15u, 0x3fce248cu, 0x3fd06334u, 0x3fd2a81eu, 0x3fd4f35bu,
      0x3fd744fdu, 0x3fd99d16u, 0x3fdbfbb8u, 0x3fde60f5u, 0x3fe0ccdfu, 0x3fe33f89u, 0x3fe5b907u, 0x3fe8396au,
      0x3feac0c7u, 0x3fed4f30u, 0x3fefe4bau, 0x3ff28177u, 0x3ff5257du, 0x3ff7d0dfu, 0x3ffa83b3u, 0x3ffd3e0cu};
  const int64_t octave = units >> 6;
  return mul(float_of(powers[units & 63]), power_of_two((int32_t)octave + 127));
}

// (place + 1/2) / (count * 2^16), below 1: what is added before rounding down.
GRADWIRE_HD float between_0_and_1(uint32_t place, float each) {
  const float found = mul(add((float)(int32_t)place, 0.5f), each);
  return float_of(smaller(bits_of(found), 0x3f7fffffu));
}
// The stratum of a worker: 16 bits that all share choose the first one's.
GRADWIRE_HD uint32_t stratum(uint32_t shared, uint32_t index, uint32_t count) {
  const int32_t over = (int32_t)((shared * count >> 16) + index - count);
  return (uint32_t)(over + ((int32_t)count & over >> 31));
}

GRADWIRE_HD uint32_t joined_marks(uint32_t a, uint32_t b) {
  return a == BROKEN_MARK || b == BROKEN_MARK ? BROKEN_MARK : a == b ? a : 0u;
}

// A slot's word and headers.
GRADWIRE_HD int64_t head_bytes(int32_t super_groups) { return 4 + (super_groups + 3) / 4 * 4; }
// Bits of a slot besides those of its super-groups, whose headers count as theirs.
GRADWIRE_HD int64_t fixed_bits(int32_t super_groups) { return 8 * (head_bytes(super_groups) - super_groups); }

// The order in which the super-groups of a slot lose bits.
GRADWIRE_HD int32_t turn_of(int32_t k, int32_t super_groups, int32_t contributions) {
  return ((super_groups % 13 ? 13 : 11) * k + 5 * contributions) % super_groups;
}

GRADWIRE_NAMESPACE_END
