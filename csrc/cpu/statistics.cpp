#include "gradwire/statistics.h"

#include "kernel.h"

using namespace gradwire;

namespace {

// Halves are added until one value is left: coordinate k meets k + 128, sums k and k + 64, and so on.
float fold(float* values) {
  for (int half = SUPER_GROUP / 2; half >= 16; half /= 2) {
    GRADWIRE_SIMD
    for (int k = 0; k < half; ++k) values[k] = add(values[k], values[k + half]);
  }
  for (int half = 8; half >= 1; half /= 2)
    for (int k = 0; k < half; ++k) values[k] = add(values[k], values[k + half]);
  return values[0];
}

template <class T>
void statistics(const gradwire_statistics& args, int64_t begin, int64_t end) {
  for (int64_t group = begin; group < end; ++group) {
    const T* x = (const T*)args.x + group * SUPER_GROUP;
    const int64_t count = smaller(args.numel - group * SUPER_GROUP, (int64_t)SUPER_GROUP);
    alignas(64) float values[SUPER_GROUP], squares[SUPER_GROUP];
    uint32_t maximum = 0;
    if (count == SUPER_GROUP) {
#pragma omp simd reduction(max : maximum)
      for (int k = 0; k < SUPER_GROUP; ++k) {
        values[k] = load(x + k);
        maximum = larger(maximum, magnitude_bits(values[k]));
      }
    } else {
      for (int k = 0; k < SUPER_GROUP; ++k) {
        values[k] = k < count ? load(x + k) : 0.0f;
        maximum = larger(maximum, magnitude_bits(values[k]));
      }
    }
    const int32_t field = exponent_of(maximum);
    const float normalizer = normalizer_of(field), restorer = restorer_of(field);
    GRADWIRE_SIMD
    for (int k = 0; k < SUPER_GROUP; ++k) {
      values[k] = mul(values[k], normalizer);
      squares[k] = mul(values[k], values[k]);
    }
    args.mean[group] = mean_of(fold(values), count, restorer);
    args.norm[group] = norm_of(fold(squares), restorer);
  }
}

}  // namespace

GRADWIRE_CPU_KERNEL(super_group_statistics, gradwire_statistics, 256) {
  if (args.call.dtype == GRADWIRE_FLOAT32)
    statistics<float>(args, begin, end);
  else
    statistics<uint16_t>(args, begin, end);
}
