#include "gradwire/cast.h"

#include "kernel.h"

using namespace gradwire;

namespace {

// Coordinates that stay in the first cache from one loop to the next.
enum { STRIP = 1024 };

template <class T>
void load_strip(const T* source, int count, float* values) {
  GRADWIRE_SIMD
  for (int k = 0; k < count; ++k) values[k] = load(source + k);
}

template <class T>
void add_strip(const T* source, int count, float* values) {
  GRADWIRE_SIMD
  for (int k = 0; k < count; ++k) values[k] = add(values[k], load(source + k));
}

template <class T>
void store_strip(const float* values, int count, T* target) {
  GRADWIRE_SIMD
  for (int k = 0; k < count; ++k) store(target + k, values[k]);
}

template <class T>
void store_mean(const float* values, int count, int32_t workers, T* target) {
  const float divisor = (float)workers, inverse = div(1.0f, divisor);
  if (divides_exactly(workers)) {
    GRADWIRE_SIMD
    for (int k = 0; k < count; ++k) store(target + k, mul(values[k], inverse));
  } else {
    GRADWIRE_SIMD
    for (int k = 0; k < count; ++k) store(target + k, div(values[k], divisor));
  }
}

template <class Bucket, class Wire>
void cast(const gradwire_cast& args, int64_t begin, int64_t end) {
  alignas(64) float values[STRIP];
  for (int64_t first = begin; first < end; first += STRIP) {
    const int count = (int)smaller(end - first, (int64_t)STRIP);
    if (args.x)
      load_strip((const Bucket*)args.x + first, count, values);
    else if (args.own)
      load_strip(args.own + first, count, values);
    else
      load_strip((const Wire*)args.first + first, count, values);
    if (args.message) add_strip((const Wire*)args.message + first, count, values);
    if (args.sums) store_strip(values, count, args.sums + first);
    if (args.out) {
      Wire* out = (Wire*)args.out + first;
      store_strip(values, count, out);
      if (args.mean && sizeof(Wire) < sizeof(float)) load_strip(out, count, values);
    }
    if (args.mean) store_mean(values, count, args.workers, (Bucket*)args.mean + first);
  }
}

}  // namespace

GRADWIRE_CPU_KERNEL(cast_slice, gradwire_cast, 1 << 15) {
  const bool wide = args.call.dtype == GRADWIRE_FLOAT32;
  if (args.wire == GRADWIRE_FLOAT32)
    wide ? cast<float, float>(args, begin, end) : cast<uint16_t, float>(args, begin, end);
  else
    wide ? cast<float, uint16_t>(args, begin, end) : cast<uint16_t, uint16_t>(args, begin, end);
}
