// Eight coordinates of a lane at a time. Of bfloat16 alone they are neighbours, in 16 bytes; where float32 is
// read or written, four and the four that are a warp further on: 16 bytes each, so that what a warp loads or
// stores at a time are whole sectors. The memory is the limit.
#include "gradwire/cast.h"

#include "launch.h"

using namespace gradwire;
using namespace gradwire_cuda;

namespace {

constexpr int EACH = 8;

template <bool APART>
constexpr int NEIGHBOURS = APART ? EACH / 2 : EACH;

// f(place, i) for the place of a lane's coordinates i, i + 1, …, as many as are neighbours.
template <bool APART, class Function>
__device__ __forceinline__ void for_places(int64_t first, Function f) {
#pragma unroll
  for (int i = 0; i < EACH; i += NEIGHBOURS<APART>) f(first + i * WARP, i);
}

template <bool APART, class T>
__device__ __forceinline__ void load_eight(const T* source, int64_t first, int64_t numel, bool vectors,
                                           float* values) {
  for_places<APART>(first, [&](int64_t place, int i) {
    constexpr int COUNT = NEIGHBOURS<APART>;
    if (!vectors || place + COUNT > numel)
      load_some<COUNT>(source + place, numel - place, values + i);
    else if constexpr (APART)
      load_four(source + place, values + i);
    else
      load_aligned<COUNT>(source + place, values + i);
  });
}

// What is stored at a time; left to itself nvcc takes some of these stores apart.
__device__ __forceinline__ void store_whole(uint16_t* target, const float (&v)[EACH]) {
  ptx::st_global_v4(target, two_bfloat16(v[0], v[1]), two_bfloat16(v[2], v[3]), two_bfloat16(v[4], v[5]),
                    two_bfloat16(v[6], v[7]));
}
__device__ __forceinline__ void store_four(float* target, const float* v) {
  ptx::st_global_v4(target, bits_of(v[0]), bits_of(v[1]), bits_of(v[2]), bits_of(v[3]));
}
__device__ __forceinline__ void store_four(uint16_t* target, const float* v) {
  *reinterpret_cast<uint2*>(target) = make_uint2(two_bfloat16(v[0], v[1]), two_bfloat16(v[2], v[3]));
}
template <bool APART, class T>
__device__ __forceinline__ void store_eight(T* target, int64_t first, int64_t numel, bool vectors,
                                            const float (&values)[EACH]) {
  for_places<APART>(first, [&](int64_t place, int i) {
    constexpr int COUNT = NEIGHBOURS<APART>;
    if (!vectors || place + COUNT > numel)
      store_some<COUNT>(target + place, numel - place, values + i);
    else if constexpr (APART)
      store_four(target + place, values + i);
    else
      store_whole(target + place, values);
  });
}

// What a message makes of these numbers.
__device__ __forceinline__ void round_to(const float*, float*) {}
__device__ __forceinline__ void round_to(const uint16_t*, float* values) {
#pragma unroll
  for (int i = 0; i < EACH; i += 2) {
    const uint32_t both = two_bfloat16(values[i], values[i + 1]);
    values[i] = float_of(both << 16);
    values[i + 1] = float_of(both & 0xffff0000u);
  }
}

__device__ __forceinline__ void divide(float* values, int32_t workers) {
  const float divisor = (float)workers;
  if (divides_exactly(workers)) {
    const float inverse = div(1.0f, divisor);
#pragma unroll
    for (int i = 0; i < EACH; ++i) values[i] = mul(values[i], inverse);
  } else {
#pragma unroll
    for (int i = 0; i < EACH; ++i) values[i] = div(values[i], divisor);
  }
}

template <class Bucket, class Wire, bool APART>
__global__ void __launch_bounds__(THREADS)
    cast_slice(const GRADWIRE_GRID_CONSTANT gradwire_cast args, bool vectors) {
  const int64_t numel = args.numel, step = warps_of_grid() * WARP * EACH;
  for (int64_t first = warp_of_grid() * WARP * EACH + lane_of_thread() * NEIGHBOURS<APART>; first < numel;
       first += step) {
    float values[EACH], other[EACH];
    if (args.message) load_eight<APART>((const Wire*)args.message, first, numel, vectors, other);
    if (args.x)
      load_eight<APART>((const Bucket*)args.x, first, numel, vectors, values);
    else if (APART && args.own)
      load_eight<true>(args.own, first, numel, vectors, values);
    else
      load_eight<APART>((const Wire*)args.first, first, numel, vectors, values);
    if (args.message) {
#pragma unroll
      for (int i = 0; i < EACH; ++i) values[i] = add(values[i], other[i]);
    }
    if (APART && args.sums) store_eight<true>(args.sums, first, numel, vectors, values);
    if (args.out) {
      Wire* out = (Wire*)args.out;
      round_to(out, values);
      store_eight<APART>(out, first, numel, vectors, values);
    }
    if (args.mean) {
      divide(values, args.workers);
      store_eight<APART>((Bucket*)args.mean, first, numel, vectors, values);
    }
  }
}

template <class Bucket, class Wire, bool APART>
int launch(const gradwire_cast& args, cudaStream_t stream) {
  const auto kernel = cast_slice<Bucket, Wire, APART>;
  const bool inputs = aligned(args.x) && aligned(args.own) && aligned(args.first) && aligned(args.message);
  const bool vectors = inputs && aligned(args.sums) && aligned(args.out) && aligned(args.mean);
  const int grid = grid_of(kernel, divide_up(items_cast_slice(args), (int64_t)EACH * THREADS));
  GRADWIRE_LAUNCH(kernel, grid, THREADS, stream, args, vectors);
  return cudaGetLastError();
}
template <class Bucket, class Wire>
int launch(const gradwire_cast& args, cudaStream_t stream) {
  if constexpr (sizeof(Bucket) == 2 && sizeof(Wire) == 2) {
    if (!args.own && !args.sums) return launch<Bucket, Wire, false>(args, stream);
  }
  return launch<Bucket, Wire, true>(args, stream);
}

template <class Bucket>
int launch_for(const gradwire_cast& args, cudaStream_t stream) {
  return args.wire == GRADWIRE_FLOAT32 ? launch<Bucket, float>(args, stream)
                                       : launch<Bucket, uint16_t>(args, stream);
}

}  // namespace

GRADWIRE_API int gradwire_cast_slice(const gradwire_cast* args) {
  GRADWIRE_CUDA_BEGIN(cast_slice, args);
  return args->call.dtype == GRADWIRE_FLOAT32 ? launch_for<float>(*args, stream)
                                              : launch_for<uint16_t>(*args, stream);
}
