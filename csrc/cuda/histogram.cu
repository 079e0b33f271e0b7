// Every block counts in shared memory, by integers alone, and adds what it found to the result: no order
// matters. Energies are sums of floats: a block folds halves of 4096 values, which threads hold 16 each.
#include "gradwire/histogram.h"

#include "count.h"
#include "launch.h"

using namespace gradwire;
using namespace gradwire_cuda;

namespace {

constexpr int EACH = 8, STRIP = THREADS * EACH;
// Strips of a block at least: what it adds to the result is then worth it.
constexpr int STRIPS = 8;

// The values of EACH windows of a thread; those beyond the last window are zeros. Returns how many those are.
template <class T, class Args>
__device__ __forceinline__ uint32_t sample(const Args& args, int64_t first, int64_t total, float* values) {
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

constexpr int OF_PIECE = ENERGY_PIECE / THREADS;  // values of a thread, THREADS apart

struct ThreadSums {
  double at[THREADS];
};

// Adds up COUNT values, a power of two: k and k + COUNT / 2, and so on.
template <int COUNT>
__device__ __forceinline__ void fold(double* values) {
  constexpr int HALF = COUNT / 2;
#pragma unroll
  for (int k = 0; k < HALF; ++k) values[k] = add(values[k], values[k + HALF]);
  if constexpr (HALF > 1) fold<HALF>(values);
}

// With EVERY all coordinates are in the sample.
template <class T, bool EVERY>
__global__ void __launch_bounds__(THREADS)
    energies(const GRADWIRE_GRID_CONSTANT gradwire_sample_energies args) {
  GRADWIRE_SHARED(ThreadSums, threads);
  const int64_t total = windows_of(args), pieces = items_sampled_energies(args);
  const int lane = lane_of_thread(), warp = (int)threadIdx.x / WARP;
  uint32_t finite = 0, counted = 0;
  for (int64_t piece = blockIdx.x; piece < pieces; piece += gridDim.x) {
    float values[OF_PIECE];
#pragma unroll
    for (int k = 0; k < OF_PIECE; ++k) {
      const int64_t window = piece * ENERGY_PIECE + k * THREADS + threadIdx.x;
      values[k] = NAN;  // beyond the last: neither finite nor counted
      if (window < total)
        values[k] = load((const T*)args.x + (EVERY ? window : sampled_coordinate(args, window)));
    }
    double squares[OF_PIECE];
#pragma unroll
    for (int k = 0; k < OF_PIECE; ++k) {
      squares[k] = energy_of(values[k]);
      finite += is_finite(values[k]);
      counted += is_counted(values[k]);
    }
    fold<OF_PIECE>(squares);
    threads.at[threadIdx.x] = squares[0];
    __syncthreads();
    if (warp == 0) {
      double of_warps[WARPS];
#pragma unroll
      for (int k = 0; k < WARPS; ++k) of_warps[k] = threads.at[k * WARP + lane];
      fold<WARPS>(of_warps);
      double sum = of_warps[0];
#pragma unroll
      for (int distance = WARP / 2; distance; distance /= 2)
        sum = add(sum, __shfl_xor_sync(ALL, sum, distance));
      if (lane == 0) args.energies[piece] = sum;
    }
    __syncthreads();
  }
  count(args.numbers, finite);
  count(args.numbers + 1, counted);
}

// A product with the inverse errs by less than TINY where it matters: near the end of a bin the quotient
// decides.
__device__ __forceinline__ int32_t bin_of(float value, double width, double inverse) {
  constexpr float TINY = 1e-3f;
  const float steps = (float)mul((double)value, inverse), below = floorf(steps), beyond = steps - below;
  if (beyond > TINY && beyond < 1.0f - TINY) return bin_below(below);
  return equal_bin_of(value, width);
}

template <class T>
__global__ void __launch_bounds__(THREADS)
    equal_bins(const GRADWIRE_GRID_CONSTANT gradwire_equal_bins args, bool vectors) {
  typedef uint32_t Counts[EQUAL_BINS];
  GRADWIRE_SHARED(Counts, counts);
  for (int bin = threadIdx.x; bin < EQUAL_BINS; bin += THREADS) counts[bin] = 0;
  __syncthreads();
  const double inverse = 1.0 / args.width;
  const int64_t total = items_equal_bins_histogram(args);
  for (int64_t first = (int64_t)blockIdx.x * STRIP; first < total; first += (int64_t)gridDim.x * STRIP) {
    float values[EACH];
    if (vectors && first + STRIP <= total)
      load_aligned<EACH>((const T*)args.x + first + EACH * threadIdx.x, values);
    else
      sample<T>(args, first, total, values);
#pragma unroll
    for (int k = 0; k < EACH; ++k)
      if (is_counted(values[k])) atomicAdd(&counts[bin_of(values[k], args.width, inverse)], 1u);
  }
  __syncthreads();
  for (int bin = threadIdx.x; bin < EQUAL_BINS; bin += THREADS)
    if (counts[bin]) atomicAdd((unsigned long long*)args.counts + bin, (unsigned long long)counts[bin]);
}

template <class T>
int launch(const gradwire_sample_energies& args, cudaStream_t stream) {
  const auto kernel = args.stride == 1 ? energies<T, true> : energies<T, false>;
  GRADWIRE_LAUNCH(kernel, grid_of(kernel, items_sampled_energies(args)), THREADS, stream, args);
  return cudaGetLastError();
}
template <class T>
int launch(const gradwire_equal_bins& args, cudaStream_t stream) {
  const auto kernel = equal_bins<T>;
  const int grid = grid_of(kernel, divide_up(windows_of(args), STRIP * STRIPS), 1);
  GRADWIRE_LAUNCH(kernel, grid, THREADS, stream, args, args.stride == 1 && aligned(args.x));
  return cudaGetLastError();
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

GRADWIRE_API int gradwire_sampled_energies(const gradwire_sample_energies* args) {
  GRADWIRE_CUDA_BEGIN(sampled_energies, args);
  return args->call.dtype == GRADWIRE_FLOAT32 ? launch<float>(*args, stream)
                                              : launch<uint16_t>(*args, stream);
}

GRADWIRE_API int gradwire_equal_bins_histogram(const gradwire_equal_bins* args) {
  GRADWIRE_CUDA_BEGIN(equal_bins_histogram, args);
  return args->call.dtype == GRADWIRE_FLOAT32 ? launch<float>(*args, stream)
                                              : launch<uint16_t>(*args, stream);
}
