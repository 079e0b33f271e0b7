// One hop of DynamiQ on some super-groups of a message, one after another, each held in arrays near the core.
#include "dynamiq_encode.h"

using namespace gradwire;

namespace {

template <class T>
void take(const gradwire_dynamiq& args, int64_t row, Row& values) {
  const int64_t super_group = args.gather ? (int64_t)args.order[row] : row;
  const T* x = (const T*)args.x + super_group * SUPER_GROUP;
  if (!args.gather) {
    for (int k = 0; k < SUPER_GROUP; ++k) values.values[k] = load(x + k);
    return;
  }
  const float mean = args.mean[row];
  const int64_t count = smaller(args.numel - super_group * SUPER_GROUP, (int64_t)SUPER_GROUP);
  if (count == SUPER_GROUP) {
    GRADWIRE_SIMD
    for (int k = 0; k < SUPER_GROUP; ++k) values.values[k] = sub(load(x + k), mean);
  } else {  // beyond the end are zeros, unless the mean is NaN
    for (int k = 0; k < SUPER_GROUP; ++k) values.values[k] = sub(k < count ? load(x + k) : mean, mean);
  }
}

template <class T>
void give(const gradwire_dynamiq& args, int64_t row, const Row& values) {
  const int64_t super_group = args.scatter ? (int64_t)args.order[row] : row;
  T* out = (T*)args.out + super_group * SUPER_GROUP;
  if (!args.scatter) {
    for (int k = 0; k < SUPER_GROUP; ++k) store(out + k, values.values[k]);
    return;
  }
  const float mean = args.mean[row], inverse = args.inverse;
  const int64_t count = smaller(args.numel - super_group * SUPER_GROUP, (int64_t)SUPER_GROUP);
  if (count == SUPER_GROUP) {
    GRADWIRE_SIMD
    for (int k = 0; k < SUPER_GROUP; ++k) store(out + k, add(mul(values.values[k], inverse), mean));
  } else {
    for (int k = 0; k < count; ++k) store(out + k, add(mul(values.values[k], inverse), mean));
  }
}

// Values of 16 codes; those of symmetric values are looked up without their sign.
template <int WIDTH>
struct Decoder {
  static constexpr int SIZE = WIDTH == 16 ? 16 : WIDTH <= 4 ? 16 : 1 << WIDTH;
  Table<WIDTH == 8 ? 128 : SIZE> lower, upper;
  bool symmetric;
  Decoder(const gradwire_values& values, int book)
      : lower(values.decoded[book]),
        upper(values.decoded[book] + (WIDTH == 8 ? 128 : 0)),
        symmetric(values.kind != GRADWIRE_DISTINCT) {}
  __attribute__((always_inline)) void find(const uint32_t* codes, float* found) const {
    if constexpr (WIDTH == 16) {
      GRADWIRE_SIMD
      for (int k = 0; k < 16; ++k) found[k] = decoded_level(codes[k]);
    } else if constexpr (WIDTH == 8) {
      alignas(64) int32_t index[16];
      alignas(64) float negative[16];
      GRADWIRE_SIMD
      for (int k = 0; k < 16; ++k) index[k] = (int32_t)(codes[k] & 127u);
      lower.find(index, found);
      if (symmetric) {
        GRADWIRE_SIMD
        for (int k = 0; k < 16; ++k) found[k] = float_of(bits_of(found[k]) | (codes[k] & 128u) << 24);
      } else {
        upper.find(index, negative);
        GRADWIRE_SIMD
        for (int k = 0; k < 16; ++k) found[k] = codes[k] & 128u ? negative[k] : found[k];
      }
    } else {
      lower.find((const int32_t*)codes, found);
    }
  }
};

// What a row of the message stands for, added to `row`, or in its place.
template <int WIDTH, bool ADD>
void decode(const gradwire_dynamiq& args, const gradwire_values& values, const uint8_t* in,
            const uint8_t* group_scales, const uint8_t* scale, Row& row) {
  alignas(64) uint32_t codes[SUPER_GROUP];
  unpack_codes<WIDTH>(in, codes);
  const int wide = args.group / 16;
  uint16_t pattern = 0;
  if (!args.bf16_scales) memcpy(&pattern, scale, 2);
  const int book = values.points ? pattern & 1 : 0;
  const uint32_t unmarked = args.codebooks > 1 ? pattern & ~1u : pattern;
  const float unit = div(scale_value(unmarked), 255.0f);
  const Decoder<WIDTH> decoder(values, book);
  for (int group = 0; group < GROUPS; ++group) {
    float step;
    if (args.bf16_scales) {
      uint16_t stored;
      memcpy(&stored, group_scales + group / wide * 2, 2);
      step = scale_value(stored);
    } else {
      step = mul(unit, (float)(int32_t)group_scales[group / wide]);
    }
    alignas(64) float found[16];
    decoder.find(codes + 16 * group, found);
    float* target = row.values + 16 * group;
    GRADWIRE_SIMD
    for (int k = 0; k < 16; ++k) {
      const float value = mul(found[k], step);
      target[k] = ADD ? add(target[k], value) : value;
    }
  }
}

// Super-groups come in no order that a core could foresee: their coordinates are asked for some rows ahead.
// From memory that halves the time of encoding and quarters that of decoding. Inlined, because GCC takes a
// function that only fetches for one that does nothing.
enum { AHEAD = 4 };

inline __attribute__((always_inline)) void fetch(const gradwire_dynamiq& args, int64_t row, bool wide_x,
                                                 bool wide_out) {
  if (args.x && args.gather) {
    const char* x = (const char*)args.x + (int64_t)args.order[row] * SUPER_GROUP * (wide_x ? 4 : 2);
    for (int line = 0; line < (wide_x ? 16 : 8); ++line) __builtin_prefetch(x + 64 * line, 0, 2);
  }
  if (args.out && args.scatter) {
    char* out = (char*)args.out + (int64_t)args.order[row] * SUPER_GROUP * (wide_out ? 4 : 2);
    for (int line = 0; line < (wide_out ? 16 : 8); ++line) __builtin_prefetch(out + 64 * line, 1, 2);
  }
}

// Rows `first` to `last`, of slot `slot`.
template <int WIDTH>
void hop(const gradwire_dynamiq& args, const Layout& layout, int slot, int64_t first, int64_t last) {
  const gradwire_values& values = args.values[slot];
  const int64_t end_of_codes = layout.codes[WIDTH_SLOTS], groups = bytes_of_groups(args);
  const bool wide_x = !args.gather || args.call.dtype == GRADWIRE_FLOAT32;
  const bool wide_out = !args.scatter || args.call.dtype == GRADWIRE_FLOAT32;
  Row sum;
  for (int64_t row = first; row < last; ++row) {
    if (row + AHEAD < args.rows) fetch(args, row + AHEAD, wide_x, wide_out);
    const int64_t own = layout.codes[slot] + (row - layout.rows[slot]) * 32 * WIDTH,
                  scales = end_of_codes + row * groups, scale = layout.end_of_groups + 2 * row;
    if (args.x) {
      if (wide_x)
        take<float>(args, row, sum);
      else
        take<uint16_t>(args, row, sum);
      if (args.incoming)
        decode<WIDTH, true>(args, values, args.incoming + own, args.incoming + scales, args.incoming + scale,
                            sum);
    } else {
      decode<WIDTH, false>(args, values, args.incoming + own, args.incoming + scales, args.incoming + scale,
                           sum);
    }
    if (args.outgoing) {
      encode<WIDTH>(args, sum, values, (uint32_t)args.order[row], args.outgoing + own, args.outgoing + scales,
                    args.outgoing + scale);
      if (!args.out) continue;
      decode<WIDTH, false>(args, values, args.outgoing + own, args.outgoing + scales, args.outgoing + scale,
                           sum);
    }
    if (wide_out) {
      give<float>(args, row, sum);
    } else {
      give<uint16_t>(args, row, sum);
    }
  }
}

// Where the counts are not those of the chunk.
void give_nan(const gradwire_dynamiq& args, int64_t first, int64_t last) {
  Row nan;
  for (float& value : nan.values) value = float_of(NOT_A_NUMBER);
  for (int64_t row = first; row < last; ++row) {
    if (!args.scatter || args.call.dtype == GRADWIRE_FLOAT32)
      give<float>(args, row, nan);
    else
      give<uint16_t>(args, row, nan);
  }
}

// Rows `begin` to `end` of a chunk.
void hop_rows(const gradwire_dynamiq& args, int64_t begin, int64_t end) {
  const Layout layout = layout_of(args);
  if (args.outgoing && end == args.rows)
    memset(args.outgoing + layout.used_bytes, rest_of_message(layout.possible),
           (size_t)(args.outgoing_bytes - layout.used_bytes));
  if (args.out && !layout.possible) give_nan(args, begin, end);
  for (int slot = 0; slot < WIDTH_SLOTS; ++slot) {
    const int64_t first = larger(begin, layout.rows[slot]), last = smaller(end, layout.rows[slot + 1]);
    if (first >= last) continue;
    switch (width_of_slot(slot)) {
      case 16: hop<16>(args, layout, slot, first, last); break;
      case 8: hop<8>(args, layout, slot, first, last); break;
      case 6: hop<6>(args, layout, slot, first, last); break;
      case 5: hop<5>(args, layout, slot, first, last); break;
      case 4: hop<4>(args, layout, slot, first, last); break;
      case 3: hop<3>(args, layout, slot, first, last); break;
      case 2: hop<2>(args, layout, slot, first, last); break;
      default: hop<1>(args, layout, slot, first, last); break;
    }
  }
}

}  // namespace

GRADWIRE_CPU_KERNEL(dynamiq_hop, gradwire_dynamiq, 64) {
  if (!args.chunks) return hop_rows(args, begin, end);
  int64_t row = 0;
  for (int32_t i = 0; i < args.chunk_count && row < end; row += args.chunks[i++].rows) {
    const int64_t first = larger(begin, row), last = smaller(end, row + args.chunks[i].rows);
    if (first < last) hop_rows(chunks_of(args, i, 1), first - row, last - row);
  }
}

// Nothing: the kernels read the values as they are.
GRADWIRE_CPU_KERNEL(dynamiq_tables, gradwire_dynamiq_values, 1) {
  (void)args;
  (void)begin;
  (void)end;
}
