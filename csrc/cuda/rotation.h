// Transforms blocks of any size (gradwire/walsh.h) in one pass over memory, or in two if they are larger than
// a tile. What the values are before and after is a Work's, which a kernel makes for itself:
//
//     Blocks blocks;
//     float* between;                                         // room for values on the way, as many as all
//     bool vectors;                                           // whether it begins at a multiple of 16 bytes
//     void load(const Place&, float (&v)[GROUPS][4]) const;
//     void finish(const Place&, float (&v)[GROUPS][4]) const; // transformed, not yet scaled
//
// A tile is 2^14 values, 32 to a thread: GROUPS times four consecutive ones. Which bits of a group's number
// in the tile tell groups of one thread apart is its layout: bits `low`, `low` + 1 and `low` + 2. A thread
// takes its values through the stages that pair these, then threads exchange values for the next three bits.
// Half of a tile goes through shared memory at a time.
#pragma once
#include "gradwire/walsh.h"
#include "launch.h"

namespace gradwire_cuda {
using namespace gradwire;

enum {
  TILE_LOG = 14,
  TILE = 1 << TILE_LOG,
  GROUP_BITS = TILE_LOG - 2,  // of the number of a group in the tile
  GROUPS = 8,
  TILE_THREADS = TILE / (4 * GROUPS),
  OUTER = GROUP_BITS - 3,  // the layout in which the groups of a warp are consecutive
};

// Returns `value` so that the compiler takes it for another: what depends on it is computed again instead of
// being kept in registers, of which there are too few.
__device__ __forceinline__ int64_t unrelated(int64_t value) { return ptx::opaque(value); }
// The number in the tile of a thread's first group; the others differ from it in three bits.
__device__ __forceinline__ int first_group(int low) {
  const int thread = (int)threadIdx.x;
  return (thread >> low << (low + 3)) | (thread & ((1 << low) - 1));
}

// Where a tile is: consecutive values, the groups of a thread in the layout OUTER,
struct Consecutive {
  int64_t first;
  __device__ __forceinline__ static int local(int group) {
    return (int)(4u * (threadIdx.x + (unsigned)(group * TILE_THREADS)));
  }
  __device__ __forceinline__ int64_t of(int group) const { return first + (unsigned)local(group); }
  // How many of `total` values are in the tile.
  __device__ __forceinline__ int count(int64_t total) const {
    return (int)smaller(total - first, (int64_t)TILE);
  }
};
// of one block,
struct Whole : Consecutive {
  static constexpr bool one_block = true;
  __device__ __forceinline__ bool has(int) const { return true; }
};
// of several, that the tile may be larger than,
struct Mixed : Consecutive {
  int64_t total;
  static constexpr bool one_block = false;
  __device__ __forceinline__ bool has(int group) const { return of(group) < total; }
};
// or rows of 2^columns_log consecutive values of one block each, that lie in tiles one after another.
struct Columns {
  int64_t first;
  int32_t columns_log;
  static constexpr bool one_block = true;
  __device__ __forceinline__ static int local(int) { return 0; }
  __device__ __forceinline__ int64_t of(int group, int low = OUTER) const {
    const int local = 4 * (first_group(low) | group << low), row = local >> columns_log;
    return first + ((int64_t)row << TILE_LOG) + (local - (row << columns_log));
  }
  __device__ __forceinline__ static int count(int64_t) { return TILE; }
  __device__ __forceinline__ bool has(int) const { return true; }
};

// A tile in memory: what lies beyond `total` values is read as zeros and not written.
template <class T, class Place>
__device__ __forceinline__ void load_tile(const T* source, int64_t total, bool aligned, const Place& place,
                                          float (&v)[GROUPS][4]) {
  const int count = place.count(total);
  if (aligned && count == TILE) {
#pragma unroll
    for (int i = 0; i < GROUPS; ++i) load_four(source + place.of(i), v[i]);
    return;
  }
#pragma unroll
  for (int i = 0; i < GROUPS; ++i)
#pragma unroll
    for (int k = 0; k < 4; ++k)
      v[i][k] = place.local(i) + k < count ? gradwire::load(source + place.of(i) + k) : 0.0f;
}
__device__ __forceinline__ void store_four(float* target, const float* values) {
  ptx::st_global_v4(target, bits_of(values[0]), bits_of(values[1]), bits_of(values[2]), bits_of(values[3]));
}
__device__ __forceinline__ void store_four(uint16_t* target, const float* values) {
  uint32_t words[2];
#pragma unroll
  for (int i = 0; i < 2; ++i)
    words[i] = (uint32_t)to_bfloat16(values[2 * i]) | (uint32_t)to_bfloat16(values[2 * i + 1]) << 16;
  ptx::st_global_v2(target, words[0], words[1]);
}
template <class Place>
__device__ __forceinline__ void store_tile(float* target, int64_t total, bool aligned, const Place& place,
                                           const float (&v)[GROUPS][4]) {
  const int count = place.count(total);
  if (aligned && count == TILE) {
#pragma unroll
    for (int i = 0; i < GROUPS; ++i) store_four(target + place.of(i), v[i]);
    return;
  }
#pragma unroll
  for (int i = 0; i < GROUPS; ++i)
#pragma unroll
    for (int k = 0; k < 4; ++k)
      if (place.local(i) + k < count) target[place.of(i) + k] = v[i][k];
}

struct alignas(16) Exchanged {
  float2 pairs[TILE / 4];
};
// Where in shared memory a group's pair is: 16 lanes find 16 different banks in every layout. Linear over
// bits.
__device__ __forceinline__ int bank_order(int group) { return group ^ (group >> 3 & 14) ^ (group >> 6 & 1); }

// The places of a thread's groups in a layout.
struct Places {
  __device__ __forceinline__ explicit Places(int low)
      : first(bank_order(first_group(low))),
        one(bank_order(1 << low)),
        two(bank_order(2 << low)),
        four(bank_order(4 << low)) {}
  __device__ __forceinline__ int of(int i) const {
    return first ^ ((i & 1 ? one : 0) ^ (i & 2 ? two : 0) ^ (i & 4 ? four : 0));
  }
  int first, one, two, four;
};
__device__ __forceinline__ void exchange(float (&v)[GROUPS][4], int from, int to) {
  GRADWIRE_SHARED(Exchanged, room);
  const Places source(from), target(to);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    __syncthreads();
#pragma unroll
    for (int i = 0; i < GROUPS; ++i)
      room.pairs[source.of(i)] = make_float2(v[i][2 * half], v[i][2 * half + 1]);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < GROUPS; ++i) {
      const float2 pair = room.pairs[target.of(i)];
      v[i][2 * half] = pair.x;
      v[i][2 * half + 1] = pair.y;
    }
  }
}

__device__ __forceinline__ void butterfly(float& a, float& b) {
  const float sum = add(a, b);
  b = sub(a, b);
  a = sum;
}

// Three stages pair groups of one thread; these are the ones that pair bits `begin` … `end` − 1 of their
// numbers. If not WHOLE, only what lies within the first `groups` groups is paired.
template <bool WHOLE>
__device__ __forceinline__ void transform_groups(float (&v)[GROUPS][4], int low, int begin, int end,
                                                 int groups) {
#pragma unroll
  for (int stage = 0; stage < 3; ++stage) {
    const int paired = low + stage;
    if (paired < begin || paired >= end) continue;
#pragma unroll
    for (int i = 0; i < GROUPS; ++i) {
      if (i >> stage & 1) continue;
      if (!WHOLE && (((first_group(low) | i << low) >> paired) + 2) << paired > groups) continue;
#pragma unroll
      for (int k = 0; k < 4; ++k) butterfly(v[i][k], v[i | 1 << stage][k]);
    }
  }
}
// All stages that pair bits `begin` … `end` − 1, from layout `low` on; in layout OUTER at the end.
template <bool WHOLE>
__device__ __forceinline__ void transform_bits(float (&v)[GROUPS][4], int low, int begin, int end,
                                               int groups) {
#pragma unroll 1
  for (int bit = begin; bit < end;) {
    const int next = smaller(bit, (int)OUTER);
    if (next != low) exchange(v, low, next);
    low = next;
    if (WHOLE && low == bit && low + 3 <= end)
      transform_groups<WHOLE>(v, low, low, low + 3, groups);
    else
      transform_groups<WHOLE>(v, low, bit, end, groups);
    bit = low + 3;
  }
  if (low != OUTER) exchange(v, low, OUTER);
}

// The first `log` stages of a tile, of whose last blocks there may be fewer.
__device__ __forceinline__ void transform_within_groups(float (&v)[GROUPS][4], int log) {
#pragma unroll
  for (int i = 0; i < GROUPS; ++i) {
    if (log > 0) butterfly(v[i][0], v[i][1]), butterfly(v[i][2], v[i][3]);
    if (log > 1) butterfly(v[i][0], v[i][2]), butterfly(v[i][1], v[i][3]);
  }
}
__device__ __forceinline__ void transform_tile(float (&v)[GROUPS][4]) {
  transform_within_groups(v, 2);
#pragma unroll
  for (int low = 0; low <= OUTER; low += 3) {
    exchange(v, low ? low - 3 : (int)OUTER, low);
    transform_groups<true>(v, low, low, low + 3, 0);
  }
}
__device__ __forceinline__ void transform_mixed_tile(float (&v)[GROUPS][4], int log, int groups) {
  transform_within_groups(v, log);
  transform_bits<false>(v, OUTER, 0, log - 2, groups);
}

// The first pass: blocks that a tile holds are finished in it, of larger ones so many stages as it holds.
template <class Work>
__device__ __forceinline__ void rotate_near(const Work& work) {
  const int64_t first = (int64_t)blockIdx.x * TILE, total = work.blocks.total;
  float v[GROUPS][4];
  if (work.blocks.log < TILE_LOG || total - first < TILE) {
    const Mixed place{{first}, total};
    work.load(place, v);
    const int groups = (int)smaller(total - first, (int64_t)TILE) / 4;
    transform_mixed_tile(v, smaller(work.blocks.log, (int)TILE_LOG), groups);
    return work.finish(Mixed{{unrelated(first)}, total}, v);
  }
  work.load(Whole{{first}}, v);
  transform_tile(v);
  const Whole place{{unrelated(first)}};
  if (log_at(work.blocks, first) == TILE_LOG)
    work.finish(place, v);
  else
    store_tile(work.between, total, work.vectors, place, v);
}

// The second pass: the other stages of blocks that are larger than a tile, on columns of their tiles.
template <class Work>
__device__ __forceinline__ void rotate_far(const Work& work) {
  const int64_t tile = blockIdx.x;
  const int log = log_at(work.blocks, tile * TILE);
  if (log <= TILE_LOG) return;
  const int columns_log = 2 * TILE_LOG - log, low = smaller(columns_log - 2, (int)OUTER);
  const int64_t start = start_of(tile * TILE, log), column = (tile - (start >> TILE_LOG)) << columns_log;
  const Columns place{start + column, columns_log};
  float v[GROUPS][4];
#pragma unroll
  for (int i = 0; i < GROUPS; ++i)
    if (work.vectors)
      load_four(work.between + place.of(i, low), v[i]);
    else
      load_some<4>(work.between + place.of(i, low), 4, v[i]);
  transform_bits<true>(v, low, columns_log - 2, GROUP_BITS, 0);
  work.finish(place, v);
}

// A thread block for each tile.
inline int tile_grid(const Blocks& blocks) { return (int)divide_up(blocks.total, TILE); }

}  // namespace gradwire_cuda
