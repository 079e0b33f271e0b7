// Integers of super-groups in as many bits as each eight of them need (codecs/lattice/packed.py defines
// them), for kernels for CPUs.
#pragma once
#include "kernel.h"
#include "rice_code.h"

GRADWIRE_NAMESPACE_BEGIN

struct PackedChoice {
  uint32_t base, filled, bits;  // bits count the header too
  uint8_t codes[LANES];
};

GRADWIRE_HD uint32_t lane_width(const PackedChoice& choice, int lane) {
  return choice.codes[lane] ? choice.base + choice.codes[lane] : 0u;
}

static inline PackedChoice packed_choose(const uint32_t* z) {
  PackedChoice choice = {};
  choice.bits = 8;
  uint32_t widths[LANES], most = 0, least = 32;
  for (int lane = 0; lane < LANES; ++lane) {
    uint32_t any = 0;
    for (int i = 0; i < LANE; ++i) any |= z[lane * LANE + i];
    const uint32_t width = any ? 32 - (uint32_t)__builtin_clz(any) : 0;
    widths[lane] = width;
    most = larger(most, width);
    least = smaller(least, width ? width : 32u);
  }
  if (!most) return choice;
  choice.filled = 1;
  choice.base = larger(least - 1, most > 7 ? most - 7 : 0u);
  choice.bits += 3 * LANES;
  for (int lane = 0; lane < LANES; ++lane) {
    if (!widths[lane]) continue;
    choice.codes[lane] = (uint8_t)(widths[lane] > choice.base ? widths[lane] - choice.base : 1u);
    choice.bits += LANE * lane_width(choice, lane);
  }
  return choice;
}

typedef unsigned __int128 Lane;  // of integers of at most 16 bits

GRADWIRE_HD uint64_t low_bits(uint32_t bits) { return bits < 64 ? (1ull << bits) - 1 : ~0ull; }

// Writes the lanes of a super-group whose integers have at most 16 bits, and up to BEYOND bytes more; returns
// the end.
static inline uint8_t* pack_lanes(const uint32_t* z, const PackedChoice& choice, uint8_t* out) {
  alignas(64) uint64_t widths[2 * LANES], fours[2 * LANES];
  for (int k = 0; k < 2 * LANES; ++k) widths[k] = lane_width(choice, k / 2);
  GRADWIRE_SIMD
  for (int k = 0; k < 2 * LANES; ++k) {
    const uint64_t w = widths[k], a = z[4 * k] | (uint64_t)z[4 * k + 1] << w,
                   b = z[4 * k + 2] | (uint64_t)z[4 * k + 3] << w;
    fours[k] = a | b << 2 * w;
  }
  for (int lane = 0; lane < LANES; ++lane) {
    const Lane eight = fours[2 * lane] | (Lane)fours[2 * lane + 1] << 4 * widths[2 * lane];
    memcpy(out, &eight, 16);
    out += widths[2 * lane];
  }
  return out;
}
// The inverse, which reads up to BEYOND bytes more.
static inline const uint8_t* unpack_lanes(const uint8_t* in, const PackedChoice& choice, uint32_t* z) {
  alignas(64) uint64_t widths[2 * LANES], fours[2 * LANES];
  for (int lane = 0; lane < LANES; ++lane) {
    const uint32_t width = lane_width(choice, lane);
    Lane eight;
    memcpy(&eight, in, 16);
    widths[2 * lane] = widths[2 * lane + 1] = width;
    fours[2 * lane] = (uint64_t)eight & low_bits(4 * width);
    fours[2 * lane + 1] = (uint64_t)(eight >> 4 * width) & low_bits(4 * width);
    in += width;
  }
  GRADWIRE_SIMD
  for (int k = 0; k < 2 * LANES; ++k) {
    const uint64_t w = widths[k], mask = (1ull << w) - 1, four = fours[k];
    z[4 * k] = (uint32_t)(four & mask);
    z[4 * k + 1] = (uint32_t)(four >> w & mask);
    z[4 * k + 2] = (uint32_t)(four >> 2 * w & mask);
    z[4 * k + 3] = (uint32_t)(four >> 3 * w & mask);
  }
  return in;
}

// Any widths, a byte at a time.
static inline uint8_t* pack_wide_lanes(const uint32_t* z, const PackedChoice& choice, uint8_t* out) {
  for (int lane = 0; lane < LANES; ++lane) {
    const uint32_t width = lane_width(choice, lane);
    uint64_t word = 0;
    uint32_t fill = 0;
    for (int i = 0; i < LANE && width; ++i) {
      word |= (uint64_t)z[lane * LANE + i] << fill;
      for (fill += width; fill >= 8; fill -= 8, word >>= 8) *out++ = (uint8_t)word;
    }
  }
  return out;
}
static inline const uint8_t* unpack_wide_lanes(const uint8_t* in, const uint8_t* end,
                                               const PackedChoice& choice, uint32_t* z) {
  for (int lane = 0; lane < LANES; ++lane) {
    const uint32_t width = lane_width(choice, lane);
    uint64_t word = 0;
    uint32_t fill = 0;
    for (int i = 0; i < LANE; ++i) {
      for (; fill < width; fill += 8) word |= (uint64_t)(in < end ? *in++ : 0) << fill;
      z[lane * LANE + i] = (uint32_t)(word & low_bits(width));
      word >>= width;
      fill -= width;
    }
  }
  return in;
}

static inline bool is_wide(const PackedChoice& choice) {
  uint32_t most = 0;
  for (int lane = 0; lane < LANES; ++lane) most = larger(most, lane_width(choice, lane));
  return most > 16;
}

enum { CODE_BYTES = 3 * LANES / 8 };

struct PackedCode {
  using Choice = PackedChoice;
  static Choice choose(const uint32_t* z) { return packed_choose(z); }

  static void write(const uint32_t* z, const Choice* choices, const uint8_t* marks, const uint8_t* further,
                    uint32_t number, int32_t super_groups, int64_t used, int64_t size, uint8_t* out) {
    const uint32_t head = number | (uint32_t)used << NUMBER_BITS;
    memcpy(out, &head, 4);
    memset(out + 4, 0, (size_t)head_bytes(super_groups) - 4);
    uint8_t *at = out + head_bytes(super_groups), *const end = out + size / 8;
    for (int s = 0; s < super_groups; ++s) {
      const Choice& choice = choices[s];
      out[4 + s] = (uint8_t)((choice.filled ? choice.base | 1u << 5 : marks[s]) | further[s] << 6);
      if (!choice.filled) continue;
      for (int g = 0; g < LANES / 8; ++g, at += 3) {
        uint32_t word = 0;
        for (int k = 0; k < 8; ++k) word |= (uint32_t)choice.codes[8 * g + k] << 3 * k;
        memcpy(at, &word, 3);
      }
    }
    for (int s = 0; s < super_groups; ++s) {
      if (!choices[s].filled) continue;
      const bool wide = is_wide(choices[s]) || end - at < 16 * LANES + BEYOND;
      at = wide ? pack_wide_lanes(z + s * SUPER_GROUP, choices[s], at)
                : pack_lanes(z + s * SUPER_GROUP, choices[s], at);
    }
    memset(at, 0, (size_t)(end - at));
  }

  static uint32_t read(const uint8_t* in, int32_t super_groups, int64_t size, int32_t* q, uint8_t* marks,
                       uint8_t* further) {
    Choice choices[MOST_SUPER_GROUPS];
    const uint8_t *at = in + head_bytes(super_groups), *const end = in + size / 8;
    for (int s = 0; s < super_groups; ++s) {
      Choice& choice = choices[s];
      const uint32_t header = in[4 + s];
      choice.base = header & 31;
      choice.filled = (header >> 5 & 1) && end - at >= CODE_BYTES;
      further[s] = (uint8_t)(header >> 6);
      marks[s] = choice.filled ? 0 : (uint8_t)choice.base;
      for (int g = 0; choice.filled && g < LANES / 8; ++g, at += 3)
        for (int k = 0; k < 8; ++k)
          choice.codes[8 * g + k] =
              (uint8_t)((at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16) >> 3 * k & 7);
    }
    for (int s = 0; s < super_groups; ++s) {
      alignas(64) uint32_t z[SUPER_GROUP];
      int32_t* own = q + s * SUPER_GROUP;
      if (!choices[s].filled) {
        memset(own, 0, 4 * SUPER_GROUP);
        continue;
      }
      const bool wide = is_wide(choices[s]) || end - at < 16 * LANES + BEYOND;
      at = wide ? unpack_wide_lanes(at, end, choices[s], z) : unpack_lanes(at, choices[s], z);
      GRADWIRE_SIMD
      for (int i = 0; i < SUPER_GROUP; ++i) own[i] = unzigzag(z[i]);
    }
    return slot_number(in);
  }
};

GRADWIRE_NAMESPACE_END
