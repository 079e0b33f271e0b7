// A tile of 2048 coordinates, whole groups, goes through the first cache at a time: transformed, then the
// maxima of its groups, then their scales, then the codes.
#include "gradwire/linear.h"

#include "kernel.h"
#include "linear_codes.h"
#include "linear_maxima.h"

namespace gradwire {
inline namespace GRADWIRE_LEVEL {
enum { ROW = 512 };  // coordinates that dithers are drawn for at a time
}
}  // namespace gradwire
#include "dithers.h"

using namespace gradwire;

namespace {

// What a tile has: the last one is partial.
struct Extent {
  int64_t first;
  int count;  // coordinates
  int blocks() const { return (int)divide_up(count, HADAMARD); }
  int groups(int log) const { return (count + (1 << log) - 1) >> log; }  // of 2^log coordinates
  int strips() const { return (int)divide_up(count, STRIP); }
  bool whole() const { return count == LINEAR_TILE; }
};
// Blocks of a slot, as a power of two.
int log_of(int group) { return __builtin_ctz(slot_of(group) / HADAMARD); }
Extent extent_of(int64_t tile, int64_t numel) {
  const int64_t first = tile * LINEAR_TILE;
  return Extent{first, (int)smaller(numel - first, (int64_t)LINEAR_TILE)};
}

// Stores the scales of a tile's groups with those that fill the section up, and gives what slots are
// multiplied by. Returns whether all of them are finite.
bool write_scales(const gradwire_linear_encoding& args, const Extent& tile, const uint32_t* maxima,
                  float* factors) {
  const int slot = slot_of(args.group), slots = LINEAR_TILE / slot, log = __builtin_ctz(args.group);
  alignas(64) uint32_t scales[SLOTS];
  uint32_t largest = 0;
#pragma omp simd reduction(max : largest)
  for (int i = 0; i < slots; ++i) {
    const uint32_t scale = scale_of(maxima[i], args.hadamard, args.scale_dtype);
    factors[i] = factor_of(scale, args.bits, args.hadamard, args.stochastic);
    largest = larger(largest, scale);
    scales[i] = scale;
  }
  const int64_t begin = tile.first >> log;
  const int groups = tile.groups(log), each = args.group / slot;
  const bool last = tile.first + tile.count == args.numel;
  const int filled = last ? (int)(scales_of(args.numel, args.group, args.scale_dtype) - begin) : groups;
  if (args.scale_dtype == GRADWIRE_FLOAT32) {
    uint32_t* target = (uint32_t*)args.message + begin;
    for (int g = 0; g < groups; ++g) target[g] = scales[g * each];
    for (int g = groups; g < filled; ++g) target[g] = 0;
  } else {
    uint16_t* target = (uint16_t*)args.message + begin;
    for (int g = 0; g < groups; ++g) target[g] = (uint16_t)(scales[g * each] >> 16);
    for (int g = groups; g < filled; ++g) target[g] = 0;
  }
  return largest < INFINITE;
}

// Writes the codes of a tile; meanwhile the coordinates of the tile after the next are fetched.
template <class T, int BITS, bool STOCHASTIC>
void write_codes(const gradwire_linear_encoding& args, const Extent& tile, const float* values,
                 const float* factors, bool finite) {
  const T* ahead = (const T*)args.x + tile.first + 2 * LINEAR_TILE;
  alignas(64) uint8_t room[LINEAR_TILE];
  alignas(64) uint32_t dithers[ROW];
  uint8_t* codes =
      args.message + scale_bytes_of(args.numel, args.group, args.scale_dtype) + tile.first / 8 * BITS;
  uint8_t* target = tile.whole() ? codes : room;
  const int log = log_of(args.group);
  for (int i = 0; i < tile.strips(); ++i) {
    for (int k = 0; k < STRIP; k += 64 / (int)sizeof(T)) __builtin_prefetch(ahead + i * STRIP + k);
    const int of_row = i * STRIP % ROW;
    if (STOCHASTIC && of_row == 0)
      dithers_of_row(stream_of(args), args.first + tile.first + i * STRIP, dithers);
    encode<BITS, STOCHASTIC>(values + i * STRIP, factors + (i * STRIP_BLOCKS >> log), log, dithers + of_row,
                             target + i * (STRIP / 8 * BITS));
  }
  if (!finite)
    for (int block = 0; block < tile.blocks(); ++block)
      if (is_nan(factors[block >> log]))
        memset(target + block * (HADAMARD / 8 * BITS), 0, HADAMARD / 8 * BITS);
  if (!tile.whole()) memcpy(codes, room, tile.blocks() * (HADAMARD / 8 * BITS));
}
template <class T>
void write_codes(const gradwire_linear_encoding& args, const Extent& tile, const float* values,
                 const float* factors, bool finite) {
  if (args.bits == 4)
    args.stochastic ? write_codes<T, 4, true>(args, tile, values, factors, finite)
                    : write_codes<T, 4, false>(args, tile, values, factors, finite);
  else
    args.stochastic ? write_codes<T, 8, true>(args, tile, values, factors, finite)
                    : write_codes<T, 8, false>(args, tile, values, factors, finite);
}

// What a tile is between its first and its last step. While the codes of one are written, the scales of the
// next are computed: they wait for each other's results.
template <class T>
struct Stage {
  Extent tile;
  bool finite;
  const float* values;
  alignas(64) float room[LINEAR_TILE], factors[SLOTS];
  alignas(64) T padded[LINEAR_TILE];
};

template <class T>
void begin_tile(const gradwire_linear_encoding& args, int64_t i, Stage<T>& stage) {
  const Extent tile = stage.tile = extent_of(i, args.numel);
  alignas(64) uint32_t maxima[SLOTS];
  const T* x = (const T*)args.x + tile.first;
  if (!tile.whole()) {
    memcpy(stage.padded, x, tile.count * sizeof(T));
    memset(stage.padded + tile.count, 0, (LINEAR_TILE - tile.count) * sizeof(T));
    x = stage.padded;
  }
  stage.values = take(x, args.hadamard, args.group, stage.room, maxima);
  stage.finite = write_scales(args, tile, maxima, stage.factors);
}

template <class T>
void quantize(const gradwire_linear_encoding& args, int64_t begin, int64_t end) {
  Stage<T> stages[2];
  begin_tile(args, begin, stages[0]);
  for (int64_t i = begin; i < end; ++i) {
    const Stage<T>& stage = stages[(i - begin) % 2];
    if (i + 1 < end) begin_tile(args, i + 1, stages[(i + 1 - begin) % 2]);
    write_codes<T>(args, stage.tile, stage.values, stage.factors, stage.finite);
  }
}

// ---- Decoding
//
// The steps of a tile's slots in one message.
void load_steps(const gradwire_linear_decoding& args, const Extent& tile, const uint8_t* message,
                float* steps) {
  const int log = __builtin_ctz(args.group), groups = tile.groups(log),
            each = args.group / slot_of(args.group);
  const int64_t begin = tile.first >> log;
  alignas(64) float scales[SLOTS] = {};
  for (int g = 0; g < groups; ++g) {
    const float scale = args.scale_dtype == GRADWIRE_FLOAT32
                            ? ((const float*)message)[begin + g]
                            : from_bfloat16(((const uint16_t*)message)[begin + g]);
    for (int i = 0; i < each; ++i) scales[g * each + i] = scale;
  }
  GRADWIRE_SIMD
  for (int i = 0; i < SLOTS; ++i) {
    const float step = step_of(scales[i], args.bits, args.hadamard);
    steps[i] = is_nan(step) ? float_of(NOT_A_NUMBER) : step;
  }
}

enum { MOST_MESSAGES = 16 };  // whose steps are kept at a time

// The codes of the strip from `first` on in a message; the last strip is filled up with zeros in `room`.
template <int BITS>
GRADWIRE_HD const uint8_t* codes_of(const gradwire_linear_decoding& args, const uint8_t* codes, int64_t first,
                                    uint8_t* room) {
  codes += first / 8 * BITS;
  const int64_t there = divide_up(args.numel - first, HADAMARD) * HADAMARD;
  if (there >= STRIP) return codes;
  memcpy(room, codes, there / 8 * BITS);
  memset(room + there / 8 * BITS, 0, (STRIP - there) / 8 * BITS);
  return room;
}

template <class T, bool ADDED>
GRADWIRE_HD void finish(const gradwire_linear_decoding& args, int64_t first, Strip& strip) {
  T* out = (T*)args.out + first;
  alignas(64) T room[STRIP];
  const bool whole = args.numel - first >= STRIP;
  T* target = whole ? out : room;
  const int64_t bytes = (args.numel - first) * (int64_t)sizeof(T);
  if (ADDED) {
    if (!whole) memcpy(room, out, bytes);
    Strip before;
    load_strip((const T*)target, before);
    add(strip, before);
  }
  store_strip(target, strip);
  if (!whole) memcpy(out, room, bytes);
}

// Decodes the first message.
template <class T, int BITS, bool TRANSFORM, bool ADDED>
void decode(const gradwire_linear_decoding& args, int64_t begin, int64_t end) {
  const int log = log_of(args.group);
  const uint8_t* all_codes = args.messages + scale_bytes_of(args.numel, args.group, args.scale_dtype);
  for (int64_t i = begin; i < end; ++i) {
    const Extent tile = extent_of(i, args.numel);
    alignas(64) float steps[SLOTS];
    load_steps(args, tile, args.messages, steps);
    for (int k = 0; k < tile.strips(); ++k) {
      const int64_t first = tile.first + k * STRIP;
      alignas(64) uint8_t room[STRIP];
      const uint8_t* codes = codes_of<BITS>(args, all_codes, first, room);
      Strip strip;
      if (TRANSFORM)
        unpack_smooth<BITS>(codes, strip);
      else
        unpack<BITS>(codes, strip);
      multiply(strip, steps + (k * STRIP_BLOCKS >> log), log);
      finish<T, ADDED>(args, first, strip);
    }
  }
}
template <class T, bool ADDED>
void decode(const gradwire_linear_decoding& args, int64_t begin, int64_t end) {
  if (args.bits == 4)
    args.hadamard ? decode<T, 4, true, ADDED>(args, begin, end)
                  : decode<T, 4, false, ADDED>(args, begin, end);
  else
    args.hadamard ? decode<T, 8, true, ADDED>(args, begin, end)
                  : decode<T, 8, false, ADDED>(args, begin, end);
}
template <bool ADDED>
void decode(const gradwire_linear_decoding& args, int64_t begin, int64_t end) {
  if (args.call.dtype == GRADWIRE_FLOAT32)
    decode<float, ADDED>(args, begin, end);
  else
    decode<uint16_t, ADDED>(args, begin, end);
}

template <class T, int BITS>
void sum_tile(const gradwire_linear_decoding& args, const Extent& tile) {
  const int log = log_of(args.group);
  const int64_t section = scale_bytes_of(args.numel, args.group, args.scale_dtype);
  alignas(64) float steps[MOST_MESSAGES][SLOTS], sums[LINEAR_TILE];
  for (int begin = 0; begin < args.count; begin += MOST_MESSAGES) {
    const int messages = smaller(args.count - begin, (int)MOST_MESSAGES);
    const uint8_t* message = args.messages + begin * args.stride;
    for (int m = 0; m < messages; ++m) load_steps(args, tile, message + m * args.stride, steps[m]);
    for (int k = 0; k < tile.strips(); ++k) {
      const int64_t first = tile.first + k * STRIP;
      const int slot = k * STRIP_BLOCKS >> log;
      alignas(64) uint8_t room[STRIP];
      Strip sum, term;
      if (begin) load_strip(sums + k * STRIP, sum);
      for (int m = 0; m < messages; ++m) {
        unpack<BITS>(codes_of<BITS>(args, message + m * args.stride + section, first, room), term);
        multiply(term, steps[m] + slot, log);
        if (begin + m)
          add(sum, term);
        else
          sum = term;
      }
      if (begin + messages < args.count) {
        store_strip(sums + k * STRIP, sum);
      } else {
        if (args.hadamard) smooth(sum);
        finish<T, false>(args, first, sum);
      }
    }
  }
}
template <class T>
void sum(const gradwire_linear_decoding& args, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i)
    args.bits == 4 ? sum_tile<T, 4>(args, extent_of(i, args.numel))
                   : sum_tile<T, 8>(args, extent_of(i, args.numel));
}

}  // namespace

GRADWIRE_CPU_KERNEL(linear_quantize, gradwire_linear_encoding, 256) {
  if (args.call.dtype == GRADWIRE_FLOAT32)
    quantize<float>(args, begin, end);
  else
    quantize<uint16_t>(args, begin, end);
}

GRADWIRE_CPU_KERNEL(linear_dequantize, gradwire_linear_decoding, 256) { decode<false>(args, begin, end); }

GRADWIRE_CPU_KERNEL(linear_add, gradwire_linear_decoding, 256) { decode<true>(args, begin, end); }

GRADWIRE_CPU_KERNEL(linear_reduce, gradwire_linear_decoding, 128) {
  if (args.call.dtype == GRADWIRE_FLOAT32)
    sum<float>(args, begin, end);
  else
    sum<uint16_t>(args, begin, end);
}
