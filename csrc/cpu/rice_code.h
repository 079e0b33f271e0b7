// Rice codes of super-groups of integers in slots (codecs/lattice/rice.py defines them), for kernels for
// CPUs.
#pragma once
#include "bitstream.h"
#include "gradwire/lattice.h"
#include "unary.h"

GRADWIRE_NAMESPACE_BEGIN

// How a super-group is coded: `coded` has a bit for each group, `bits` counts the header too.
struct RiceChoice {
  uint32_t mode, r, coded, bits;
  uint32_t of_group[RICE_GROUPS];
};

GRADWIRE_HD uint32_t rice_parameter(uint64_t mean) {
  const uint32_t found = mean ? 63 - (uint32_t)__builtin_clzll(mean) : 0;
  return smaller(found, (uint32_t)LARGEST_R);
}

// Bits of a group with parameter r.
GRADWIRE_HD uint32_t rice_bits(const uint32_t* z, uint32_t r) {
  uint32_t sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int i = 0; i < RICE_GROUP; ++i) {
    const uint32_t zeros = z[i] >> r;
    sum += zeros < (uint32_t)RICE_ESCAPE ? zeros : (uint32_t)RICE_ESCAPE + 32u;
  }
  return sum + RICE_GROUP * (r + 1);
}

static inline uint32_t slot_number(const uint8_t* in) {
  uint32_t head;
  memcpy(&head, in, 4);
  return head & (STEP_CODES - 1);
}

struct GroupSums {
  uint64_t of_group[RICE_GROUPS], total;
  uint32_t filled, number;  // groups that are not all zero: a bit for each, and how many
};

static inline GroupSums group_sums(const uint32_t* z) {
  GroupSums sums = {};
  for (int g = 0; g < RICE_GROUPS; ++g) {
    uint32_t low = 0, high = 0;
    const uint32_t* own = z + g * RICE_GROUP;
#pragma omp simd reduction(+ : low, high)
    for (int i = 0; i < RICE_GROUP; ++i) {
      low += own[i] & 0xffff;
      high += own[i] >> 16;
    }
    sums.of_group[g] = low + ((uint64_t)high << 16);
    sums.total += sums.of_group[g];
    sums.filled |= (uint32_t)(sums.of_group[g] != 0) << g;
    sums.number += sums.of_group[g] != 0;
  }
  return sums;
}

// The shortest code of a super-group; of equally long ones the first.
static inline RiceChoice rice_choose(const uint32_t* z) {
  const GroupSums sums = group_sums(z);
  RiceChoice choice = {};
  choice.bits = 8;
  if (!sums.total) return choice;
  const uint32_t whole = rice_parameter(sums.total >> 8);
  const uint32_t masked = rice_parameter((sums.total >> 5) / sums.number);
  uint32_t several[RICE_GROUPS], with_whole[RICE_GROUPS], least = LARGEST_R;
  for (int g = 0; g < RICE_GROUPS; ++g) {
    several[g] = rice_parameter(sums.of_group[g] >> 5);
    if (sums.filled >> g & 1) least = smaller(least, several[g]);
  }
  uint32_t one = 0, some = 8, each = 16;
  for (int g = 0; g < RICE_GROUPS; ++g) {
    const uint32_t* own = z + g * RICE_GROUP;
    several[g] = smaller(several[g], least + 2);
    if (sums.filled >> g & 1) {
      with_whole[g] = rice_bits(own, whole);
      some += masked == whole ? with_whole[g] : rice_bits(own, masked);
      each += several[g] == whole ? with_whole[g] : rice_bits(own, several[g]);
    } else {
      with_whole[g] = RICE_GROUP * (whole + 1);
    }
    one += with_whole[g];
  }
  const uint32_t length = smaller(smaller(one, some), each);
  choice.bits += length;
  choice.mode = one == length ? 1 : some == length ? 2 : 3;
  choice.r = choice.mode == 1 ? whole : choice.mode == 2 ? masked : least;
  choice.coded = choice.mode == 1 ? 0xff : sums.filled;
  for (int g = 0; g < RICE_GROUPS; ++g) choice.of_group[g] = choice.mode == 3 ? several[g] : choice.r;
  return choice;
}

// The lower BITS bits of a group's integers, 4·BITS bytes, and back. Up to BEYOND bytes more are overwritten,
// or read.
template <int BITS>
static inline void pack_low(const uint32_t* z, uint8_t* out) {
  alignas(64) uint64_t fours[RICE_GROUP / 4];
  GRADWIRE_SIMD
  for (int i = 0; i < RICE_GROUP / 4; ++i) {
    const uint32_t* four = z + 4 * i;
    const uint64_t mask = (1u << BITS) - 1;
    fours[i] = (four[0] & mask) | (four[1] & mask) << BITS | (four[2] & mask) << 2 * BITS |
               (four[3] & mask) << 3 * BITS;
  }
  for (int i = 0; i < RICE_GROUP / 8; ++i) store_parts<4 * BITS, 2>(fours + 2 * i, out + i * BITS);
}
template <int BITS>
static inline void unpack_low(const uint8_t* in, uint32_t* low) {
  for (int i = 0; i < RICE_GROUP / 8; ++i) {
#ifdef __AVX2__
    _mm256_storeu_si256((__m256i*)(low + 8 * i), unpack_by_shuffle<BITS>(in + i * BITS));
#else
    uint64_t parts[2];
    load_parts<4 * BITS, 2>(in + i * BITS, parts);
    for (int k = 0; k < 8; ++k)
      low[8 * i + k] = (uint32_t)(parts[k / 4] >> k % 4 * BITS) & ((1u << BITS) - 1);
#endif
  }
}

// The largest parameter of a group.
enum { LARGEST_OF_GROUP = LARGEST_R + 2 };

// f(Width<r>()) for a parameter from 1 on.
template <class Function>
static inline void with_parameter(uint32_t r, Function f) {
  with_width((int)r, [&](auto width) {
    if constexpr (decltype(width)::value <= LARGEST_OF_GROUP) f(width);
  });
}

static inline void put_escape(uint32_t z, int64_t at, uint8_t* out) {
  uint64_t moved = (uint64_t)z << at % 8;
  for (int64_t k = at / 8; moved; ++k, moved >>= 8) out[k] |= (uint8_t)moved;
}

GRADWIRE_HD bool escapes(const uint32_t* z, uint32_t r, uint32_t* zeros) {
  uint32_t any = 0;
#pragma omp simd reduction(| : any)
  for (int i = 0; i < RICE_GROUP; ++i) {
    const uint32_t own = z[i] >> r;
    any |= own >= (uint32_t)RICE_ESCAPE;
    zeros[i] = smaller(own, (uint32_t)RICE_ESCAPE);
  }
  return any != 0;
}

// Writes a slot of `size` bits, of which `used` are in use.
static inline void rice_write(const uint32_t* z, const RiceChoice* choices, const uint8_t* marks,
                              const uint8_t* further, uint32_t number, int32_t super_groups, int64_t used,
                              int64_t size, uint8_t* out) {
  const uint32_t head = number | (uint32_t)used << NUMBER_BITS;
  memcpy(out, &head, 4);
  memset(out + 4, 0, (size_t)head_bytes(super_groups) - 4);
  uint8_t* at = out + head_bytes(super_groups);
  for (int s = 0; s < super_groups; ++s) {
    const RiceChoice& choice = choices[s];
    out[4 + s] = (uint8_t)(choice.mode | (choice.mode ? choice.r : marks[s]) << 2 | further[s] << 6);
    if (choice.mode == 2) *at++ = (uint8_t)choice.coded;
    if (choice.mode != 3) continue;
    uint32_t added = 0;
    for (int g = 0; g < RICE_GROUPS; ++g)
      if (choice.coded >> g & 1) added |= (choice.of_group[g] - choice.r + 1) << 2 * g;
    *at++ = (uint8_t)added;
    *at++ = (uint8_t)(added >> 8);
  }
  for (int s = 0; s < super_groups; ++s)
    for (int g = 0; choices[s].mode && g < RICE_GROUPS; ++g) {
      if (!(choices[s].coded >> g & 1)) continue;
      const int64_t bytes = 4 * choices[s].of_group[g];
      const bool last = out + size / 8 - at < bytes + BEYOND;
      alignas(64) uint8_t buffer[4 * LARGEST_OF_GROUP + BEYOND];
      with_parameter(choices[s].of_group[g], [&](auto width) {
        pack_low<width.value>(z + s * SUPER_GROUP + g * RICE_GROUP, last ? buffer : at);
      });
      if (last) memcpy(at, buffer, (size_t)bytes);
      at += bytes;
    }
  UnaryWriter unary(at);
  bool any = false;
  for (int s = 0; s < super_groups; ++s)
    for (int g = 0; choices[s].mode && g < RICE_GROUPS; ++g) {
      if (!(choices[s].coded >> g & 1)) continue;
      alignas(64) uint32_t zeros[RICE_GROUP];
      any |= escapes(z + s * SUPER_GROUP + g * RICE_GROUP, choices[s].of_group[g], zeros);
      unary.append(zeros);
    }
  int64_t bits = unary.finish();
  const int64_t written = at - out + divide_up(bits, 8);
  memset(out + written, 0, (size_t)(size / 8 - written));
  if (!any) return;
  for (int s = 0; s < super_groups; ++s)
    for (int i = 0; choices[s].mode && i < SUPER_GROUP; ++i) {
      if (!(choices[s].coded >> i / RICE_GROUP & 1)) continue;
      const uint32_t own = z[s * SUPER_GROUP + i];
      if (own >> choices[s].of_group[i / RICE_GROUP] < (uint32_t)RICE_ESCAPE) continue;
      put_escape(own, bits, at);
      bits += 32;
    }
}

// Reads a slot: its integers, and of each super-group its mark and its further shift. Returns the number in
// its word.
static inline uint32_t rice_read(const uint8_t* in, int32_t super_groups, int64_t size, int32_t* q,
                                 uint8_t* marks, uint8_t* further) {
  RiceChoice choices[MOST_SUPER_GROUPS];
  const uint8_t *const end = in + size / 8, *at = in + head_bytes(super_groups);
  int64_t low_bytes = 0;
  for (int s = 0; s < super_groups; ++s) {
    RiceChoice& choice = choices[s];
    choice.mode = in[4 + s] & 3;
    choice.r = in[4 + s] >> 2 & 15;
    further[s] = in[4 + s] >> 6;
    marks[s] = choice.mode ? 0 : (uint8_t)choice.r;
    uint32_t added = 0;
    choice.coded = choice.mode == 1 ? 0xff : 0;
    if (choice.mode == 2 && at < end) choice.coded = *at++;
    if (choice.mode == 3 && at + 1 < end) {
      added = at[0] | (uint32_t)at[1] << 8;
      at += 2;
    }
    for (int g = 0; g < RICE_GROUPS; ++g) {
      const uint32_t code = added >> 2 * g & 3;
      choice.coded |= (uint32_t)(code > 0) << g;
      choice.of_group[g] = smaller(choice.r, (uint32_t)LARGEST_R) + (code ? code - 1 : 0);
      if (choice.coded >> g & 1) low_bytes += 4 * choice.of_group[g];
    }
  }
  if (low_bytes > end - at) {  // nothing that was written as a slot
    memset(q, 0, 4 * (size_t)super_groups * SUPER_GROUP);
    return slot_number(in);
  }
  UnaryReader unary(at + low_bytes, end);
  const uint8_t* const stream = at + low_bytes;
  bool any = false;
  for (int s = 0; s < super_groups; ++s) {
    int32_t* own = q + s * SUPER_GROUP;
    const RiceChoice& choice = choices[s];
    if (!choice.coded) {
      memset(own, 0, 4 * SUPER_GROUP);
      continue;
    }
    uint32_t before;
    const uint32_t* places = unary.next(RICE_GROUP * (uint32_t)__builtin_popcount(choice.coded), before);
    for (int g = 0; g < RICE_GROUPS; ++g, own += RICE_GROUP) {
      if (!(choice.coded >> g & 1)) {
        memset(own, 0, 4 * RICE_GROUP);
        continue;
      }
      alignas(64) uint32_t low[RICE_GROUP] = {};
      const uint32_t r = choice.of_group[g];
      const bool last = end - at < (int64_t)(4 * r) + BEYOND;
      alignas(64) uint8_t buffer[4 * LARGEST_OF_GROUP + BEYOND] = {};
      if (last) memcpy(buffer, at, 4 * r);
      with_parameter(r, [&](auto width) { unpack_low<width.value>(last ? buffer : at, low); });
      at += 4 * r;
      uint32_t escaped = 0;
      own[0] = (int32_t)(places[0] - before - 1);
      for (int i = 1; i < RICE_GROUP; ++i) own[i] = (int32_t)(places[i] - places[i - 1] - 1);
#pragma omp simd reduction(| : escaped)
      for (int i = 0; i < RICE_GROUP; ++i) {
        const uint32_t zeros = (uint32_t)own[i];
        escaped |= zeros >= (uint32_t)RICE_ESCAPE;
        own[i] = zeros < (uint32_t)RICE_ESCAPE ? unzigzag(zeros << r | low[i]) : INT32_MIN;
      }
      any |= escaped != 0;
      before = places[RICE_GROUP - 1];
      places += RICE_GROUP;
    }
  }
  // What escapes follows the unary codes; no other integer is the smallest one.
  int64_t bit = unary.end();
  for (int64_t i = 0; any && i < (int64_t)super_groups * SUPER_GROUP; ++i) {
    if (q[i] != INT32_MIN) continue;
    uint64_t five = 0;
    for (int k = 0; k < 5 && stream + bit / 8 + k < end; ++k) five |= (uint64_t)stream[bit / 8 + k] << 8 * k;
    q[i] = unzigzag((uint32_t)(five >> bit % 8));
    bit += 32;
  }
  return slot_number(in);
}

struct RiceCode {
  using Choice = RiceChoice;
  static Choice choose(const uint32_t* z) { return rice_choose(z); }
  static void write(const uint32_t* z, const Choice* choices, const uint8_t* marks, const uint8_t* further,
                    uint32_t number, int32_t super_groups, int64_t used, int64_t size, uint8_t* out) {
    rice_write(z, choices, marks, further, number, super_groups, used, size, out);
  }
  static uint32_t read(const uint8_t* in, int32_t super_groups, int64_t size, int32_t* q, uint8_t* marks,
                       uint8_t* further) {
    return rice_read(in, super_groups, size, q, marks, further);
  }
};

GRADWIRE_NAMESPACE_END
