// A slot, which a block has: what its warps share, what is received, and what is written on its way out.
#pragma once
#include "lattice_row.h"

namespace gradwire_cuda {
inline namespace lattice {

constexpr int SLOT_WARPS = 16, SLOT_THREADS = SLOT_WARPS * WARP;
constexpr uint32_t STAGE = SLOT_WARPS * SUPER_GROUP, SECTOR = 8;  // words

// Where each super-group's parts of a slot begin, and in the end where they all end.
enum Part { MASKS, LOW, UNARY, ESCAPES, PARTS };
typedef uint32_t Places[MOST_SUPER_GROUPS + 1];

struct alignas(16) SlotMemory {
  uint32_t stage[STAGE];  // places of ones, or what is to be written
  Places parts[PARTS];
  Places ones, starts;  // how many come before each super-group, and the bit where its first number begins
  uint32_t codes[MOST_SUPER_GROUPS], bits[MOST_SUPER_GROUPS], after[MOST_SUPER_GROUPS];
  uint32_t shifts[MOST_SUPER_GROUPS], marks[MOST_SUPER_GROUPS], targets[MOST_SUPER_GROUPS];
  uint32_t warps[2][SLOT_WARPS];
  uint32_t first, any, number;
};
typedef Row SlotRows[MOST_SUPER_GROUPS];

// One of each for all kernels: the emulation spoils every variable before every block.
__device__ inline SlotMemory& slot_memory() {
  GRADWIRE_SHARED(SlotMemory, memory);
  return memory;
}
__device__ inline SlotRows& slot_rows() {
  GRADWIRE_LARGE_SHARED(SlotRows, rows);
  return rows;
}

// How a super-group is coded; the lengths are of its parts, in the parts' units. `bits` count the header too.
struct Choice {
  uint32_t code, bits, lengths[PARTS];
};

// A thread's place, and the slot's super-groups.
struct Team {
  int lane, warp, num;
};

__device__ __forceinline__ void keep(SlotMemory& memory, int s, const Choice& choice, int lane) {
  if (lane) return;
  memory.codes[s] = choice.code;
  memory.bits[s] = choice.bits;
#pragma unroll
  for (int part = 0; part < PARTS; ++part) memory.parts[part][s] = choice.lengths[part];
}

// From lengths to where parts begin; by one warp.
__device__ __forceinline__ void add_up(Places& places, const Team& team) {
  uint32_t before = 0, total;
#pragma unroll 1
  for (int first = 0; first < team.num; first += WARP) {
    const int s = first + team.lane;
    const uint32_t at = before + sum_before(s < team.num ? places[s] : 0, team.lane, total);
    if (s < team.num) places[s] = at;
    before += total;
  }
  if (team.lane == 0) places[team.num] = before;
}

// The bits of a slot whose super-groups take as many.
__device__ __forceinline__ uint32_t slot_bits(const uint32_t* bits, const Team& team) {
  uint32_t sum = 0;
#pragma unroll 1
  for (int s = team.lane; s < team.num; s += WARP) sum += bits[s];
  return __reduce_add_sync(ALL, sum) + (uint32_t)fixed_bits(team.num);
}
__device__ __forceinline__ uint32_t least_shift(const SlotMemory& memory, const Team& team) {
  uint32_t least = ALL;
#pragma unroll 1
  for (int s = team.lane; s < team.num; s += WARP) least = smaller(least, memory.shifts[s]);
  return __reduce_min_sync(ALL, least);
}

// A slot in the device's memory; beyond its end there are zeros.
struct Received {
  const uint32_t* words;
  uint32_t count;

  __device__ __forceinline__ uint32_t word(uint32_t i) const { return i < count ? words[i] : 0; }
  __device__ __forceinline__ uint32_t byte(uint32_t i) const {
    return i < 4 * count ? reinterpret_cast<const uint8_t*>(words)[i] : 0;
  }
  // The first word of the sector that has this one, possibly before the slot's first: what wraps is below 0.
  __device__ __forceinline__ uint32_t sector_of(uint32_t i) const {
    return i - (i + (uint32_t)((uintptr_t)words / 4)) % SECTOR;
  }
  // 32 bits from this one on.
  __device__ __forceinline__ uint32_t from(uint32_t bit) const {
    return __funnelshift_r(word(bit / 32), word(bit / 32 + 1), bit % 32);
  }
};
__device__ __forceinline__ Received received_slot(const gradwire_lattice& args, int64_t slot) {
  const uint32_t count = (uint32_t)args.size_in / 32;
  return {reinterpret_cast<const uint32_t*>(args.message_in) + slot * count, count};
}

// What is written, in a ring in shared memory. Whole sectors go to the device's memory as soon as the ring is
// full.
class Outgoing {
 public:
  __device__ __forceinline__ Outgoing(const gradwire_lattice& args, int64_t slot, uint32_t* ring)
      : ring_(ring), words_((uint32_t)args.size_out / 32) {
    out_ = reinterpret_cast<uint32_t*>(args.message_out) + slot * words_;
    offset_ = (uint32_t)((uintptr_t)out_ / 4 % SECTOR);
  }

  // Before anything is written; threads must meet then.
  __device__ __forceinline__ void clear() {
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < STAGE; i += SLOT_THREADS) ring_[i] = 0;
  }

  // Bytes and words that no other thread writes, until threads meet, and bits of words that others share.
  __device__ __forceinline__ void put_byte(uint32_t at, uint32_t byte) {
    reinterpret_cast<uint8_t*>(ring_)[at % (4 * STAGE)] = (uint8_t)byte;
  }
  __device__ __forceinline__ void put_word(uint32_t at, uint32_t word) { ring_[at % STAGE] = word; }
  __device__ __forceinline__ void add_bits(uint32_t at, uint32_t word) {
    if (word) atomicOr(&ring_[at % STAGE], word);
  }
  __device__ __forceinline__ void add_byte(uint32_t at, uint32_t byte) {
    add_bits(at / 4, byte << at % 4 * 8);
  }
  // Up to 32 bits, from this one on.
  __device__ __forceinline__ void add_word(uint32_t bit, uint32_t word) {
    add_bits(bit / 32, word << bit % 32);
    add_bits(bit / 32 + 1, __funnelshift_l(word, 0, bit % 32));
  }

  // put(s) of all super-groups, by a warp each, in turns for which there is room; `unit` bits are what
  // `places` count in, from the bit `first` on.
  template <class Put>
  __device__ __forceinline__ void put_all(const Places& places, uint32_t first, uint32_t unit,
                                          const Team& team, Put put) {
    for (int begin = 0; begin < team.num;) {
      const uint32_t room = 32 * (begin_ + STAGE);
      int end = 0;
#pragma unroll 1
      for (int k = 0; k < team.num; k += WARP) {
        const int s = k + team.lane;
        end += __popc(__ballot_sync(ALL, s < team.num && first + unit * places[s + 1] <= room));
      }
#pragma unroll 1
      for (int s = begin + team.warp; s < end; s += SLOT_WARPS) put(s);
      begin = end;
      if (begin < team.num) flush(first + unit * places[begin]);
    }
  }

  // The rest, of which nothing is written beyond this bit.
  __device__ __forceinline__ void finish(uint32_t bits) {
    __syncthreads();
    store(words_, (bits + 31) / 32);
  }

 private:
  // The sectors before this bit.
  __device__ __forceinline__ void flush(uint32_t bit) {
    __syncthreads();
    const uint32_t until = (bit / 32 + offset_) / SECTOR * SECTOR;
    if (until > begin_ + offset_) {
      store(until - offset_, until - offset_);
      begin_ = until - offset_;
    }
    __syncthreads();
  }
  // Words up to `until`, zeros from `end` on.
  __device__ __forceinline__ void store(uint32_t until, uint32_t end) {
    const uint32_t ahead = (begin_ + offset_) % SECTOR;  // so that a warp's words are whole sectors
#pragma unroll 1
    for (uint32_t i = begin_ + threadIdx.x - ahead; (int32_t)(until - i) > 0; i += SLOT_THREADS) {
      if ((int32_t)(i - begin_) < 0 || i >= words_) continue;
      uint32_t word = 0;
      if (i < end) {
        word = ring_[i % STAGE];
        ring_[i % STAGE] = 0;
      }
      out_[i] = word;
    }
  }

  uint32_t *const ring_, *out_;
  const uint32_t words_;
  uint32_t offset_, begin_ = 0;
};

}  // namespace lattice
}  // namespace gradwire_cuda
