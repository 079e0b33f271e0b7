#include "gradwire/norms.h"

#include "kernel.h"

using namespace gradwire;

namespace {

// Halves are added until one value is left: k and k + COUNT / 2, then k and k + COUNT / 4, and so on.
template <int COUNT, class Value>
Value fold(Value* values) {
  for (int half = COUNT / 2; half >= 16; half /= 2) {
    GRADWIRE_SIMD
    for (int k = 0; k < half; ++k) values[k] = add(values[k], values[k + half]);
  }
  for (int half = COUNT < 32 ? COUNT / 2 : 8; half >= 1; half /= 2)
    for (int k = 0; k < half; ++k) values[k] = add(values[k], values[k + half]);
  return values[0];
}

// The energy of `count` coordinates as if zeros followed up to WIDTH, or up to TILE: zeros change no bit.
template <int WIDTH, class T>
double energy(const T* x, int64_t count) {
  T padded[WIDTH];
  if (count < WIDTH) {
    for (int k = 0; k < WIDTH; ++k) padded[k] = k < count ? x[k] : (T)0;
    x = padded;
  }
  alignas(64) float values[WIDTH];
  uint32_t maximum = 0;
#pragma omp simd reduction(max : maximum)
  for (int k = 0; k < WIDTH; ++k) {
    values[k] = load(x + k);
    maximum = larger(maximum, magnitude_bits(values[k]));
  }
  const int32_t field = exponent_of(maximum);
  const float normalizer = normalizer_of(field);
  GRADWIRE_SIMD
  for (int k = 0; k < WIDTH / 2; ++k) {
    const float a = mul(values[k], normalizer), b = mul(values[k + WIDTH / 2], normalizer);
    values[k] = add(mul(a, a), mul(b, b));
  }
  return tile_energy(fold<WIDTH / 2>(values), field);
}

template <class T>
double energy_of_tiles(const T* x, int64_t count) {
  double sums[PARTIAL_SUMS] = {};
  for (int64_t tile = 0, first = 0; first < count; ++tile, first += TILE) {
    double& sum = sums[tile % PARTIAL_SUMS];
    sum = add(sum, energy<TILE>(x + first, smaller(count - first, (int64_t)TILE)));
  }
  return fold<PARTIAL_SUMS>(sums);
}

template <class T>
void energies(const gradwire_norms& args, int64_t begin, int64_t end) {
  for (int64_t block = begin; block < end; ++block) {
    const T* x = (const T*)args.x + block * args.block;
    const int64_t count = smaller(args.numel - block * args.block, args.block);
    const double sum = args.block <= 16    ? energy<16>(x, count)
                       : args.block <= 64  ? energy<64>(x, count)
                       : args.block <= 256 ? energy<256>(x, count)
                                           : energy_of_tiles(x, count);
    args.energies[block] = block_energy(sum);
  }
}

}  // namespace

GRADWIRE_CPU_KERNEL(block_energies, gradwire_norms, divide_up(1 << 17, args->block)) {
  if (args.call.dtype == GRADWIRE_FLOAT32)
    energies<float>(args, begin, end);
  else
    energies<uint16_t>(args, begin, end);
}
