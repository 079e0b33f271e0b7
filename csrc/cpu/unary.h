// Numbers as that many zeros and a one, one after another (codecs/lattice/rice.py), for kernels for CPUs.
#pragma once
#include "gradwire/lattice.h"
#include "kernel.h"

GRADWIRE_NAMESPACE_BEGIN

// Writes numbers as zeros and a one, eight bytes at a time.
class UnaryWriter {
 public:
  explicit UnaryWriter(uint8_t* out) : begin_(out), out_(out) {}

  void append(const uint32_t* zeros) {
    uint64_t word = word_;
    uint32_t fill = fill_;
    for (int i = 0; i < RICE_GROUP; ++i) {
      fill += zeros[i];
      if (fill >= 64) {
        memcpy(out_, &word, 8);
        out_ += 8;
        word = 0;
        fill -= 64;
      }
      word |= 1ull << fill++;
    }
    word_ = word;
    fill_ = fill;
  }
  // Writes the bytes that are begun; returns how many bits there are in all.
  int64_t finish() {
    memcpy(out_, &word_, (fill_ + 7) / 8);
    return 8 * (out_ - begin_) + fill_;
  }

 private:
  uint8_t *const begin_, *out_;
  uint64_t word_ = 0;
  uint32_t fill_ = 0;
};

// Finds the ones of a stream, in order. Where the stream ends, ones follow one another.
class UnaryReader {
 public:
  UnaryReader(const uint8_t* in, const uint8_t* end) : in_(in), end_(end) {}

  // The places of the next `count` ones, at most a super-group's; `before` becomes that of the one before.
  const uint32_t* next(uint32_t count, uint32_t& before) {
    memmove(places_, places_ + taken_, 4 * (have_ - taken_));
    have_ -= taken_;
    while (have_ < count && in_ < end_) fetch();
    for (; have_ < count; base_ += 1) places_[have_++] = base_;
    before = last_;
    last_ = places_[count - 1];
    taken_ = count;
    return places_;
  }
  // The first bit after the last one.
  int64_t end() const { return (int64_t)last_ + 1; }

 private:
  void fetch() {
    uint64_t word = 0;
    memcpy(&word, in_, end_ - in_ >= 8 ? 8 : (size_t)(end_ - in_));
    const uint32_t found = (uint32_t)__builtin_popcountll(word);
    uint32_t* out = places_ + have_;
    for (uint32_t k = 0; k < found; k += 8)
      for (int i = 0; i < 8; ++i) {
        out[k + i] = base_ + (uint32_t)(word ? __builtin_ctzll(word) : 0);
        word &= word - 1;
      }
    have_ += found;
    base_ += 64;
    in_ += 8;
  }

  const uint8_t *in_, *const end_;
  uint32_t base_ = 0, have_ = 0, taken_ = 0, last_ = (uint32_t)-1;
  alignas(64) uint32_t places_[SUPER_GROUP + 64 + 8];
};

GRADWIRE_NAMESPACE_END
