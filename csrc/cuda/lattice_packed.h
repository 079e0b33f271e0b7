// Integers of a slot's super-groups in as many bits as each lane's eight need (codecs/lattice/packed.py
// defines them), a warp to each super-group.
#pragma once
#include "lattice_slot.h"

namespace gradwire_cuda {
inline namespace lattice {

// A super-group's code is its base and a bit that says that it is not all zero.
enum : uint32_t { FILLED = 1 << 5, BASE = FILLED - 1, LANE_BITS = 3, CODES = WARP * LANE_BITS };

struct PackedCode {
  // Reads what there is besides the numbers: the same for all threads, which meet in the end.
  static __device__ __forceinline__ void open(const Received& in, SlotMemory& memory, const Team& team) {
    if (team.warp == 0) read_headers(in, memory, team);
    __syncthreads();
#pragma unroll 1
    for (int s = team.warp; s < team.num; s += SLOT_WARPS) {
      const uint32_t bytes = __reduce_add_sync(ALL, width_of(in, s, memory, team.lane));
      if (team.lane == 0) memory.parts[LOW][s] = bytes;
    }
    __syncthreads();
    if (team.warp == 0) add_up(memory.parts[LOW], team);
    __syncthreads();
  }

  static __device__ __forceinline__ void read(const Received& in, int s, SlotMemory& memory, const Team& team,
                                              int32_t* q) {
    const uint32_t width = width_of(in, s, memory, team.lane),
                   at = memory.first + memory.parts[LOW][s] + sum_before(width, team.lane);
    if (__ballot_sync(ALL, width > 8)) {
      for_each([&](int i) { q[i] = unzigzag(in.from(8 * at + i * width) & mask_of(width)); });
      return;
    }
    const uint32_t bytes = width ? at % 4 + width : 0, shift = at % 4 * 8;
    uint32_t words[3];
#pragma unroll
    for (int k = 0; k < 3; ++k) words[k] = 4u * k < bytes ? in.word(at / 4 + k) : 0;
    uint64_t all = __funnelshift_r(words[0], words[1], shift) |
                   (uint64_t)__funnelshift_r(words[1], words[2], shift) << 32;
    for_each([&](int i) {
      q[i] = unzigzag((uint32_t)all & mask_of(width));
      all >>= width;
    });
  }
  static __device__ __forceinline__ void read_escapes(const Received&, SlotRows&, SlotMemory&, const Team&) {}

  // How a super-group is coded, which all lanes find alike.
  static __device__ __forceinline__ Choice choose(const uint32_t* z, int) {
    const uint32_t width = width_for(z), most = __reduce_max_sync(ALL, width);
    if (!most) return {0, 8, {}};
    const uint32_t least = __reduce_min_sync(ALL, width ? width : 32u);
    const uint32_t base = larger(least - 1, most > 7 ? most - 7 : 0u);
    const uint32_t bytes = __reduce_add_sync(ALL, width ? larger(width, base + 1) : 0);
    return {base | FILLED, 8 + CODES + 8 * bytes, {CODES / 8, bytes, 0, 0}};
  }

  static __device__ __forceinline__ uint32_t header_of(uint32_t code, uint32_t mark) {
    return code ? code : mark;
  }

  // Writes all but headers.
  static __device__ __forceinline__ void write(Outgoing& out, const SlotRows& rows, const SlotMemory& memory,
                                               const Team& team) {
    const uint32_t codes = (uint32_t)head_bytes(team.num), low = codes + memory.parts[MASKS][team.num];
    // Codes come before all lanes: what the ring cannot hold at once has them written first.
    const bool at_once = low + memory.parts[LOW][team.num] <= 4 * STAGE;
#pragma unroll 1
    for (int s = team.warp; s < team.num && !at_once; s += SLOT_WARPS) {
      uint32_t z[EIGHT];
      const uint32_t code = memory.codes[s];
      if (code)
        put_codes(out, codes + memory.parts[MASKS][s], code, load_lane(rows[s], code, team.lane, z),
                  team.lane);
    }
    out.put_all(memory.parts[LOW], 8 * low, 8, team, [&](int s) {
      uint32_t z[EIGHT];
      const uint32_t code = memory.codes[s];
      if (!code) return;
      const uint32_t width = load_lane(rows[s], code, team.lane, z);
      if (at_once) put_codes(out, codes + memory.parts[MASKS][s], code, width, team.lane);
      put_lane(out, z, width, 8 * (low + memory.parts[LOW][s] + sum_before(width, team.lane)));
    });
  }

 private:
  template <class Function>
  static __device__ __forceinline__ void for_each(Function f) {
#pragma unroll
    for (int i = 0; i < EIGHT; ++i) f(i);
  }
  static __device__ __forceinline__ uint32_t mask_of(uint32_t width) {
    return width ? ALL >> (32 - width) : 0u;
  }
  static __device__ __forceinline__ uint32_t width_for(const uint32_t* z) {
    uint32_t any = 0;
    for_each([&](int i) { any |= z[i]; });
    return 32 - (uint32_t)__clz((int)any);
  }
  // A lane's integers, and the bits of each of them in what is written.
  static __device__ __forceinline__ uint32_t load_lane(const Row& row, uint32_t code, int lane, uint32_t* z) {
    load_row(row, lane, z);
    const uint32_t needed = width_for(z);
    return needed ? larger(needed, (code & BASE) + 1) : 0;
  }
  // Bits of each of a lane's integers in what is received.
  static __device__ __forceinline__ uint32_t width_of(const Received& in, int s, const SlotMemory& memory,
                                                      int lane) {
    const uint32_t code = memory.codes[s];
    if (!code) return 0;
    const uint32_t own = in.from(8 * memory.parts[MASKS][s] + LANE_BITS * lane) & 7;
    return own ? smaller((code & BASE) + own, 32u) : 0;
  }

  static __device__ __forceinline__ void read_headers(const Received& in, SlotMemory& memory,
                                                      const Team& team) {
    uint32_t at = (uint32_t)head_bytes(team.num), total;
    const uint32_t number = in.word(0) & (STEP_CODES - 1);
#pragma unroll 1
    for (int first = 0; first < team.num; first += WARP) {
      const int s = first + team.lane;
      const uint32_t header = s < team.num ? in.byte(4 + s) : 0, filled = header & FILLED;
      const uint32_t codes_at = at + sum_before(filled ? CODES / 8 : 0, team.lane, total);
      at += total;
      if (s >= team.num) continue;
      memory.codes[s] = filled ? header & (FILLED | BASE) : 0;
      memory.parts[MASKS][s] = codes_at;
      memory.shifts[s] = (number + (header >> 6)) & 0xffu;
      memory.marks[s] = filled ? 0 : header & BASE;
    }
    if (team.lane == 0) memory.first = at, memory.number = number;
  }

  // The codes of a super-group's lanes, which are three words, from a byte on.
  static __device__ __forceinline__ void put_codes(Outgoing& out, uint32_t at, uint32_t code, uint32_t width,
                                                   int lane) {
    const uint32_t own = width ? width - (code & BASE) : 0, place = LANE_BITS * lane;
    const uint32_t low = own << place % 32, high = __funnelshift_l(own, 0, place % 32);
#pragma unroll
    for (uint32_t k = 0; k < CODES / 32; ++k) {
      const uint32_t word = __reduce_or_sync(ALL, place / 32 == k ? low : place / 32 + 1 == k ? high : 0u);
      if (lane == 0) out.put_word(at / 4 + k, word);
    }
  }
  // A lane's integers, from a bit on.
  static __device__ __forceinline__ void put_lane(Outgoing& out, const uint32_t* z, uint32_t width,
                                                  uint32_t at) {
    if (__ballot_sync(ALL, width > 8)) {
      for_each([&](int i) { out.add_word(at + i * width, z[i]); });
      return;
    }
    uint64_t word = 0;
    for_each([&](int i) { word |= (uint64_t)z[i] << i * width; });
    out.add_word(at, (uint32_t)word);
    if (word >> 32) out.add_word(at + 32, (uint32_t)(word >> 32));
  }
};

}  // namespace lattice
}  // namespace gradwire_cuda
