// Eight coordinates of a lane at a time: 16 bytes of bfloat16, twice 16 of float32. The memory is the limit.
#include "gradwire/cast.h"

#include "launch.h"

using namespace gradwire;
using namespace gradwire_cuda;

namespace {

constexpr int EACH = 8;

template <class T>
__device__ __forceinline__ void load_eight(const T* source, int64_t left, bool whole, float* values) {
  if (whole)
    load_aligned<EACH>(source, values);
  else
    load_some<EACH>(source, left, values);
}

template <class T>
__device__ __forceinline__ void store_eight(T* target, int64_t left, bool whole, const float* values) {
  if (whole)
    store_aligned<EACH>(target, values);
  else
    store_some<EACH>(target, left, values);
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

template <class Bucket, class Wire>
__global__ void __launch_bounds__(THREADS)
    cast_slice(const GRADWIRE_GRID_CONSTANT gradwire_cast args, bool vectors) {
  const int64_t step = (int64_t)gridDim.x * THREADS * EACH;
  for (int64_t first = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * EACH; first < args.numel;
       first += step) {
    const int64_t left = args.numel - first;
    const bool whole = vectors && left >= EACH;
    float values[EACH], other[EACH];
    if (args.message) load_eight((const Wire*)args.message + first, left, whole, other);
    if (args.x)
      load_eight((const Bucket*)args.x + first, left, whole, values);
    else if (args.own)
      load_eight(args.own + first, left, whole, values);
    else
      load_eight((const Wire*)args.first + first, left, whole, values);
    if (args.message) {
#pragma unroll
      for (int i = 0; i < EACH; ++i) values[i] = add(values[i], other[i]);
    }
    if (args.sums) store_eight(args.sums + first, left, whole, values);
    if (args.out) {
      Wire* out = (Wire*)args.out + first;
      round_to(out, values);
      store_eight(out, left, whole, values);
    }
    if (args.mean) {
      divide(values, args.workers);
      store_eight((Bucket*)args.mean + first, left, whole, values);
    }
  }
}

template <class Bucket, class Wire>
int launch(const gradwire_cast& args, cudaStream_t stream) {
  const auto kernel = cast_slice<Bucket, Wire>;
  const bool inputs = aligned(args.x) && aligned(args.own) && aligned(args.first) && aligned(args.message);
  const bool vectors = inputs && aligned(args.sums) && aligned(args.out) && aligned(args.mean);
  const int grid = grid_of(kernel, divide_up(items_cast_slice(args), (int64_t)EACH * THREADS));
  GRADWIRE_LAUNCH(kernel, grid, THREADS, stream, args, vectors);
  return cudaGetLastError();
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
