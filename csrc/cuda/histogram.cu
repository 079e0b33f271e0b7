// Every block counts in shared memory, by integers alone, and adds what it found to the result: no order
// matters.
#include "gradwire/histogram.h"

#include "launch.h"

using namespace gradwire;
using namespace gradwire_cuda;

namespace {

constexpr int EACH = 8, STRIP = THREADS * EACH;
// Strips of a block at least: what it adds to the result is then worth it.
constexpr int STRIPS = 8;

// The values of EACH windows of a thread; those beyond the last window are zeros. Returns how many those are.
template <class T>
__device__ __forceinline__ uint32_t sample(const gradwire_histogram& args, int64_t first, int64_t total,
                                           float* values) {
  uint32_t missing = 0;
#pragma unroll
  for (int k = 0; k < EACH; ++k) {
    const int64_t window = first + k * THREADS + threadIdx.x;
    values[k] = window < total ? load((const T*)args.x + sampled_coordinate(args, window)) : 0.0f;
    missing += window >= total;
  }
  return missing;
}

// With `vectors` every coordinate is counted, and loads take 16 bytes.
template <class T>
__global__ void __launch_bounds__(THREADS)
    histogram(const GRADWIRE_GRID_CONSTANT gradwire_histogram args, bool vectors) {
  typedef uint32_t Counts[COUNTERS];
  GRADWIRE_SHARED(Counts, counts);
  for (int counter = threadIdx.x; counter < COUNTERS; counter += THREADS) counts[counter] = 0;
  __syncthreads();
  const int64_t total = items_sampled_histogram(args);
  uint32_t zeros = 0;  // often many: not counted one by one
  for (int64_t first = (int64_t)blockIdx.x * STRIP; first < total; first += (int64_t)gridDim.x * STRIP) {
    float values[EACH];
    if (vectors && first + STRIP <= total)
      load_aligned<EACH>((const T*)args.x + first + EACH * threadIdx.x, values);
    else
      zeros -= sample<T>(args, first, total, values);
#pragma unroll
    for (int k = 0; k < EACH; ++k) {
      const uint32_t counter = counter_of(values[k]);
      if (counter == ZEROS)
        ++zeros;
      else
        atomicAdd(&counts[counter], 1u);
    }
  }
  if (zeros) atomicAdd(&counts[ZEROS], zeros);
  __syncthreads();
  for (int counter = threadIdx.x; counter < COUNTERS; counter += THREADS)
    if (counts[counter])
      atomicAdd((unsigned long long*)args.counts + counter, (unsigned long long)counts[counter]);
}

template <class T>
int launch(const gradwire_histogram& args, cudaStream_t stream) {
  const auto kernel = histogram<T>;
  const int grid = grid_of(kernel, divide_up(items_sampled_histogram(args), STRIP * STRIPS), 1);
  GRADWIRE_LAUNCH(kernel, grid, THREADS, stream, args, args.stride == 1 && aligned(args.x));
  return cudaGetLastError();
}

}  // namespace

GRADWIRE_API int gradwire_sampled_histogram(const gradwire_histogram* args) {
  GRADWIRE_CUDA_BEGIN(sampled_histogram, args);
  return args->call.dtype == GRADWIRE_FLOAT32 ? launch<float>(*args, stream)
                                              : launch<uint16_t>(*args, stream);
}
