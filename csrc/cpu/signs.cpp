#include "gradwire/signs.h"

#include "group_sums.h"

using namespace gradwire;

namespace {

// Bit k of it is 1 << k.
alignas(64) const uint32_t BIT[NEIGHBOURS] = {1,       1 << 1,  1 << 2,  1 << 3, 1 << 4,  1 << 5,
                                              1 << 6,  1 << 7,  1 << 8,  1 << 9, 1 << 10, 1 << 11,
                                              1 << 12, 1 << 13, 1 << 14, 1 << 15};

// Which of a row's coordinates are negative, a bit each.
void signs_of_row(const float* row, uint8_t* signs) {
  for (int k = 0; k < ROW; k += 8) {
#if defined(__AVX512F__)
    signs[k / 8] = _mm256_cmp_ps_mask(_mm256_load_ps(row + k), _mm256_setzero_ps(), _CMP_LT_OQ);
#elif defined(__AVX2__)
    signs[k / 8] =
        (uint8_t)_mm256_movemask_ps(_mm256_cmp_ps(_mm256_load_ps(row + k), _mm256_setzero_ps(), _CMP_LT_OQ));
#else
    uint32_t byte = 0;
    for (int i = 0; i < 8; ++i) byte |= (uint32_t)(row[k + i] < 0.0f) << i;
    signs[k / 8] = (uint8_t)byte;
#endif
  }
}

// In the signs of a group.
int ones(const uint8_t* signs, int bytes) {
  int count = 0;
  for (int i = 0; i < bytes; i += 8) {
    uint64_t word = 0;
    if (bytes >= 8)
      memcpy(&word, signs + i, 8);
    else
      for (int k = 0; k < bytes; ++k) word = word << 8 | signs[k];
    count += __builtin_popcountll(word);
  }
  return count;
}

// A row's normalized coordinates, those of either sign with zeros for the others.
template <int SPAN>
void part_row(const float* row, int group, const float* normalizer, float* positive, float* negative) {
  const int shift = __builtin_ctz(group);
  for (int i = 0; i < ROW; i += SPAN) {
    const float factor = normalizer[i >> shift];
    GRADWIRE_SIMD
    for (int k = i; k < i + SPAN; ++k) {
      positive[k] = positive_part(row[k], factor);
      negative[k] = negative_part(row[k], factor);
    }
  }
}

// The means of a row's groups, `count` of whose coordinates are there.
template <int SPAN>
void store_means(const float* row, const uint8_t* signs, int group, int64_t count, uint8_t* means) {
  const int groups = ROW / group;
  alignas(64) uint32_t largest[MOST_GROUPS];
  alignas(64) float normalizer[MOST_GROUPS], sums[2][MOST_GROUPS], parts[2][ROW];
  alignas(64) int32_t counts[2][MOST_GROUPS];
  alignas(64) float both[2 * MOST_GROUPS];
  largest_of_groups(row, group, largest);
  GRADWIRE_SIMD
  for (int i = 0; i < groups; ++i) normalizer[i] = normalizer_of_largest(largest[i]).factor;
  part_row<SPAN>(row, group, normalizer, parts[0], parts[1]);
  for (int i = 0; i < groups; ++i) {
    counts[1][i] = ones(signs + i * group / 8, group / 8);
    counts[0][i] = smaller((int32_t)count - i * group, group) - counts[1][i];
  }
  for (int side = 0; side < 2; ++side) {
    sums_of_groups(parts[side], group, sums[side]);
    GRADWIRE_SIMD
    for (int i = 0; i < groups; ++i) sums[side][i] = sign_mean(sums[side][i], counts[side][i], largest[i]);
  }
  for (int i = 0; i < groups; ++i) {
    both[2 * i] = sums[0][i];
    both[2 * i + 1] = sums[1][i];
  }
  memcpy(means, both, (size_t)(8 * divide_up(count, group)));
}

template <int SPAN>
void decode_row(const uint8_t* signs, const float* means, int group, float* values) {
  const int shift = __builtin_ctz(group);
  for (int i = 0; i < ROW; i += SPAN) {
    const float positive = means[2 * (i >> shift)], negative = means[2 * (i >> shift) + 1];
    uint32_t bits = signs[i / 8];
    if (SPAN == 16) bits |= (uint32_t)signs[i / 8 + 1] << 8;
    GRADWIRE_SIMD
    for (int k = 0; k < SPAN; ++k) values[i + k] = bits & BIT[k] ? negative : positive;
  }
}

// Rows of values that a message stands for.
class Decoder {
 public:
  explicit Decoder(const gradwire_signs& args)
      : args_(args), means_(scales_of(args.message_in, args.numel, 1)) {}

  void read(int64_t first, int64_t count, float* values) const {
    alignas(64) float means[2 * MOST_GROUPS];
    uint8_t signs[ROW / 8] = {};
    memcpy(signs, args_.message_in + first / 8, (size_t)divide_up(count, 8));
    memcpy(means, means_ + first / args_.group * 8, (size_t)(8 * divide_up(count, args_.group)));
    if (args_.group == SMALLEST_GROUP)
      decode_row<SMALLEST_GROUP>(signs, means, args_.group, values);
    else
      decode_row<NEIGHBOURS>(signs, means, smaller(args_.group, (int32_t)ROW), values);
  }

 private:
  const gradwire_signs& args_;
  const uint8_t* const means_;
};

template <class T>
class Encoder {
 public:
  explicit Encoder(const gradwire_signs& args)
      : args_(args),
        values_((const T*)args.values_in),
        decoder_(args),
        means_(args.message_out + code_bytes(args.numel, 1)) {}

  // All rows of whole groups.
  void run_row(int64_t first) {
    const int64_t count = smaller(args_.numel - first, (int64_t)ROW);
    encode_row(first);
    uint8_t* const means = means_ + first / args_.group * 8;
    with_span(args_.group,
              [&](auto span) { store_means<span.value>(row_, signs_, args_.group, count, means); });
  }

  // A group longer than a row.
  void run_group(int64_t begin) {
    const int64_t rows = args_.group / ROW, there = smaller(args_.numel - begin, (int64_t)args_.group);
    uint32_t largest = 0;
    for (int64_t first = begin; first < begin + there; first += ROW) {
      load(first);
      largest = larger(largest, largest_of(row_, ROW));
    }
    const float normalizer = normalizer_of_largest(largest).factor;
    int32_t below = 0;
    LongSum sums[2];
    alignas(64) float parts[2][ROW];
    for (int64_t i = 0; i < rows; ++i) {
      below += encode_row(begin + i * ROW);
      part_row<ROW>(row_, ROW, &normalizer, parts[0], parts[1]);
      for (int side = 0; side < 2; ++side) sums[side].add_row(i, parts[side]);
    }
    const float means[2] = {sign_mean(sums[0].total(rows), (int32_t)there - below, largest),
                            sign_mean(sums[1].total(rows), below, largest)};
    memcpy(means_ + begin / args_.group * 8, means, 8);
  }

 private:
  // Coordinates from `first` on, zeros behind the last; says how many there are.
  int64_t load(int64_t first) {
    const int64_t count = larger(smaller(args_.numel - first, (int64_t)ROW), (int64_t)0);
    load_sums(values_, args_.message_in, decoder_, first, count, row_);
    return count;
  }

  // Writes the signs of a row, and says how many coordinates are negative.
  int encode_row(int64_t first) {
    const int64_t count = load(first);
    signs_of_row(row_, signs_);
    memcpy(args_.message_out + first / 8, signs_, (size_t)divide_up(count, 8));
    return ones(signs_, ROW / 8);
  }

  const gradwire_signs& args_;
  const T* const values_;
  const Decoder decoder_;
  uint8_t* const means_;
  alignas(64) float row_[ROW];
  alignas(64) uint8_t signs_[ROW / 8];
};

template <class T>
void encode(const gradwire_signs& args, int64_t begin, int64_t end) {
  Encoder<T> encoder(args);
  for (int64_t item = begin; item < end; ++item) {
    if (args.group > ROW)
      encoder.run_group(item * args.group);
    else
      encoder.run_row(item * ROW);
  }
}

}  // namespace

GRADWIRE_CPU_KERNEL(signs_encode, gradwire_signs, args->group > 262144 / 512 ? 262144 / args->group : 512) {
  if (args.call.dtype == GRADWIRE_FLOAT32)
    encode<float>(args, begin, end);
  else
    encode<uint16_t>(args, begin, end);
}

GRADWIRE_CPU_KERNEL(signs_decode, gradwire_signs, 512) {
  store_decoded<false>(Decoder(args), args.numel, begin, end, args.values_out);
}

GRADWIRE_CPU_KERNEL(signs_add, gradwire_signs, 512) {
  store_decoded<true>(Decoder(args), args.numel, begin, end, args.values_out);
}
