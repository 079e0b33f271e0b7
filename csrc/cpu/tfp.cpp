#include "gradwire/tfp.h"

#include "dithers.h"
#include "group_sums.h"
#include "rows.h"

using namespace gradwire;

namespace {

constexpr int BLOCKS = ROW / BLOCK;

struct Row {
  alignas(64) float values[ROW];
  alignas(64) uint32_t dithers[ROW];
  alignas(64) uint32_t codes[ROW];
  alignas(64) uint32_t scales[BLOCKS];  // bits of bfloat16
};

// The scales of a row's blocks.
void find_scales(Row& row, const Format& format, bool round_up) {
  largest_of_groups(row.values, BLOCK, row.scales);
  GRADWIRE_SIMD
  for (int block = 0; block < BLOCKS; ++block)
    row.scales[block] = block_scale(row.scales[block], format, round_up);
}

template <Kind KIND, bool STOCHASTIC>
void truncate_row(Row& row, Format format) {
  GRADWIRE_SIMD
  for (int k = 0; k < ROW; ++k) {
    const uint32_t pattern = bits_of(row.values[k]),
                   noise = STOCHASTIC ? noise_of(row.dithers[k], format.dropped) : 0u;
    row.codes[k] = if_finite<KIND>(truncated<KIND>(pattern, float_of(pattern & MAGNITUDE), format, noise),
                                   pattern, format);
  }
}

template <Kind KIND, bool STOCHASTIC>
void truncate_block(const float* values, const uint32_t* dithers, Format format, Divisor divisor,
                    uint32_t* codes) {
  GRADWIRE_SIMD
  for (int k = 0; k < BLOCK; ++k) {
    const uint32_t pattern = bits_of(values[k]),
                   noise = STOCHASTIC ? noise_of(dithers[k], format.dropped) : 0u;
    const float magnitude = mul(float_of(pattern & MAGNITUDE), divisor.factor);
    const float y = divide_by_scale(magnitude, divisor.scale, divisor.reciprocal);
    codes[k] = truncated<KIND>(pattern, y, format, noise);
  }
}

template <Kind KIND, bool STOCHASTIC>
void truncate_scaled(Row& row, const Format& format) {
  alignas(64) float factors[BLOCKS], scales[BLOCKS], reciprocals[BLOCKS];
  find_scales(row, format, STOCHASTIC || KIND == EMBEDDED);
  GRADWIRE_SIMD
  for (int block = 0; block < BLOCKS; ++block) {
    const Divisor divisor = divisor_of(row.scales[block]);
    factors[block] = divisor.factor;
    scales[block] = divisor.scale;
    reciprocals[block] = divisor.reciprocal;
  }
  for (int block = 0; block < BLOCKS; ++block) {
    const int first = block * BLOCK;
    if (row.scales[block] == NOT_A_NUMBER >> 16) {
      for (int k = first; k < first + BLOCK; ++k) row.codes[k] = format.nan;
      continue;
    }
    const Divisor divisor = {factors[block], scales[block], reciprocals[block]};
    truncate_block<KIND, STOCHASTIC>(row.values + first, row.dithers + first, format, divisor,
                                     row.codes + first);
  }
}

void store_scales(const Row& row, int64_t numel, int64_t first, uint8_t* scales) {
  alignas(64) uint16_t narrow[BLOCKS];
  for (int block = 0; block < BLOCKS; ++block) narrow[block] = (uint16_t)row.scales[block];
  const int64_t blocks = smaller(divide_up(numel - first, BLOCK), (int64_t)BLOCKS);
  memcpy(scales + first / BLOCK * SCALE_BYTES, narrow, (size_t)(blocks * SCALE_BYTES));
}

// Codes of a row of a message, followed by the bits of a plane if there is one.
class Source {
 public:
  explicit Source(const gradwire_tfp& args)
      : args_(args),
        width_(args.bits - args.bits_in),
        unpack_(unpacker_of(args.bits_in)),
        unpack_plane_(width_ ? unpacker_of(width_) : nullptr) {}

  void read(int64_t first, int64_t count, uint32_t* codes) const {
    unpack_(args_.message_in + first / 8 * args_.bits_in, count, codes);
    if (!width_) return;
    alignas(64) uint32_t further[ROW];
    unpack_plane_(args_.plane_in + first / 8 * width_, count, further);
    GRADWIRE_SIMD
    for (int k = 0; k < ROW; ++k) codes[k] = codes[k] << width_ | further[k];
  }

 private:
  const gradwire_tfp& args_;
  const int width_;
  const UnpackRow unpack_, unpack_plane_;
};

// Rows of values that a message stands for.
template <Kind KIND, bool SCALED>
class Decoder {
 public:
  explicit Decoder(const gradwire_tfp& args)
      : format_(format_of(KIND, args.bits)),
        source_(args),
        scales_(scales_of(args.message_in, args.numel, args.bits_in)) {}

  void read(int64_t first, int64_t count, float* values) const {
    alignas(64) uint32_t codes[ROW];
    source_.read(first, count, codes);
    const Format format = format_;
    if (!SCALED) {
      GRADWIRE_SIMD
      for (int k = 0; k < ROW; ++k) values[k] = restored<KIND>(codes[k], format);
      return;
    }
    uint16_t narrow[BLOCKS] = {};
    memcpy(narrow, scales_ + first / BLOCK * SCALE_BYTES, (size_t)(divide_up(count, BLOCK) * SCALE_BYTES));
    for (int block = 0; block < BLOCKS; ++block) {
      const float scale = from_bfloat16(narrow[block]);
      GRADWIRE_SIMD
      for (int k = block * BLOCK; k < (block + 1) * BLOCK; ++k)
        values[k] = mul(restored<KIND>(codes[k], format), scale);
    }
  }

 private:
  const Format format_;
  const Source source_;
  const uint8_t* const scales_;
};

template <class T, Kind KIND, bool SCALED, bool STOCHASTIC>
void encode(const gradwire_tfp& args, int64_t begin, int64_t end, bool plane) {
  const Format format = format_of(KIND, args.bits);
  const Stream stream = stream_of(args);
  const int width = plane ? args.bits - args.bits_in : args.bits;
  const uint32_t mask = mask_of(width);
  const PackRow pack = packer_of(width);
  const Decoder<KIND, SCALED> decoder(args);
  uint8_t* const scales = args.message_out + code_bytes(args.numel, width);
  Row row;
  for (int64_t item = begin; item < end; ++item) {
    const int64_t first = item * ROW, count = smaller(args.numel - first, (int64_t)ROW);
    load_sums((const T*)args.values_in, args.message_in, decoder, first, count, row.values);
    if (STOCHASTIC) dithers_of_row(stream, args.first + first, row.dithers);
    if (SCALED)
      truncate_scaled<KIND, STOCHASTIC>(row, format);
    else
      truncate_row<KIND, STOCHASTIC>(row, format);
    if (plane) {
      GRADWIRE_SIMD
      for (int k = 0; k < ROW; ++k) row.codes[k] &= mask;
    }
    pack(row.codes, count, args.message_out + first / 8 * width);
    if (SCALED && !plane) store_scales(row, args.numel, first, scales);
  }
}

template <class T>
void encode_any(const gradwire_tfp& args, int64_t begin, int64_t end, bool plane) {
  const bool scaled = has_scales(args), stochastic = args.stochastic && args.bits < 32;
  switch (kind_of(args)) {
    case SINGLE:
      return stochastic ? encode<T, SINGLE, false, true>(args, begin, end, plane)
                        : encode<T, SINGLE, false, false>(args, begin, end, plane);
    case HALF:
      if (scaled)
        return stochastic ? encode<T, HALF, true, true>(args, begin, end, plane)
                          : encode<T, HALF, true, false>(args, begin, end, plane);
      return stochastic ? encode<T, HALF, false, true>(args, begin, end, plane)
                        : encode<T, HALF, false, false>(args, begin, end, plane);
    case TINY:
      if (scaled)
        return stochastic ? encode<T, TINY, true, true>(args, begin, end, plane)
                          : encode<T, TINY, true, false>(args, begin, end, plane);
      return stochastic ? encode<T, TINY, false, true>(args, begin, end, plane)
                        : encode<T, TINY, false, false>(args, begin, end, plane);
    case EMBEDDED: return encode<T, EMBEDDED, true, false>(args, begin, end, plane);
  }
}

void encode_rows(const gradwire_tfp& args, int64_t begin, int64_t end, bool plane) {
  if (args.call.dtype == GRADWIRE_FLOAT32)
    encode_any<float>(args, begin, end, plane);
  else
    encode_any<uint16_t>(args, begin, end, plane);
}

template <Kind KIND, bool SCALED, bool ADD>
void decode(const gradwire_tfp& args, int64_t begin, int64_t end) {
  store_decoded<ADD>(Decoder<KIND, SCALED>(args), args.numel, begin, end, args.values_out);
}

template <bool ADD>
void decode_any(const gradwire_tfp& args, int64_t begin, int64_t end) {
  const bool scaled = has_scales(args);
  switch (kind_of(args)) {
    case SINGLE: return decode<SINGLE, false, ADD>(args, begin, end);
    case HALF:
      return scaled ? decode<HALF, true, ADD>(args, begin, end) : decode<HALF, false, ADD>(args, begin, end);
    case TINY:
      return scaled ? decode<TINY, true, ADD>(args, begin, end) : decode<TINY, false, ADD>(args, begin, end);
    case EMBEDDED: return decode<EMBEDDED, true, ADD>(args, begin, end);
  }
}

}  // namespace

GRADWIRE_CPU_KERNEL(tfp_encode, gradwire_tfp, 256) { encode_rows(args, begin, end, false); }

GRADWIRE_CPU_KERNEL(tfp_plane, gradwire_tfp, 256) { encode_rows(args, begin, end, true); }

GRADWIRE_CPU_KERNEL(tfp_decode, gradwire_tfp, 512) { decode_any<false>(args, begin, end); }

GRADWIRE_CPU_KERNEL(tfp_add, gradwire_tfp, 512) { decode_any<true>(args, begin, end); }

GRADWIRE_CPU_KERNEL(tfp_refine, gradwire_tfp, 512) {
  const Source source(args);
  const PackRow pack = packer_of(args.bits);
  alignas(64) uint32_t codes[ROW];
  for (int64_t item = begin; item < end; ++item) {
    const int64_t first = item * ROW, count = smaller(args.numel - first, (int64_t)ROW);
    source.read(first, count, codes);
    pack(codes, count, args.message_out + first / 8 * args.bits);
    if (has_scales(args))
      memcpy(args.message_out + code_bytes(args.numel, args.bits) + first / BLOCK * SCALE_BYTES,
             scales_of(args.message_in, args.numel, args.bits_in) + first / BLOCK * SCALE_BYTES,
             (size_t)(divide_up(count, BLOCK) * SCALE_BYTES));
  }
}
