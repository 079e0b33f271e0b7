// What a warp finds out about its next rows before it encodes them, a lane for each row: what is the same for
// all lanes of a row is computed once instead of by each of them.
#pragma once
#include "dynamiq_lane.h"

namespace gradwire_cuda {

// A row that is encoded: its super-group of the bucket, the mean that is subtracted, what its groups' private
// random words follow from, and σ, the worker's place in the order of the workers; its slot, its number in
// the chunk, and how far behind the first one it is kept.
struct alignas(16) Row {
  int32_t super_group;
  float mean;
  uint32_t private_base, order;
  int32_t slot, number, place;
};

// The rows that a warp prepares at a time: those of its pair t at 2t and 2t + 1. Behind the last ones of a
// width there is another slot. Behind all of them there is none, and `number` is the first pair to come.
template <int PAIRS>
struct Rows {
  Row rows[2 * PAIRS + 2];
};

// A lane has a row; beside the costs of codebooks there is less room in shared memory.
template <class Shared>
constexpr int PREPARED = sizeof(Shared) == sizeof(CodebookTables) ? 4 : WARP / 2;

template <class Shared>
struct RowsOfWarps {
  Rows<PREPARED<Shared>> of[WARPS];
};

// σ, the worker's place in the order of the workers.
__device__ __forceinline__ uint32_t worker_order(const gradwire_dynamiq& args, Key key,
                                                 uint32_t super_group) {
  const uint32_t base = order_base(super_group, key), own = order_hash(base, args.rank);
  uint32_t order = 0;
#pragma unroll 4
  for (uint32_t worker = 0; worker < args.workers; ++worker) order += order_hash(base, worker) < own;
  return order;
}

__device__ __forceinline__ void put_end(Row& row, int32_t place, int32_t next) {
  row.slot = WIDTH_SLOTS;
  row.number = next;
  row.place = place;
}

// The rows of the warp's pairs from `pair` on.
template <int PAIRS>
__device__ __forceinline__ void prepare(Row* rows, const Plan& plan, const gradwire_dynamiq& args, Key key,
                                        int32_t pair) {
  const int lane = lane_of_thread();
  const int32_t next = pair + PAIRS * plan.stride;
  pair += lane / 2 * plan.stride;
  int slot = 0;
#pragma unroll
  for (int i = 1; i <= WIDTH_SLOTS; ++i) slot += pair >= plan.pairs[i];
  __syncwarp();  // until nobody reads those before
  if (lane < 2) put_end(rows[2 * PAIRS + lane], 2 * PAIRS, next);
  if (lane < 2 * PAIRS && slot == WIDTH_SLOTS) put_end(rows[lane], lane & ~1, next);
  if (lane < 2 * PAIRS && slot < WIDTH_SLOTS) {
    const int32_t number = smaller(plan.firsts[slot] + 2 * pair + lane % 2, plan.lasts[slot]),
                  super_group = args.order[number];
    rows[lane] = {super_group,
                  args.gather ? args.mean[number] : 0.0f,
                  private_base((uint32_t)super_group, args.rank, key),
                  args.correlated ? worker_order(args, key, (uint32_t)super_group) : 0u,
                  slot,
                  number,
                  lane & ~1};
  }
  __syncwarp();
}

}  // namespace gradwire_cuda
