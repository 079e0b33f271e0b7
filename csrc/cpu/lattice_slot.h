// A slot of partial sums on its way, for kernels for CPUs: read, added to, made to fit, written.
#pragma once
#include "lattice_rows.h"
#include "packed_code.h"
#include "rice_code.h"

GRADWIRE_NAMESPACE_BEGIN

struct Slot {
  alignas(64) int32_t q[MOST_SUPER_GROUPS * SUPER_GROUP];
  uint8_t shifts[MOST_SUPER_GROUPS], marks[MOST_SUPER_GROUPS];
};

template <class Code>
class SlotWork {
 public:
  SlotWork(const gradwire_lattice& args, int64_t slot)
      : args_(args),
        order_(args.order + slot * args.super_groups),
        slot_(slot),
        num_(args.super_groups),
        key_(key_of(args.key_place, args.key0, args.key1)) {}

  int64_t super_group(int s) const { return order_[s]; }
  Key key() const { return key_; }

  void read(Slot& slot) const {
    uint8_t further[MOST_SUPER_GROUPS];
    const uint32_t base = Code::read(args_.message_in + slot_ * args_.size_in / 8, num_, args_.size_in,
                                     slot.q, slot.marks, further);
    for (int s = 0; s < num_; ++s) slot.shifts[s] = (uint8_t)(base + further[s]);
  }
  // Returns the code of the step.
  int64_t read_sealed(Slot& slot) const {
    uint8_t further[MOST_SUPER_GROUPS];
    return Code::read(args_.message_in + slot_ * args_.size_in / 8, num_, args_.size_in, slot.q, slot.marks,
                      further);
  }
  void load_sums(Slot& slot) const {
    const int64_t first = slot_ * num_;
    memcpy(slot.q, args_.sums + first * SUPER_GROUP, 4 * SUPER_GROUP * (size_t)num_);
    memcpy(slot.shifts, args_.shifts + first, (size_t)num_);
    memcpy(slot.marks, args_.marks + first, (size_t)num_);
  }
  void store_sums(const Slot& slot) const {
    const int64_t first = slot_ * num_;
    memcpy(args_.sums + first * SUPER_GROUP, slot.q, 4 * SUPER_GROUP * (size_t)num_);
    memcpy(args_.shifts + first, slot.shifts, (size_t)num_);
    memcpy(args_.marks + first, slot.marks, (size_t)num_);
  }

  // Adds this worker's gradients, rounded, to what is received; without that, they are all there is.
  void add_own(Slot& slot, bool received) const {
    const float factor = power_of_units(-*args_.step);
    for (int s = 0; s < num_; ++s) {
      alignas(64) float row[SUPER_GROUP], noise[SUPER_GROUP];
      alignas(64) int32_t own[SUPER_GROUP];
      const uint32_t mark = load_super_group(args_, order_[s], row);
      if (!received) slot.shifts[s] = 0;
      strata_of(args_, order_[s], key_, noise);
      rounded_down(row, mul(factor, power_of_two(127 - slot.shifts[s])), noise, own);
      int32_t* q = slot.q + s * SUPER_GROUP;
      if (received) {
        GRADWIRE_SIMD
        for (int i = 0; i < SUPER_GROUP; ++i) q[i] += own[i];
      } else {
        memcpy(q, own, sizeof own);
      }
      slot.marks[s] = (uint8_t)(received ? joined_marks(mark, slot.marks[s]) : mark);
    }
  }

  // Adds sums: with the larger shift of both, or exactly.
  void add_sums(Slot& slot, Slot& other) const {
    for (int s = 0; s < num_; ++s) {
      int32_t *a = slot.q + s * SUPER_GROUP, *b = other.q + s * SUPER_GROUP;
      const uint32_t most = larger((uint32_t)slot.shifts[s], (uint32_t)other.shifts[s]);
      if (args_.exact) {
        for (int i = 0; i < SUPER_GROUP; ++i)
          a[i] = (int32_t)((uint32_t)a[i] << slot.shifts[s]) + (int32_t)((uint32_t)b[i] << other.shifts[s]);
        slot.shifts[s] = 0;
      } else {
        shift_row(args_, order_[s], key_, (uint32_t)args_.turn, most - slot.shifts[s], a);
        shift_row(args_, order_[s], key_, (uint32_t)args_.turn, most - other.shifts[s], b);
        for (int i = 0; i < SUPER_GROUP; ++i) a[i] += b[i];
        slot.shifts[s] = (uint8_t)most;
      }
      slot.marks[s] = (uint8_t)joined_marks(slot.marks[s], other.marks[s]);
    }
  }

  // Writes the slot, shifted as far as it takes to fit.
  void write(Slot& slot) const {
    uint32_t highest = 0;
    for (int s = 0; s < num_; ++s) highest = larger(highest, (uint32_t)slot.shifts[s]);
    typename Code::Choice choices[MOST_SUPER_GROUPS];
    alignas(64) uint32_t z[MOST_SUPER_GROUPS * SUPER_GROUP];
    int64_t used = fixed_bits(num_);
    for (int s = 0; s < num_; ++s) {
      int32_t* q = slot.q + s * SUPER_GROUP;
      if (slot.marks[s] == BROKEN_MARK) memset(q, 0, 4 * SUPER_GROUP);
      shift_to(slot, s, highest > MOST_FURTHER ? highest - MOST_FURTHER : 0, 0);
      GRADWIRE_SIMD
      for (int i = 0; i < SUPER_GROUP; ++i) z[s * SUPER_GROUP + i] = zigzag(q[i]);
      choices[s] = Code::choose(z + s * SUPER_GROUP);
      used += choices[s].bits;
    }
    args_.wanted[slot_] = used;
    if (used > args_.size_out) used = make_fit(slot, z, choices);
    uint32_t base = slot.shifts[0];
    for (int s = 1; s < num_; ++s) base = smaller(base, (uint32_t)slot.shifts[s]);
    uint8_t further[MOST_SUPER_GROUPS];
    for (int s = 0; s < num_; ++s) further[s] = (uint8_t)(slot.shifts[s] - base);
    Code::write(z, choices, slot.marks, further, base, num_, used, args_.size_out,
                args_.message_out + slot_ * args_.size_out / 8);
  }

 private:
  void shift_to(Slot& slot, int s, uint32_t shift, uint32_t turn) const {
    if (shift <= slot.shifts[s]) return;
    shift_row(args_, order_[s], key_, turn, shift - slot.shifts[s], slot.q + s * SUPER_GROUP);
    slot.shifts[s] = (uint8_t)shift;
  }

  // The bits of a super-group at a shift that is not smaller than its own.
  uint32_t bits_at(const Slot& slot, int s, uint32_t shift) const {
    alignas(64) int32_t q[SUPER_GROUP];
    alignas(64) uint32_t z[SUPER_GROUP];
    memcpy(q, slot.q + s * SUPER_GROUP, sizeof q);
    if (shift > slot.shifts[s]) shift_row(args_, order_[s], key_, 1, shift - slot.shifts[s], q);
    GRADWIRE_SIMD
    for (int i = 0; i < SUPER_GROUP; ++i) z[i] = zigzag(q[i]);
    return Code::choose(z).bits;
  }

  // Has super-groups lose bits: the first ones in an order that changes from hop to hop, as few as suffice,
  // or all of them several. Returns the bits in use.
  int64_t make_fit(Slot& slot, uint32_t* z, typename Code::Choice* choices) const {
    uint32_t base = slot.shifts[0], before[MOST_SUPER_GROUPS];
    const int64_t room = args_.size_out - fixed_bits(num_);
    int64_t total = 0;
    for (int s = 0; s < num_; ++s) {
      base = smaller(base, (uint32_t)slot.shifts[s]);
      total += before[s] = choices[s].bits;
    }
    uint8_t target[MOST_SUPER_GROUPS];
    memcpy(target, slot.shifts, sizeof target);
    for (uint32_t level = 1; total > room && level <= LARGEST_SHIFT; ++level) {
      uint32_t after[MOST_SUPER_GROUPS];
      int64_t left = 0;
      for (int s = 0; s < num_; ++s)
        left += after[s] = bits_at(slot, s, larger(base + level, (uint32_t)slot.shifts[s]));
      int64_t saved = 0;
      int first = num_;
      for (int k = 0; k < num_ && first == num_; ++k) {
        const int s = turn_of(k, num_, args_.contributions);
        saved += (int64_t)before[s] - after[s];
        if (saved >= total - room) first = k;
      }
      for (int k = 0; k < num_; ++k) {
        const int s = turn_of(k, num_, args_.contributions);
        target[s] = (uint8_t)larger(base + level - (k > first), (uint32_t)slot.shifts[s]);
      }
      memcpy(before, after, sizeof before);
      total = left;
    }
    int64_t used = fixed_bits(num_);
    for (int s = 0; s < num_; ++s) {
      int32_t* q = slot.q + s * SUPER_GROUP;
      shift_to(slot, s, target[s], 1);
      if (total > room) memset(q, 0, 4 * SUPER_GROUP);  // once in a million years
      for (int i = 0; i < SUPER_GROUP; ++i) z[s * SUPER_GROUP + i] = zigzag(q[i]);
      choices[s] = Code::choose(z + s * SUPER_GROUP);
      used += choices[s].bits;
    }
    return used;
  }

  const gradwire_lattice& args_;
  const int64_t* const order_;
  const int64_t slot_;
  const int num_;
  const Key key_;
};

GRADWIRE_NAMESPACE_END
