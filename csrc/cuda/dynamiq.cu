// One hop of DynamiQ. Half a warp has a super-group, a lane sixteen of its coordinates: what is done once for
// a group is done once, maxima take few exchanges, codes are stored by whole words. A warp has two
// super-groups of the same width, so that it does not diverge. All widths of a message are one launch.
#include "dynamiq_encode.h"

using namespace gradwire;
using namespace gradwire_cuda;

namespace {

struct Parameters {
  gradwire_dynamiq args;
  bool wide_x, wide_out;        // float32 instead of bfloat16
  bool x_vectors, out_vectors;  // at a multiple of 16 bytes
};

// What is to be summed, without the incoming message; zeros if there is nothing.
__device__ __forceinline__ void take_values(const Parameters& p, const Lane& lane, int64_t super_group,
                                            float* values) {
  const int64_t place = p.args.gather ? super_group : lane.row;
  if (p.wide_x)
    take(p.args, lane, (const float*)p.args.x, p.x_vectors, place, values);
  else
    take(p.args, lane, (const uint16_t*)p.args.x, p.x_vectors, place, values);
}

// Where a lane's row and its codes are, given its warp's pair of rows of one width.
struct Place {
  Lane lane;
  int64_t codes;
};
template <int SLOT>
__device__ __forceinline__ Place place_of_pair(const Plan& plan, Lane lane, int64_t pair) {
  constexpr int WIDTH = SLOT == 0 ? 16 : SLOT == 1 ? 8 : SLOT == 2 ? 6 : SLOT == 3 ? 5 : 8 - SLOT;
  const int64_t within = 2 * (pair - plan.pairs[SLOT]) + (lane.warp_lane >= LANES);
  lane.row = plan.layout.rows[SLOT] + within;
  lane.active = lane.row < plan.layout.rows[SLOT + 1];
  return {lane, plan.layout.codes[SLOT] + within * 32 * WIDTH};
}

template <int SLOT, int KIND, bool INCOMING, class Shared>
__device__ __forceinline__ void encode_rows(const Parameters& p, const Plan& plan, const Shared& tables,
                                            const Lane& thread, int64_t pair) {
  constexpr int WIDTH = SLOT == 0 ? 16 : SLOT == 1 ? 8 : SLOT == 2 ? 6 : SLOT == 3 ? 5 : 8 - SLOT;
  const Place place = place_of_pair<SLOT>(plan, thread, pair);
  const Lane& lane = place.lane;
  const int64_t super_group = lane.active ? p.args.order[lane.row] : 0;
  float values[16];
  take_values(p, lane, super_group, values);
  if constexpr (INCOMING)
    decode<WIDTH, true>(p.args, plan.sections, tables, SLOT, lane, p.args.incoming + place.codes, values);
  encode<WIDTH, KIND>(p.args, plan.sections, tables, SLOT, lane, (uint32_t)super_group, values,
                      p.args.outgoing + place.codes);
}

template <int KIND, bool INCOMING, class Shared>
__global__ void __launch_bounds__(THREADS) dynamiq_encode(const GRADWIRE_GRID_CONSTANT Parameters p) {
  GRADWIRE_SHARED(Shared, tables);
  GRADWIRE_SHARED(Plan, plan);
  fill(tables, p.args);
  if (threadIdx.x == 0) plan = plan_of(p.args);
  __syncthreads();
  for (int64_t i = plan.layout.used_bytes + blockIdx.x * THREADS + threadIdx.x; i < p.args.outgoing_bytes;
       i += (int64_t)gridDim.x * THREADS)
    p.args.outgoing[i] = rest_of_message(plan.layout);
  Lane lane;
  lane.warp_lane = lane_of_thread();
  lane.index = lane.warp_lane % LANES;
  const int64_t* pairs = plan.pairs;
  for (int64_t pair = warp_of_grid(); pair < pairs[WIDTH_SLOTS]; pair += warps_of_grid()) {
    if (pair < pairs[1])
      encode_rows<0, KIND, INCOMING>(p, plan, tables, lane, pair);
    else if (pair < pairs[2])
      encode_rows<1, KIND, INCOMING>(p, plan, tables, lane, pair);
    else if (pair < pairs[3])
      encode_rows<2, KIND, INCOMING>(p, plan, tables, lane, pair);
    else if (pair < pairs[4])
      encode_rows<3, KIND, INCOMING>(p, plan, tables, lane, pair);
    else if (pair < pairs[5])
      encode_rows<4, KIND, INCOMING>(p, plan, tables, lane, pair);
    else if (pair < pairs[6])
      encode_rows<5, KIND, INCOMING>(p, plan, tables, lane, pair);
    else if (pair < pairs[7])
      encode_rows<6, KIND, INCOMING>(p, plan, tables, lane, pair);
    else
      encode_rows<7, KIND, INCOMING>(p, plan, tables, lane, pair);
  }
}

__device__ __forceinline__ void give_values(const Parameters& p, const Lane& lane, float* values) {
  if (p.wide_out)
    give(p.args, lane, (float*)p.args.out, p.out_vectors, values);
  else
    give(p.args, lane, (uint16_t*)p.args.out, p.out_vectors, values);
}

template <int SLOT, bool SOURCE, bool INCOMING>
__device__ __forceinline__ void decode_rows(const Parameters& p, const Plan& plan, const Tables& tables,
                                            const Lane& thread, int64_t pair) {
  constexpr int WIDTH = SLOT == 0 ? 16 : SLOT == 1 ? 8 : SLOT == 2 ? 6 : SLOT == 3 ? 5 : 8 - SLOT;
  const Place place = place_of_pair<SLOT>(plan, thread, pair);
  const Lane& lane = place.lane;
  float values[16];
  if constexpr (SOURCE)
    take_values(p, lane, lane.active && p.args.gather ? p.args.order[lane.row] : 0, values);
  if constexpr (INCOMING)
    decode<WIDTH, SOURCE>(p.args, plan.sections, tables, SLOT, lane, p.args.incoming + place.codes, values);
  give_values(p, lane, values);
}

// Where the counts are not those of the chunk.
__device__ __forceinline__ void give_nan(const Parameters& p, Lane lane) {
  for (lane.row = 2 * warp_of_grid() + (lane.warp_lane >= LANES); lane.row < p.args.rows;
       lane.row += 2 * warps_of_grid()) {
    lane.active = true;
    float values[16];
#pragma unroll
    for (int k = 0; k < 16; ++k) values[k] = float_of(NOT_A_NUMBER);
    give_values(p, lane, values);
  }
}

template <bool SOURCE, bool INCOMING>
__global__ void __launch_bounds__(THREADS) dynamiq_decode(const GRADWIRE_GRID_CONSTANT Parameters p) {
  GRADWIRE_SHARED(Tables, tables);
  GRADWIRE_SHARED(Plan, plan);
  if (INCOMING) fill(tables, p.args);
  if (threadIdx.x == 0) plan = plan_of(p.args);
  __syncthreads();
  Lane lane;
  lane.warp_lane = lane_of_thread();
  lane.index = lane.warp_lane % LANES;
  if (!plan.layout.possible) give_nan(p, lane);
  const int64_t* pairs = plan.pairs;
  for (int64_t pair = warp_of_grid(); pair < pairs[WIDTH_SLOTS]; pair += warps_of_grid()) {
    if (pair < pairs[1])
      decode_rows<0, SOURCE, INCOMING>(p, plan, tables, lane, pair);
    else if (pair < pairs[2])
      decode_rows<1, SOURCE, INCOMING>(p, plan, tables, lane, pair);
    else if (pair < pairs[3])
      decode_rows<2, SOURCE, INCOMING>(p, plan, tables, lane, pair);
    else if (pair < pairs[4])
      decode_rows<3, SOURCE, INCOMING>(p, plan, tables, lane, pair);
    else if (pair < pairs[5])
      decode_rows<4, SOURCE, INCOMING>(p, plan, tables, lane, pair);
    else if (pair < pairs[6])
      decode_rows<5, SOURCE, INCOMING>(p, plan, tables, lane, pair);
    else if (pair < pairs[7])
      decode_rows<6, SOURCE, INCOMING>(p, plan, tables, lane, pair);
    else
      decode_rows<7, SOURCE, INCOMING>(p, plan, tables, lane, pair);
  }
}

template <class Kernel>
int launch(Kernel kernel, const Parameters& p, cudaStream_t stream) {
  const int grid = grid_of(kernel, divide_up(most_pairs(p.args), WARPS));
  GRADWIRE_LAUNCH(kernel, grid, THREADS, stream, p);
  return cudaGetLastError();
}

template <int KIND, class Shared>
int launch_encode(const Parameters& p, cudaStream_t stream) {
  return p.args.incoming ? launch(dynamiq_encode<KIND, true, Shared>, p, stream)
                         : launch(dynamiq_encode<KIND, false, Shared>, p, stream);
}

int launch_decode(const Parameters& p, cudaStream_t stream) {
  if (!p.args.incoming) return launch(dynamiq_decode<true, false>, p, stream);
  return p.args.x ? launch(dynamiq_decode<true, true>, p, stream)
                  : launch(dynamiq_decode<false, true>, p, stream);
}

// A message, and then the values that it stands for.
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

}  // namespace

GRADWIRE_API int gradwire_dynamiq_hop(const gradwire_dynamiq* args) {
  GRADWIRE_CUDA_BEGIN(dynamiq_hop, args);
  if (args->outgoing && args->out) return encode_and_decode(*args);
  const bool narrow = args->call.dtype == GRADWIRE_BFLOAT16;
  const Parameters p = {*args, !(narrow && args->gather), !(narrow && args->scatter), aligned(args->x),
                        aligned(args->out)};
  if (args->out) return launch_decode(p, stream);
  switch (args->kind) {
    case GRADWIRE_UNIFORM: return launch_encode<GRADWIRE_UNIFORM, EncodingTables>(p, stream);
    case GRADWIRE_GEOMETRIC: return launch_encode<GRADWIRE_GEOMETRIC, EncodingTables>(p, stream);
    default:
      return args->codebooks > 1 ? launch_encode<GRADWIRE_DISTINCT, CodebookTables>(p, stream)
                                 : launch_encode<GRADWIRE_DISTINCT, EncodingTables>(p, stream);
  }
}
