// Rice codes of a slot's super-groups (codecs/lattice/rice.py defines them), a warp to each.
#pragma once
#include "lattice_unary.h"

namespace gradwire_cuda {
inline namespace lattice {

// A super-group's code as a word: by group two bits, 0 if it is not coded, else 1 more than what is added to
// the parameter, which follows in four bits, and the mode in two.
__device__ __forceinline__ uint32_t coded_groups(uint32_t code) { return (code | code >> 1) & 0x5555u; }
__device__ __forceinline__ uint32_t coded_count(uint32_t code) { return __popc(coded_groups(code)); }
// The parameter of a lane's group, 0 if it is not coded.
__device__ __forceinline__ bool parameter_of(uint32_t code, int lane, uint32_t& r) {
  const uint32_t own = code >> lane / 4 * 2 & 3;
  r = own ? (code >> 16 & 15) + own - 1 : 0;
  return own != 0;
}
__device__ __forceinline__ uint32_t low_bytes(uint32_t code) {
  const uint32_t added = __popc(code & 0x5555u) + 2 * __popc(code & 0xaaaau) - coded_count(code);
  return RICE_GROUP / 8 * (coded_count(code) * (code >> 16 & 15) + added);
}

// From every fourth bit of 32 to every other one of 16.
__device__ __forceinline__ uint32_t by_two(uint32_t lanes) {
  uint32_t bits = lanes & 0x11111111u;
  bits = (bits | bits >> 2) & 0x05050505u;
  bits = (bits | bits >> 4) & 0x00550055u;
  return (bits | bits >> 8) & 0x5555u;
}
// From eight bits to every other one of 16, and back.
__device__ __forceinline__ uint32_t spread(uint32_t byte) {
  byte = (byte | byte << 4) & 0x0f0fu;
  byte = (byte | byte << 2) & 0x3333u;
  return (byte | byte << 1) & 0x5555u;
}
__device__ __forceinline__ uint32_t gathered(uint32_t bits) {
  bits = (bits | bits >> 1) & 0x3333u;
  bits = (bits | bits >> 2) & 0x0f0fu;
  return (bits | bits >> 4) & 0xffu;
}

// The parameter for `sum`, less than 2^30, of numbers whose mean is sum / count.
__device__ __forceinline__ uint32_t rice_parameter(uint32_t sum, uint32_t count) {
  int r = __clz((int)count) - __clz((int)sum);
  if (r >= 0 && count << r > sum) --r;
  return sum && r > 0 ? smaller((uint32_t)r, (uint32_t)LARGEST_R) : 0u;
}

// What a lane's unary codes take without their ones: bits in the lower half, escapes in the upper one. `any`
// has all of the numbers' bits: where it is small nothing escapes.
__device__ __forceinline__ uint32_t unary_sum(const uint32_t* z, uint32_t any, uint32_t r) {
  uint32_t sum = 0;
  if (!__ballot_sync(ALL, any >> r >= (uint32_t)RICE_ESCAPE)) {
#pragma unroll
    for (int i = 0; i < EIGHT; ++i) sum += z[i] >> r;
    return sum;
  }
#pragma unroll
  for (int i = 0; i < EIGHT; ++i) {
    const uint32_t zeros = z[i] >> r;
    sum += zeros < (uint32_t)RICE_ESCAPE ? zeros : 1u << 16 | (uint32_t)RICE_ESCAPE;
  }
  return sum;
}
__device__ __forceinline__ uint32_t bits_of_sum(uint32_t sum) { return (sum & 0xffffu) + 32 * (sum >> 16); }

struct RiceCode {
  // Reads what there is besides the numbers: the same for all threads, which meet in the end.
  static __device__ __forceinline__ void open(const Received& in, SlotMemory& memory, const Team& team) {
    if (team.warp == 0) read_headers(in, memory, team);
    __syncthreads();
    if (stream_byte(memory, team) <= 4 * in.count)
      find_starts(in, 8 * stream_byte(memory, team), memory, team);
  }

  // The lane's integers of a super-group; INT32_MIN stands for what escapes, which memory.any tells of.
  static __device__ __forceinline__ void read(const Received& in, int s, SlotMemory& memory, const Team& team,
                                              int32_t* q) {
#pragma unroll
    for (int i = 0; i < EIGHT; ++i) q[i] = 0;
    const uint32_t code = memory.codes[s];
    uint32_t escapes = 0;
    // What was not written as a slot may say that there is more than it has.
    if (coded_groups(code) && stream_byte(memory, team) <= 4 * in.count) {
      uint32_t r, *const places = memory.stage + team.warp * SUPER_GROUP;
      const bool coded = parameter_of(code, team.lane, r);
      const uint32_t at = memory.first + memory.parts[LOW][s] + sum_before(r, team.lane);
      find_ones(in, memory.starts[s], RICE_GROUP * coded_count(code), team.lane, places);
      uint32_t low[EIGHT];
      load_low(in, at, r, low);
      __syncwarp();
      if (coded) escapes = join(low, r, memory.starts[s], places, first_of(code, team.lane), q);
      __syncwarp();
    }
    escapes = __reduce_add_sync(ALL, escapes);
    if (team.lane == 0) {
      memory.parts[ESCAPES][s] = escapes;
      if (escapes) memory.any = 1;
    }
  }

  // Puts what has escaped in its place. All threads have met since they read.
  static __device__ __forceinline__ void read_escapes(const Received& in, SlotRows& rows, SlotMemory& memory,
                                                      const Team& team) {
    if (!memory.any) return;
    if (team.warp == 0) add_up(memory.parts[ESCAPES], team);
    __syncthreads();
#pragma unroll 1
    for (int s = team.warp; s < team.num; s += SLOT_WARPS) {
      int32_t q[EIGHT];
      uint32_t own = 0;
      load_row(rows[s], team.lane, q);
#pragma unroll
      for (int i = 0; i < EIGHT; ++i) own += q[i] == INT32_MIN;
      uint32_t before = memory.parts[ESCAPES][s] + sum_before(own, team.lane);
#pragma unroll
      for (int i = 0; i < EIGHT; ++i)
        if (q[i] == INT32_MIN) q[i] = unzigzag(in.from(memory.starts[team.num] + 32 * before++));
      store_row(rows[s], team.lane, q);
    }
  }

  // The shortest code of a super-group; of equally long ones the first. The same for all lanes.
  static __device__ __forceinline__ Choice choose(const uint32_t* z, int lane) {
    // Larger numbers change nothing: the parameter of a mean above 2^12 is LARGEST_R.
    constexpr uint32_t MANY = 1 << 21;
    uint32_t sum = 0, any = 0;
#pragma unroll
    for (int i = 0; i < EIGHT; ++i) sum += z[i], any |= z[i];
    if (any >= MANY) sum = MANY;
    sum += __shfl_xor_sync(ALL, sum, 1);
    sum += __shfl_xor_sync(ALL, sum, 2);
    const uint32_t filled = __ballot_sync(ALL, sum != 0), number = __popc(filled) / 4;
    if (!filled) return {0, 8, {}};
    const uint32_t total = __reduce_add_sync(ALL, lane % 4 ? 0 : sum);
    const uint32_t whole = rice_parameter(total, SUPER_GROUP);
    const uint32_t masked = rice_parameter(total, RICE_GROUP * number);
    uint32_t several = rice_parameter(sum, RICE_GROUP);
    const uint32_t least = __reduce_min_sync(ALL, sum ? several : (uint32_t)LARGEST_R);
    several = smaller(several, least + 2);

    const uint32_t of_lane = unary_sum(z, any, whole), one_sum = __reduce_add_sync(ALL, of_lane);
    uint32_t some_sum = one_sum, each_lane = of_lane;
    if (masked != whole) some_sum = __reduce_add_sync(ALL, unary_sum(z, any, masked));
    if (__ballot_sync(ALL, sum && several != whole)) each_lane = unary_sum(z, any, several);
    const uint32_t each_sum = __reduce_add_sync(ALL, each_lane),
                   each_low = __reduce_add_sync(ALL, sum ? EIGHT * (several + 1) : 0);
    const uint32_t one = bits_of_sum(one_sum) + SUPER_GROUP * (whole + 1);
    const uint32_t some = 8 + bits_of_sum(some_sum) + RICE_GROUP * number * (masked + 1);
    const uint32_t each = 16 + bits_of_sum(each_sum) + each_low;
    const uint32_t length = smaller(smaller(one, some), each);

    uint32_t code, taken;
    if (one == length) {
      code = 0x5555u | whole << 16 | 1u << 20, taken = one_sum;
    } else if (some == length) {
      code = by_two(filled) | masked << 16 | 2u << 20, taken = some_sum;
    } else {
      const uint32_t own = sum ? several - least + 1 : 0;
      const uint32_t low = by_two(__ballot_sync(ALL, own & 1)), high = by_two(__ballot_sync(ALL, own & 2));
      code = low | high << 1 | least << 16 | 3u << 20, taken = each_sum;
    }
    const uint32_t mode = code >> 20;
    return {code,
            8 + length,
            {mode - 1, low_bytes(code), (taken & 0xffffu) + RICE_GROUP * coded_count(code), taken >> 16}};
  }

  static __device__ __forceinline__ uint32_t header_of(uint32_t code, uint32_t mark) {
    return code >> 20 | (code ? code >> 16 & 15 : mark) << 2;
  }

  // Writes all but headers.
  static __device__ __forceinline__ void write(Outgoing& out, const SlotRows& rows, const SlotMemory& memory,
                                               const Team& team) {
    const uint32_t head = (uint32_t)head_bytes(team.num);
    if ((int)threadIdx.x < team.num) {
      const uint32_t code = memory.codes[threadIdx.x], mode = code >> 20,
                     at = head + memory.parts[MASKS][threadIdx.x];
      if (mode > 1) out.add_byte(at, mode == 2 ? gathered(code & 0x5555u) : code & 0xffu);
      if (mode == 3) out.add_byte(at + 1, code >> 8 & 0xffu);
    }
    const uint32_t low = head + memory.parts[MASKS][team.num], unary = low + memory.parts[LOW][team.num],
                   escapes = 8 * unary + memory.parts[UNARY][team.num];
    out.put_all(memory.parts[LOW], 8 * low, 8, team, [&](int s) {
      uint32_t z[EIGHT], r;
      parameter_of(memory.codes[s], team.lane, r);
      const uint32_t at = low + memory.parts[LOW][s] + sum_before(r, team.lane);
      load_row(rows[s], team.lane, z);
      put_low(out, z, r, at);
    });
    out.put_all(memory.parts[UNARY], 8 * unary, 1, team, [&](int s) {
      uint32_t z[EIGHT], r, sum = EIGHT;
      const bool coded = parameter_of(memory.codes[s], team.lane, r);
      load_row(rows[s], team.lane, z);
#pragma unroll
      for (int i = 0; i < EIGHT; ++i) sum += z[i] = smaller(z[i] >> r, (uint32_t)RICE_ESCAPE);
      if (!coded) sum = 0;
      put_ones(out, z, 8 * unary + memory.parts[UNARY][s] + sum_before(sum, team.lane), sum);
    });
    if (memory.parts[ESCAPES][team.num])
      out.put_all(memory.parts[ESCAPES], escapes, 32, team, [&](int s) {
        uint32_t z[EIGHT], r, own = 0;
        const bool coded = parameter_of(memory.codes[s], team.lane, r);
        load_row(rows[s], team.lane, z);
#pragma unroll
        for (int i = 0; i < EIGHT; ++i) own += coded && z[i] >> r >= (uint32_t)RICE_ESCAPE;
        uint32_t at = escapes + 32 * (memory.parts[ESCAPES][s] + sum_before(own, team.lane));
#pragma unroll
        for (int i = 0; i < EIGHT; ++i) {
          if (!coded || z[i] >> r < (uint32_t)RICE_ESCAPE) continue;
          out.add_bits(at / 32, z[i] << at % 32);
          if (at % 32) out.add_bits(at / 32 + 1, z[i] >> (32 - at % 32));
          at += 32;
        }
      });
  }

 private:
  // The byte that unary codes begin at.
  static __device__ __forceinline__ uint32_t stream_byte(const SlotMemory& memory, const Team& team) {
    return memory.first + memory.parts[LOW][team.num];
  }
  // The lane's first number among those of its super-group.
  static __device__ __forceinline__ uint32_t first_of(uint32_t code, int lane) {
    const uint32_t before = coded_groups(code) & ((1u << lane / 4 * 2) - 1);
    return RICE_GROUP * __popc(before) + lane % 4 * EIGHT;
  }

  static __device__ __forceinline__ void read_headers(const Received& in, SlotMemory& memory,
                                                      const Team& team) {
    uint32_t at = (uint32_t)head_bytes(team.num), low = 0, ones = 0, total;
    const uint32_t number = in.word(0) & (STEP_CODES - 1);
#pragma unroll 1
    for (int first = 0; first < team.num; first += WARP) {
      const int s = first + team.lane;
      const uint32_t header = s < team.num ? in.byte(4 + s) : 0, mode = header & 3, r = header >> 2 & 15,
                     bytes = mode > 1 ? mode - 1 : 0;
      const uint32_t mask_at = at + sum_before(bytes, team.lane, total);
      at += total;
      uint32_t code = mode == 1 ? 0x5555u : 0;
      if (mode == 2) code = spread(in.byte(mask_at));
      if (mode == 3) code = in.byte(mask_at) | in.byte(mask_at + 1) << 8;
      if (mode) code |= smaller(r, (uint32_t)LARGEST_R) << 16 | mode << 20;
      const uint32_t low_at = low + sum_before(low_bytes(code), team.lane, total);
      low += total;
      const uint32_t ones_at = ones + sum_before(RICE_GROUP * coded_count(code), team.lane, total);
      ones += total;
      if (s >= team.num) continue;
      memory.codes[s] = code;
      memory.parts[LOW][s] = low_at;
      memory.ones[s] = ones_at;
      memory.starts[s] = 32 * in.count;
      memory.shifts[s] = (number + (header >> 6)) & 0xffu;
      memory.marks[s] = mode ? 0 : r;
    }
    if (team.lane) return;
    memory.parts[LOW][team.num] = low;
    memory.ones[team.num] = ones;
    memory.starts[team.num] = 32 * in.count;
    memory.first = at;
    memory.any = 0;
    memory.number = number;
  }

  // The lane's integers from the places of their ones and low bits; returns how many escape.
  static __device__ __forceinline__ uint32_t join(const uint32_t* low, uint32_t r, uint32_t start,
                                                  const uint32_t* places, uint32_t first, int32_t* q) {
    uint32_t before = first ? places[first - 1] : start - 1, escapes = 0;
    const uint4* const fours = reinterpret_cast<const uint4*>(places + first);
    const uint4 one = fours[0], other = fours[1];
    const uint32_t found[EIGHT] = {one.x, one.y, one.z, one.w, other.x, other.y, other.z, other.w};
#pragma unroll
    for (int i = 0; i < EIGHT; ++i) {
      const uint32_t zeros = found[i] - before - 1;
      before = found[i];
      q[i] = zeros < (uint32_t)RICE_ESCAPE ? unzigzag(zeros << r | low[i]) : INT32_MIN;
      escapes += zeros >= (uint32_t)RICE_ESCAPE;
    }
    return escapes;
  }
};

}  // namespace lattice
}  // namespace gradwire_cuda
