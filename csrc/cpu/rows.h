// Rows of 512 coordinates and their codes, for kernels for CPUs of messages of groups.
#pragma once
#include "bitstream.h"
#include "gradwire/groups.h"
#include "kernel.h"

GRADWIRE_NAMESPACE_BEGIN

// `count` elements as float32, zeros behind them.
template <class T>
static inline void load_row(const T* source, int64_t count, float* row) {
  if (count == ROW) {
    GRADWIRE_SIMD
    for (int k = 0; k < ROW; ++k) row[k] = load(source + k);
  } else {
    for (int k = 0; k < ROW; ++k) row[k] = k < count ? load(source + k) : 0.0f;
  }
}

// Adds what a message stands for; what is behind `count` coordinates stays zeros.
static inline void add_row(const float* decoded, int64_t count, float* row) {
  if (count == ROW) {
    GRADWIRE_SIMD
    for (int k = 0; k < ROW; ++k) row[k] = add(row[k], decoded[k]);
  } else {
    for (int k = 0; k < count; ++k) row[k] = add(row[k], decoded[k]);
  }
}

// Coordinates from `first` on, and if there is a message what it stands for added to them; zeros behind
// `count`. decoder.read(first, count, row) fills a row with values that the message stands for.
template <class T, class Decoder>
static inline void load_sums(const T* values, const uint8_t* message, const Decoder& decoder, int64_t first,
                             int64_t count, float* row) {
  load_row(values + first, count, row);
  if (!message || !count) return;
  alignas(64) float received[ROW];
  decoder.read(first, count, received);
  add_row(received, count, row);
}

// Codes of whole rows to a bit stream and back. The stream's last bytes may be followed by something else.
using PackRow = void (*)(const uint32_t* codes, int64_t count, uint8_t* stream);
using UnpackRow = void (*)(const uint8_t* stream, int64_t count, uint32_t* codes);

// `count` codes of 512; those behind them, up to a multiple of 8, are zeros.
template <int BITS>
static void pack_row(const uint32_t* codes, int64_t count, uint8_t* stream) {
  constexpr int PART = 8 * EIGHTS;
  alignas(64) uint8_t whole[ROW / 8 * BITS + BEYOND];
  for (int k = 0; k < ROW; k += PART) pack_block<BITS>(codes + k, whole + k / 8 * BITS);
  if (count == ROW)
    memcpy(stream, whole, ROW / 8 * BITS);
  else
    memcpy(stream, whole, code_bytes(count, BITS));
}

// The rest of the 512 codes is zeros. Where `count` is 512, BEYOND bytes more are read.
template <int BITS>
static void unpack_row(const uint8_t* stream, int64_t count, uint32_t* codes) {
  constexpr int PART = 8 * EIGHTS;
  alignas(64) uint8_t whole[ROW / 8 * BITS + BEYOND] = {};
  memcpy(whole, stream, code_bytes(count, BITS));
  for (int k = 0; k < ROW; k += PART) unpack_block<BITS>(whole + k / 8 * BITS, codes + k);
}

static inline PackRow packer_of(int bits) {
  PackRow found = nullptr;
  with_width(bits, [&](auto width) { found = pack_row<width.value>; });
  return found;
}
static inline UnpackRow unpacker_of(int bits) {
  UnpackRow found = nullptr;
  with_width(bits, [&](auto width) { found = unpack_row<width.value>; });
  return found;
}

// float32 values to where they belong, or added to what is there.
template <bool ADD>
static inline void store_row(const float* row, int64_t count, float* target) {
  if (count == ROW) {
    GRADWIRE_SIMD
    for (int k = 0; k < ROW; ++k) target[k] = ADD ? add(target[k], row[k]) : row[k];
  } else {
    for (int k = 0; k < count; ++k) target[k] = ADD ? add(target[k], row[k]) : row[k];
  }
}

// Rows `begin` to `end` of `numel` values that a message stands for.
template <bool ADD, class Decoder>
static inline void store_decoded(const Decoder& decoder, int64_t numel, int64_t begin, int64_t end,
                                 float* target) {
  alignas(64) float values[ROW];
  for (int64_t item = begin; item < end; ++item) {
    const int64_t first = item * ROW, count = smaller(numel - first, (int64_t)ROW);
    decoder.read(first, count, values);
    store_row<ADD>(values, count, target + first);
  }
}

GRADWIRE_NAMESPACE_END
