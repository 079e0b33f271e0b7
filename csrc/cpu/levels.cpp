#include "gradwire/levels.h"

#include "dithers.h"
#include "group_sums.h"

using namespace gradwire;

namespace {

struct Row {
  alignas(64) float values[ROW];
  alignas(64) uint32_t dithers[ROW];
  alignas(64) uint32_t codes[ROW];
};

// Rows that are treated together: finding a norm is a long chain of operations, of which several overlap.
enum { ROWS = 4, SCALES = ROWS * MOST_GROUPS };

// The scales of the groups of some rows, row after row.
struct Scales {
  alignas(64) uint32_t largest[SCALES];
  alignas(64) float squares[SCALES];
  alignas(64) float norm[SCALES], normalizer[SCALES], unit[SCALES];
  alignas(64) uint32_t kept[SCALES];  // the bits of codes: none if the group is not finite

  void normalize(int groups) {
    GRADWIRE_SIMD
    for (int i = 0; i < groups; ++i) normalizer[i] = normalizer_of_largest(largest[i]).factor;
  }
  void finish(int groups, bool l2, float last) {
    GRADWIRE_SIMD
    for (int i = 0; i < groups; ++i) {
      const LevelScale scale = level_scale(largest[i], l2, squares[i], last);
      norm[i] = scale.norm;
      unit[i] = scale.unit;
      kept[i] = scale.finite ? ~0u : 0u;
    }
  }
};

template <int SPAN>
void square_row(const float* values, int group, const float* normalizer, float* squares) {
  const int shift = __builtin_ctz(group);
  for (int i = 0; i < ROW; i += SPAN) {
    const float factor = normalizer[i >> shift];
    GRADWIRE_SIMD
    for (int k = i; k < i + SPAN; ++k) {
      const float scaled = mul(values[k], factor);
      squares[k] = mul(scaled, scaled);
    }
  }
}

// `scale`: of the row's first group.
template <int SPAN>
void encode_row(Row& row, int group, const Scales& scales, int scale, float last, int bits) {
  const int shift = __builtin_ctz(group);
  for (int i = 0; i < ROW; i += SPAN) {
    const int own = scale + (i >> shift);
    const float normalizer = scales.normalizer[own], unit = scales.unit[own];
    const uint32_t kept = scales.kept[own];
    GRADWIRE_SIMD
    for (int k = i; k < i + SPAN; ++k)
      row.codes[k] = level_code(mul(row.values[k], normalizer), unit, last, row.dithers[k], bits) & kept;
  }
}

// The scales of some rows of whole groups.
template <int SPAN>
void find_scales(const Row* rows, int count, Scales& scales, const gradwire_levels& args) {
  const int group = args.group, groups = ROW / group;
  for (int i = 0; i < count; ++i) largest_of_groups(rows[i].values, group, scales.largest + i * groups);
  scales.normalize(count * groups);
  if (args.l2) {
    for (int i = 0; i < count; ++i) {
      alignas(64) float squares[ROW];
      square_row<SPAN>(rows[i].values, group, scales.normalizer + i * groups, squares);
      sums_of_groups(squares, group, scales.squares + i * groups);
    }
  }
  scales.finish(count * groups, args.l2, last_position(args.bits));
}

template <int SPAN>
void decode_row(const uint32_t* codes, const float* steps, int group, int bits, float* values) {
  const int shift = __builtin_ctz(group);
  for (int i = 0; i < ROW; i += SPAN) {
    const float step = steps[i >> shift];
    GRADWIRE_SIMD
    for (int k = i; k < i + SPAN; ++k) values[k] = level_value(codes[k], step, bits);
  }
}

// Rows of values that a message stands for.
class Decoder {
 public:
  explicit Decoder(const gradwire_levels& args)
      : args_(args),
        unpack_(unpacker_of(args.bits)),
        norms_(scales_of(args.message_in, args.numel, args.bits)) {}

  void read(int64_t first, int64_t count, float* values) const {
    alignas(64) uint32_t codes[ROW];
    alignas(64) float steps[MOST_GROUPS];
    const int groups = (int)divide_up(count, args_.group), group = smaller(args_.group, (int32_t)ROW);
    unpack_(args_.message_in + first / 8 * args_.bits, count, codes);
    memcpy(steps, norms_ + first / args_.group * 4, (size_t)(4 * groups));
    GRADWIRE_SIMD
    for (int i = 0; i < groups; ++i) steps[i] = step_of(steps[i], args_.bits);
    with_span(group, [&](auto span) { decode_row<span.value>(codes, steps, group, args_.bits, values); });
  }

 private:
  const gradwire_levels& args_;
  const UnpackRow unpack_;
  const uint8_t* const norms_;
};

template <class T>
class Encoder {
 public:
  explicit Encoder(const gradwire_levels& args)
      : args_(args),
        values_((const T*)args.values_in),
        decoder_(args),
        stream_(stream_of(args)),
        last_(last_position(args.bits)),
        pack_(packer_of(args.bits)) {}

  // Up to ROWS rows of whole groups.
  template <int SPAN>
  void run_rows(int64_t begin, int64_t end) {
    const int rows = (int)divide_up(end - begin, ROW);
    for (int i = 0; i < rows; ++i) load(begin + i * ROW, end, rows_[i].values);
    find_scales<SPAN>(rows_, rows, scales_, args_);
    for (int i = 0; i < rows; ++i)
      encode<SPAN>(i, args_.group, i * (ROW / args_.group), begin + i * ROW, end);
    store_norms(begin, end);
  }

  // A group longer than a row.
  void run_group(int64_t begin) {
    const int64_t end = smaller(begin + args_.group, args_.numel);
    find_scale(begin, end);
    for (int64_t first = begin; first < end; first += ROW) {
      load(first, end, rows_[0].values);
      encode<ROW>(0, ROW, 0, first, end);
    }
    store_norms(begin, end);
  }

 private:
  // Coordinates from `first` on, zeros from `end` on.
  void load(int64_t first, int64_t end, float* row) {
    const int64_t count = larger(smaller(end - first, (int64_t)ROW), (int64_t)0);
    load_sums(values_, args_.message_in, decoder_, first, count, row);
  }

  // Finds the scale of a group longer than a row, into scales_[0].
  void find_scale(int64_t begin, int64_t end) {
    alignas(64) float row[ROW];
    uint32_t largest = 0;
    for (int64_t first = begin; first < end; first += ROW) {
      load(first, end, row);
      largest = larger(largest, largest_of(row, ROW));
    }
    scales_.largest[0] = largest;
    scales_.normalize(1);
    if (args_.l2) {
      const int64_t rows = args_.group / ROW;
      LongSum sum;
      for (int64_t i = 0; i < rows; ++i) {
        load(begin + i * ROW, end, row);
        square_row<ROW>(row, ROW, scales_.normalizer, row);
        sum.add_row(i, row);
      }
      scales_.squares[0] = sum.total(rows);
    }
    scales_.finish(1, args_.l2, last_);
  }

  template <int SPAN>
  void encode(int i, int group, int scale, int64_t first, int64_t end) {
    dithers_of_row(stream_, args_.first + first, rows_[i].dithers);
    encode_row<SPAN>(rows_[i], group, scales_, scale, last_, args_.bits);
    pack_(rows_[i].codes, smaller(end - first, (int64_t)ROW), args_.message_out + first / 8 * args_.bits);
  }

  void store_norms(int64_t begin, int64_t end) {
    uint8_t* const norms = args_.message_out + code_bytes(args_.numel, args_.bits);
    memcpy(norms + begin / args_.group * 4, scales_.norm, (size_t)(4 * divide_up(end - begin, args_.group)));
  }

  const gradwire_levels& args_;
  const T* const values_;
  const Decoder decoder_;
  const Stream stream_;
  const float last_;
  const PackRow pack_;
  Row rows_[ROWS];
  Scales scales_;
};

template <class T>
void encode(const gradwire_levels& args, int64_t begin, int64_t end) {
  Encoder<T> encoder(args);
  if (args.group > ROW) {
    for (int64_t item = begin; item < end; ++item) encoder.run_group(item * args.group);
    return;
  }
  for (int64_t item = begin; item < end; item += ROWS) {
    const int64_t first = item * ROW, last = smaller(smaller(item + ROWS, end) * ROW, args.numel);
    with_span(args.group, [&](auto span) { encoder.template run_rows<span.value>(first, last); });
  }
}

}  // namespace

GRADWIRE_CPU_KERNEL(levels_encode, gradwire_levels, args->group > 131072 / 256 ? 131072 / args->group : 256) {
  if (args.call.dtype == GRADWIRE_FLOAT32)
    encode<float>(args, begin, end);
  else
    encode<uint16_t>(args, begin, end);
}

GRADWIRE_CPU_KERNEL(levels_decode, gradwire_levels, 512) {
  store_decoded<false>(Decoder(args), args.numel, begin, end, args.values_out);
}

GRADWIRE_CPU_KERNEL(levels_add, gradwire_levels, 512) {
  store_decoded<true>(Decoder(args), args.numel, begin, end, args.values_out);
}
