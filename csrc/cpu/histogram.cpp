#include "gradwire/histogram.h"

#include "kernel.h"

using namespace gradwire;

namespace {

// Neighbours are counted in different tables: an increment need not wait for the one before it.
enum { TABLES = 4, STRIP = 256, LARGEST_COUNT = 1 << 30 };

struct Tables {
  uint32_t counts[TABLES][COUNTERS];
};

template <class T>
void count(const gradwire_histogram& args, int64_t begin, int64_t end, Tables& tables) {
  const T* x = (const T*)args.x;
  for (int64_t first = begin; first < end; first += STRIP) {
    const int length = (int)smaller(end - first, (int64_t)STRIP);
    alignas(64) uint32_t counters[STRIP];
    if (args.stride == 1) {
      GRADWIRE_SIMD
      for (int k = 0; k < length; ++k) counters[k] = counter_of(load(x + first + k));
    } else {
      const uint32_t low = (uint32_t)first, high = (uint32_t)(first >> 32);
      GRADWIRE_SIMD
      for (int k = 0; k < length; ++k)
        counters[k] = draw(args, low + (uint32_t)k, high + (uint32_t)(low + (uint32_t)k < low));
      for (int k = 0; k < length; ++k)
        counters[k] = counter_of(load(x + sampled_coordinate(args, first + k, counters[k])));
    }
    int k = 0;
    for (; k + TABLES <= length; k += TABLES)
      for (int table = 0; table < TABLES; ++table) ++tables.counts[table][counters[k + table]];
    for (; k < length; ++k) ++tables.counts[0][counters[k]];
  }
}

template <class Args>
float drawn_value(const Args& args, int64_t window) {
  const int64_t place = args.stride == 1 ? window : sampled_coordinate(args, window);
  return args.call.dtype == GRADWIRE_FLOAT32 ? load((const float*)args.x + place)
                                             : load((const uint16_t*)args.x + place);
}

// Other threads add theirs at the same time.
void add_to(int64_t* numbers, const int64_t* own, int count) {
  for (int i = 0; i < count; ++i)
    if (own[i]) __atomic_fetch_add(numbers + i, own[i], __ATOMIC_RELAXED);
}
void add_to(int64_t* counts, const Tables& tables) {
  for (int counter = 0; counter < COUNTERS; ++counter) {
    int64_t sum = 0;
    for (int table = 0; table < TABLES; ++table) sum += tables.counts[table][counter];
    if (sum) __atomic_fetch_add(counts + counter, sum, __ATOMIC_RELAXED);
  }
}

}  // namespace

GRADWIRE_CPU_KERNEL(sampled_histogram, gradwire_histogram, 1 << 15) {
  for (int64_t first = begin; first < end; first += LARGEST_COUNT) {
    const int64_t last = smaller(first + LARGEST_COUNT, end);
    Tables tables;
    memset(&tables, 0, sizeof tables);
    if (args.call.dtype == GRADWIRE_FLOAT32)
      count<float>(args, first, last, tables);
    else
      count<uint16_t>(args, first, last, tables);
    add_to(args.counts, tables);
  }
}

// Halves are folded, as codecs/arithmetic/floats.py says.
GRADWIRE_CPU_KERNEL(sampled_energies, gradwire_sample_energies, 4) {
  int64_t numbers[2] = {};
  const int64_t total = windows_of(args);
  for (int64_t piece = begin; piece < end; ++piece) {
    alignas(64) double squares[ENERGY_PIECE] = {};
    const int64_t first = piece * ENERGY_PIECE;
    const int length = (int)smaller(total - first, (int64_t)ENERGY_PIECE);
    for (int k = 0; k < length; ++k) {
      const float value = drawn_value(args, first + k);
      squares[k] = energy_of(value);
      numbers[0] += is_finite(value);
      numbers[1] += is_counted(value);
    }
    for (int half = ENERGY_PIECE / 2; half; half /= 2)
      for (int k = 0; k < half; ++k) squares[k] = add(squares[k], squares[k + half]);
    args.energies[piece] = squares[0];
  }
  add_to(args.numbers, numbers, 2);
}

GRADWIRE_CPU_KERNEL(equal_bins_histogram, gradwire_equal_bins, 1 << 15) {
  int64_t counts[EQUAL_BINS] = {};
  for (int64_t window = begin; window < end; ++window) {
    const float value = drawn_value(args, window);
    if (is_counted(value)) ++counts[equal_bin_of(value, args.width)];
  }
  add_to(args.counts, counts, EQUAL_BINS);
}
