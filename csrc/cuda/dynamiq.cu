// One hop of DynamiQ. Half a warp has a super-group, a lane sixteen of its coordinates: what is done once for
// a group is done once, maxima take few exchanges, codes are stored by whole words. A warp has two
// super-groups of one width at a time, so that it does not diverge, and goes through the widths one after
// another. All widths of a message are one launch, and so are several chunks: blockIdx.y has one each.
#include "dynamiq_decode.h"
#include "dynamiq_encode.h"

using namespace gradwire;
using namespace gradwire_cuda;

namespace {

// Chunks that a launch can have.
enum { MOST_CHUNKS = 16 };

struct Parameters {
  gradwire_dynamiq args;
  Part parts[MOST_CHUNKS];
  RoundKeys keys;
  Coordinates x, out;
  DitherScale dithers;
};

Coordinates coordinates_of(const gradwire_dynamiq& args, const void* memory, bool bucket) {
  const int64_t numel = bucket ? args.numel : args.rows * SUPER_GROUP;
  return {numel, aligned(memory) ? (int32_t)(numel / SUPER_GROUP) : 0,
          !bucket || args.call.dtype == GRADWIRE_FLOAT32};
}

// The warp's place in the grid, and its lane's.
struct Warp {
  Lane lane;
  int32_t pair, stride;
};

__device__ __forceinline__ Warp this_warp() {
  const int lane = lane_of_thread();
  return {{0, lane % LANES, lane, false}, (int32_t)warp_of_grid(), (int32_t)warps_of_grid()};
}

// Forgets what is known of the lane: what is computed from it is computed again for every row, since kept
// from row to row it would take registers that there are not.
__device__ __forceinline__ Lane fresh(Lane lane) {
  asm volatile("" : "+r"(lane.warp_lane));
  lane.index = lane.warp_lane & (LANES - 1);
  return lane;
}

// Calls `each` with the rows of a slot that are the warp's.
template <int SLOT, class Each>
__device__ __forceinline__ void for_rows(const Plan& plan, Warp& warp, Each each) {
  for (; warp.pair < again(plan.pairs[SLOT + 1]); warp.pair += warp.stride) {
    Lane lane = fresh(warp.lane);
    const int32_t row = again(plan.firsts[SLOT]) + 2 * warp.pair + (lane.warp_lane >= LANES),
                  last = again(plan.lasts[SLOT]);
    lane.repeats = row > last;
    lane.row = smaller(row, last);
    each(lane);
  }
}

// `next` is the half-warp's next row.
template <int SLOT, int KIND, bool INCOMING, bool PAPER, class Keys, class Shared>
__device__ __forceinline__ void encode_slot(const Parameters& p, const Keys& keys, const Plan& plan,
                                            const Shared& tables, Row*& next) {
  for (; again(next->slot) == SLOT; next += 2) {
    const Row row = *next;
    const int warp_lane = ptx::laneid();
    const Lane lane = {row.number, warp_lane & (LANES - 1), warp_lane, false};
    const int32_t super_group = p.args.gather ? row.super_group : lane.row;
    float values[16];
    if (p.x.wide)
      take<float>(p.args.x, p.x, lane.index, super_group, row.mean, values);
    else
      take<uint16_t>(p.args.x, p.x, lane.index, super_group, row.mean, values);
    if constexpr (INCOMING) decode<SLOT, PAPER>(p.args, plan, tables, lane, values);
    encode<SLOT, KIND, PAPER>(p.args, keys, p.dithers, plan, tables, lane, row, values);
  }
}

// Where the block finds the round keys from its first barrier on.
__device__ __forceinline__ const RoundKeys& keys_of_block(const Parameters& p, const RoundKeys*) {
  return p.keys;
}
__device__ __forceinline__ const SharedKeys& keys_of_block(const Parameters& p, const SharedKeys*) {
  GRADWIRE_SHARED(SharedKeys, keys);
  fill(keys, p.args);
  return keys;
}

// How many blocks of encoders a multiprocessor holds.
template <class Shared>
constexpr int HELD = sizeof(Shared) == sizeof(CodebookTables) ? 3 : 4;

// By the block: the rows of its chunk that are its own.
template <int KIND, bool INCOMING, bool PAPER, class Keys, class Shared>
__device__ __forceinline__ void encode_rows(const Parameters& p, Shared& tables, Plan& plan) {
  GRADWIRE_SHARED(RowsOfWarps<Shared>, rows_of_warps);
  fill(tables, p.args);
  const Keys& keys = keys_of_block(p, (const Keys*)nullptr);
  if (threadIdx.x >= THREADS - WARP) make_plan(plan, p.args, p.parts[blockIdx.y]);
  __syncthreads();
  uint8_t* message = p.args.outgoing + p.parts[blockIdx.y].first_byte;
  for (int64_t i = plan.used_bytes + blockIdx.x * THREADS + threadIdx.x;
       i < p.parts[blockIdx.y].outgoing_bytes; i += (int64_t)gridDim.x * THREADS)
    message[i] = rest_of_message(plan.possible);
  // What is known of the rows is kept with them: beside one pointer there is no register for it.
  Row* next = rows_of_warps.of[threadIdx.x / WARP].rows + lane_of_thread() / LANES;
  for (int32_t pair = (int32_t)warp_of_grid(); pair < again(plan.pairs[WIDTH_SLOTS]);
       pair = again(next->number), next -= again(next->place)) {
    prepare<PREPARED<Shared>>(next - lane_of_thread() / LANES, plan, p.args, key_itself(p.args, keys), pair);
    encode_slot<0, KIND, INCOMING, PAPER>(p, keys, plan, tables, next);
    encode_slot<1, KIND, INCOMING, PAPER>(p, keys, plan, tables, next);
    encode_slot<2, KIND, INCOMING, PAPER>(p, keys, plan, tables, next);
    encode_slot<3, KIND, INCOMING, PAPER>(p, keys, plan, tables, next);
    encode_slot<4, KIND, INCOMING, PAPER>(p, keys, plan, tables, next);
    encode_slot<5, KIND, INCOMING, PAPER>(p, keys, plan, tables, next);
    encode_slot<6, KIND, INCOMING, PAPER>(p, keys, plan, tables, next);
    encode_slot<7, KIND, INCOMING, PAPER>(p, keys, plan, tables, next);
  }
}

template <int KIND, bool INCOMING, bool PAPER, class Shared, class Keys>
__global__ void __launch_bounds__(THREADS, HELD<Shared>)
    dynamiq_encode(const GRADWIRE_GRID_CONSTANT Parameters p) {
  GRADWIRE_SHARED(Shared, tables);
  GRADWIRE_SHARED(Plan, plan);
  encode_rows<KIND, INCOMING, PAPER, Keys>(p, tables, plan);
}

// What is to be summed, without the incoming message.
__device__ __forceinline__ void take_values(const Parameters& p, const Lane& lane, float* values) {
  const int32_t place = p.args.gather ? p.args.order[lane.row] : lane.row;
  const float mean = p.args.gather ? p.args.mean[lane.row] : 0.0f;
  if (p.x.wide)
    take_fours<float>(p.args.x, p.x, lane.index, place, mean, values);
  else
    take_fours<uint16_t>(p.args.x, p.x, lane.index, place, mean, values);
}

__device__ __forceinline__ void give_values(const Parameters& p, const Lane& lane, float* values) {
  if (p.args.scatter) {
    const float mean = p.args.mean[lane.row], inverse = p.args.inverse;
#pragma unroll
    for (int k = 0; k < 16; ++k) values[k] = add(mul(values[k], inverse), mean);
  }
  if (lane.repeats) return;
  const int32_t place = p.args.scatter ? p.args.order[lane.row] : lane.row;
  if (p.out.wide)
    give_fours<float>(p.args.out, p.out, lane.index, place, values);
  else
    give_fours<uint16_t>(p.args.out, p.out, lane.index, place, values);
}

template <int SLOT, bool SOURCE, bool INCOMING>
__device__ __forceinline__ void decode_slot(const Parameters& p, const Plan& plan, const Tables& tables,
                                            Warp& warp) {
  for_rows<SLOT>(plan, warp, [&](const Lane& lane) {
    float values[16];
    if constexpr (SOURCE) take_values(p, lane, values);
    if constexpr (INCOMING) decode_fours<SLOT, SOURCE>(p.args, plan, tables, lane, values);
    give_values(p, lane, values);
  });
}

// Where the counts are not those of the chunk.
__device__ __forceinline__ void give_nan(const Parameters& p, const Warp& warp) {
  Lane lane = warp.lane;
  const Part& part = p.parts[blockIdx.y];
  for (int64_t row = 2 * warp_of_grid() + (lane.warp_lane >= LANES); row < part.rows;
       row += 2 * warps_of_grid()) {
    lane.row = part.first_row + (int32_t)row;
    float values[16];
#pragma unroll
    for (int k = 0; k < 16; ++k) values[k] = float_of(NOT_A_NUMBER);
    give_values(p, lane, values);
  }
}

// By the block: the rows of its chunk that are its own.
template <bool SOURCE, bool INCOMING>
__device__ __forceinline__ void decode_rows(const Parameters& p, const Tables& tables, const Plan& plan) {
  Warp warp = this_warp();
  if (!plan.possible) give_nan(p, warp);
  decode_slot<0, SOURCE, INCOMING>(p, plan, tables, warp);
  decode_slot<1, SOURCE, INCOMING>(p, plan, tables, warp);
  decode_slot<2, SOURCE, INCOMING>(p, plan, tables, warp);
  decode_slot<3, SOURCE, INCOMING>(p, plan, tables, warp);
  decode_slot<4, SOURCE, INCOMING>(p, plan, tables, warp);
  decode_slot<5, SOURCE, INCOMING>(p, plan, tables, warp);
  decode_slot<6, SOURCE, INCOMING>(p, plan, tables, warp);
  decode_slot<7, SOURCE, INCOMING>(p, plan, tables, warp);
}

template <bool SOURCE, bool INCOMING>
__global__ void __launch_bounds__(THREADS, 4) dynamiq_decode(const GRADWIRE_GRID_CONSTANT Parameters p) {
  GRADWIRE_SHARED(Tables, tables);
  GRADWIRE_SHARED(Plan, plan);
  if (INCOMING) fill(tables, p.args);
  if (threadIdx.x >= THREADS - WARP) make_plan(plan, p.args, p.parts[blockIdx.y]);
  __syncthreads();
  decode_rows<SOURCE, INCOMING>(p, tables, plan);
}

// A message, and then the values that it stands for: each warp decodes the rows that it has encoded. With the
// registers of four blocks some of these kernels had a stack.
template <int KIND, bool PAPER, class Shared, class Keys>
__global__ void __launch_bounds__(THREADS, 3) dynamiq_seal(const GRADWIRE_GRID_CONSTANT Parameters p) {
  GRADWIRE_SHARED(Shared, tables);
  GRADWIRE_SHARED(Plan, plan);
  encode_rows<KIND, true, PAPER, Keys>(p, tables, plan);
  read_back(plan);
  decode_rows<false, true>(p, tables, plan);
}

template <class Kernel>
int launch(Kernel kernel, const Parameters& p, cudaStream_t stream) {
  const int chunks = p.args.chunks ? p.args.chunk_count : 1;
  int64_t most = 0;
  for (int i = 0; i < chunks; ++i) most = larger(most, most_pairs(p.parts[i].rows));
  const int blocks = grid_of(kernel, divide_up(most, WARPS) * chunks);
  const dim3 grid((unsigned)divide_up(blocks, chunks), (unsigned)chunks);
  GRADWIRE_LAUNCH(kernel, grid, THREADS, stream, p);
  return cudaGetLastError();
}

template <int KIND, bool INCOMING, bool PAPER, class Shared>
int launch_encode(const Parameters& p, cudaStream_t stream) {
  return p.args.key_place ? launch(dynamiq_encode<KIND, INCOMING, PAPER, Shared, SharedKeys>, p, stream)
                          : launch(dynamiq_encode<KIND, INCOMING, PAPER, Shared, RoundKeys>, p, stream);
}
template <int KIND, bool PAPER, class Shared>
int launch_seal(const Parameters& p, cudaStream_t stream) {
  return p.args.key_place ? launch(dynamiq_seal<KIND, PAPER, Shared, SharedKeys>, p, stream)
                          : launch(dynamiq_seal<KIND, PAPER, Shared, RoundKeys>, p, stream);
}
template <int KIND, bool PAPER, class Shared>
int launch_encode(const Parameters& p, cudaStream_t stream) {
  if (p.args.out) return launch_seal<KIND, PAPER, Shared>(p, stream);
  return p.args.incoming ? launch_encode<KIND, true, PAPER, Shared>(p, stream)
                         : launch_encode<KIND, false, PAPER, Shared>(p, stream);
}

int launch_decode(const Parameters& p, cudaStream_t stream) {
  if (!p.args.incoming) return launch(dynamiq_decode<true, false>, p, stream);
  return p.args.x ? launch(dynamiq_decode<true, true>, p, stream)
                  : launch(dynamiq_decode<false, true>, p, stream);
}

// A message without another one that is added, and then the values that it stands for.
int encode_and_decode(const gradwire_dynamiq& args) {
  gradwire_dynamiq encoding = args, decoding = args;
  encoding.out = nullptr;
  decoding.x = nullptr;
  decoding.gather = 0;
  decoding.incoming = args.outgoing;
  decoding.incoming_bytes = args.outgoing_bytes;
  decoding.outgoing = nullptr;
  const int error = gradwire_dynamiq_hop(&encoding);
  return error ? error : gradwire_dynamiq_hop(&decoding);
}

// The paper's settings have kernels of their own.
bool is_paper(const gradwire_dynamiq& args) {
  return args.kind == GRADWIRE_GEOMETRIC && args.codebooks == 1 && args.group == 16 && !args.bf16_scales &&
         !args.ceil_scales && args.correlated && args.workers <= 64;
}

Parameters parameters_of(const gradwire_dynamiq& args) {
  Parameters p = {args,
                  {},
                  round_keys({args.key0, args.key1}),
                  coordinates_of(args, args.x, args.gather),
                  coordinates_of(args, args.out, args.scatter),
                  dither_scale(args.workers)};
  p.parts[0] = {0, args.incoming_bytes, args.outgoing_bytes, 0, (int32_t)args.rows};
  int64_t row = 0, byte = 0;
  for (int i = 0; i < args.chunk_count; ++i) {
    const gradwire_dynamiq_chunk& chunk = args.chunks[i];
    p.parts[i] = {byte, chunk.bytes, chunk.bytes, (int32_t)row, (int32_t)chunk.rows};
    row += chunk.rows;
    byte += chunk.bytes;
  }
  return p;
}

// As many chunks as a launch can have.
int hop(const gradwire_dynamiq& args, cudaStream_t stream) {
  const Parameters p = parameters_of(args);
  if (!args.outgoing) return launch_decode(p, stream);
  switch (args.kind) {
    case GRADWIRE_UNIFORM: return launch_encode<GRADWIRE_UNIFORM, false, EncodingTables>(p, stream);
    case GRADWIRE_GEOMETRIC:
      return is_paper(args) ? launch_encode<GRADWIRE_GEOMETRIC, true, EncodingTables>(p, stream)
                            : launch_encode<GRADWIRE_GEOMETRIC, false, EncodingTables>(p, stream);
    default:
      return args.codebooks > 1 ? launch_encode<GRADWIRE_DISTINCT, false, CodebookTables>(p, stream)
                                : launch_encode<GRADWIRE_DISTINCT, false, EncodingTables>(p, stream);
  }
}

}  // namespace

GRADWIRE_API int gradwire_dynamiq_hop(const gradwire_dynamiq* args) {
  GRADWIRE_CUDA_BEGIN(dynamiq_hop, args);
  if (!args->tables) return GRADWIRE_BAD_ARGUMENT;
  if (!aligned(args->tables)) return GRADWIRE_MISALIGNED;
  if (args->outgoing && args->out && !args->incoming) return encode_and_decode(*args);
  if (args->rows > MOST_ROWS || args->numel > MOST_ROWS * SUPER_GROUP) return GRADWIRE_BAD_ARGUMENT;
  if (args->chunk_count <= MOST_CHUNKS) return hop(*args, stream);
  for (int32_t first = 0; first < args->chunk_count; first += MOST_CHUNKS) {
    const int32_t count = smaller(args->chunk_count - first, (int32_t)MOST_CHUNKS);
    if (const int error = hop(chunks_of(*args, first, count), stream)) return error;
  }
  return GRADWIRE_OK;
}

GRADWIRE_API int gradwire_dynamiq_tables(const gradwire_dynamiq_values* args) {
  if (args->call.bytes != (int32_t)sizeof(*args)) return GRADWIRE_WRONG_SIZE;
  if (const int error = check_dynamiq_tables(*args)) return error;
  return make_tables(*reinterpret_cast<CodebookTables*>(args->tables), *args) ? GRADWIRE_OK
                                                                              : GRADWIRE_BAD_ARGUMENT;
}
