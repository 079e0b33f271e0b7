// The sink of a chunk and what its message means: one block per slot, one warp per super-group at a time.
#include "gradwire/lattice.h"

#include "lattice_packed.h"
#include "lattice_rice.h"
#include "lattice_sums.h"

using namespace gradwire;
using namespace gradwire_cuda;

namespace {

__device__ __forceinline__ float step_of_code(uint32_t code, int sign) {
  return power_of_units(sign * UNITS_A_CODE * ((int32_t)code - FINEST));
}

// A super-group's integers with the step of `factor`; one that is marked is all zero.
__device__ __forceinline__ void round_row(const int64_t* order, Key key, const SlotRows& rows,
                                          const SlotMemory& memory, const Team& team, int s, float factor,
                                          int32_t* q) {
  uint32_t words[EIGHT];
  float v[EIGHT], noise[EIGHT];
  load_row(rows[s], team.lane, words);
  dithers_of(order[s], key, team.lane, noise);
  const bool marked = memory.marks[s] != 0;
#pragma unroll
  for (int i = 0; i < EIGHT; ++i) {
    v[i] = float_of(words[i]);
    if (marked) noise[i] = 0.0f;
  }
  rounded_down(v, factor, noise, q);
}

// The bits of the slot with this step. Every other call shares other memory among warps.
template <class Code>
__device__ __forceinline__ uint32_t bits_with(const int64_t* order, Key key, const SlotRows& rows,
                                              SlotMemory& memory, const Team& team, uint32_t code, int turn) {
  const float factor = step_of_code(code, -1);
  uint32_t own = 0;
#pragma unroll 1
  for (int s = team.warp; s < team.num; s += SLOT_WARPS) {
    int32_t q[EIGHT];
    uint32_t z[EIGHT];
    round_row(order, key, rows, memory, team, s, factor, q);
    zigzags_of(q, z);
    own += Code::choose(z, team.lane).bits;
  }
  uint32_t* const warps = memory.warps[turn % 2];
  if (team.lane == 0) warps[team.warp] = own;
  __syncthreads();
  const uint32_t all = __reduce_add_sync(ALL, team.lane < SLOT_WARPS ? warps[team.lane] : 0);
  return all + (uint32_t)fixed_bits(team.num);
}

// The finest step at which a slot fits.
template <class Code>
__global__ void __launch_bounds__(SLOT_THREADS, 2)
    seal(const GRADWIRE_GRID_CONSTANT gradwire_lattice args, bool vectors, bool sum_vectors) {
  SlotMemory& memory = slot_memory();
  SlotRows& rows = slot_rows();
  const Team team = team_of(args);
  const int64_t slot = blockIdx.x, first = slot * team.num;
  const int64_t* const order = args.order + first;
  const Key key = key_of(args.key_place, args.key0, args.key1);
  const float own = power_of_units(-*args.step - args.coarser),
              theirs = power_of_units(-(int64_t)args.coarser);
#pragma unroll 1
  for (int s = team.warp; s < team.num; s += SLOT_WARPS) {
    float x[EIGHT];
    int32_t q[EIGHT];
    uint32_t words[EIGHT];
    const uint32_t shift = args.shifts[first + s],
                   mark = joined_marks(load_super_group(args, order[s], vectors, team.lane, x),
                                       args.marks[first + s]);
    load_eight(args.sums + (first + s) * SUPER_GROUP, sum_vectors, team.lane, q);
#pragma unroll
    for (int i = 0; i < EIGHT; ++i)
      words[i] = mark ? 0u : bits_of(add(mul(x[i], own), mul(whole_of(q[i], shift), theirs)));
    store_row(rows[s], team.lane, words);
    if (team.lane == 0) memory.marks[s] = mark, memory.shifts[s] = 0;
  }
  __syncwarp();
  const uint32_t wanted = bits_with<Code>(order, key, rows, memory, team, FINEST, 0);
  if (threadIdx.x == 0) args.wanted[slot] = wanted;
  int32_t low = -1, high = STEP_CODES - 1;
  for (int turn = 1; turn <= NUMBER_BITS; ++turn) {
    const int32_t middle = (low + high) >> 1;
    const uint32_t bits = bits_with<Code>(order, key, rows, memory, team, (uint32_t)middle, turn);
    (bits <= (uint32_t)args.size_out ? high : low) = middle;
  }
#pragma unroll 1
  for (int s = team.warp; s < team.num; s += SLOT_WARPS) {
    int32_t q[EIGHT];
    round_row(order, key, rows, memory, team, s, step_of_code((uint32_t)high, -1), q);
    keep_row<Code>(rows, memory, team, s, q);
  }
  __syncthreads();
  const uint32_t used = slot_bits(memory.bits, team);
  write_slot<Code>(args, slot, (uint32_t)high, 0, used, rows, memory, team);
}

// A super-group of the mean, with what its mark says.
__device__ __forceinline__ void store_mean(const gradwire_lattice& args, int64_t super_group, uint32_t mark,
                                           bool vectors, int lane, const float* total) {
  if (super_group < 0) return;
  const bool silent = mark == SILENT_MARK || (*args.nothing && mark == 0);
  const float workers = (float)args.workers;
  uint32_t words[EIGHT];
#pragma unroll
  for (int i = 0; i < EIGHT; ++i)
    words[i] = mark == BROKEN_MARK ? (uint32_t)NOT_A_NUMBER : silent ? 0u : bits_of(div(total[i], workers));
  store_eight(reinterpret_cast<uint32_t*>(args.means) + super_group * SUPER_GROUP, vectors, lane, words);
}

template <class Code>
__global__ void __launch_bounds__(SLOT_THREADS, 2)
    unseal(const GRADWIRE_GRID_CONSTANT gradwire_lattice args, bool mean_vectors) {
  SlotMemory& memory = slot_memory();
  SlotRows& rows = slot_rows();
  const Team team = team_of(args);
  const int64_t slot = blockIdx.x;
  const int64_t* const order = args.order + slot * team.num;
  const Key key = key_of(args.key_place, args.key0, args.key1);
  receive<Code>(args, slot, rows, memory, team);
  __syncwarp();
  const float step = power_of_units(*args.step + args.coarser), relative = step_of_code(memory.number, 1);
#pragma unroll 1
  for (int s = team.warp; s < team.num; s += SLOT_WARPS) {
    int32_t q[EIGHT];
    float values[EIGHT];
    load_row(rows[s], team.lane, q);
    dithers_of(order[s], key, team.lane, values);
#pragma unroll
    for (int i = 0; i < EIGHT; ++i)
      values[i] = mul(mul(add(sub((float)q[i], values[i]), 0.5f), step), relative);
    store_mean(args, order[s], memory.marks[s], mean_vectors, team.lane, values);
  }
}

// A warp to a super-group: complete sums that are not sealed, at the sink with its own gradients.
__global__ void __launch_bounds__(THREADS) means(const GRADWIRE_GRID_CONSTANT gradwire_lattice args,
                                                 bool vectors, bool sum_vectors, bool mean_vectors) {
  const int lane = lane_of_thread();
  const int64_t places = args.slots * args.super_groups;
  const float step = power_of_units(*args.step);
  for (int64_t place = warp_of_grid(); place < places; place += warps_of_grid()) {
    const int64_t super_group = args.order[place];
    int32_t q[EIGHT];
    float total[EIGHT], x[EIGHT];
    uint32_t mark = args.marks[place];
    load_eight(args.sums + place * SUPER_GROUP, sum_vectors, lane, q);
#pragma unroll
    for (int i = 0; i < EIGHT; ++i) total[i] = mul(whole_of(q[i], args.shifts[place]), step);
    if (args.values) {
      mark = joined_marks(mark, load_super_group(args, super_group, vectors, lane, x));
#pragma unroll
      for (int i = 0; i < EIGHT; ++i) total[i] = add(total[i], x[i]);
    }
    store_mean(args, super_group, mark, mean_vectors, lane, total);
  }
}

template <class Kernel, class... Flags>
int launch_slots(Kernel kernel, const gradwire_lattice& args, cudaStream_t stream, Flags... flags) {
  const int bytes = args.super_groups * (int)sizeof(Row);
  if (const int error = allow_large_shared(kernel, bytes)) return error;
  GRADWIRE_LAUNCH_LARGE(kernel, (unsigned)args.slots, SLOT_THREADS, bytes, stream, args, flags...);
  return cudaGetLastError();
}

}  // namespace

GRADWIRE_API int gradwire_lattice_seal(const gradwire_lattice* args) {
  GRADWIRE_CUDA_BEGIN(lattice_seal, args);
  const auto kernel = args->packed ? seal<PackedCode> : seal<RiceCode>;
  return launch_slots(kernel, *args, stream, aligned(args->values), aligned(args->sums));
}

GRADWIRE_API int gradwire_lattice_unseal(const gradwire_lattice* args) {
  GRADWIRE_CUDA_BEGIN(lattice_unseal, args);
  const auto kernel = args->packed ? unseal<PackedCode> : unseal<RiceCode>;
  return launch_slots(kernel, *args, stream, aligned(args->means));
}

GRADWIRE_API int gradwire_lattice_means(const gradwire_lattice* args) {
  GRADWIRE_CUDA_BEGIN(lattice_means, args);
  const auto kernel = means;
  const int grid = grid_of(kernel, divide_up(args->slots * args->super_groups, WARPS));
  GRADWIRE_LAUNCH(kernel, grid, THREADS, stream, *args, aligned(args->values), aligned(args->sums),
                  aligned(args->means));
  return cudaGetLastError();
}
