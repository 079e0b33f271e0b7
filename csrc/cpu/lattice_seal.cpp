#include "gradwire/lattice.h"

#include "kernel.h"
#include "lattice_slot.h"

using namespace gradwire;

namespace {

// A chunk's complete sum in multiples of c·D, at the sink.
template <class Code>
class Sealing {
 public:
  Sealing(const gradwire_lattice& args, const SlotWork<Code>& work, Slot& slot)
      : args_(args), work_(work), slot_(slot) {
    const float own = power_of_units(-*args.step - args.coarser),
                theirs = power_of_units(-(int64_t)args.coarser);
    for (int s = 0; s < args.super_groups; ++s) {
      float *v = values_ + s * SUPER_GROUP, *noise = noise_ + s * SUPER_GROUP;
      const int32_t* q = slot.q + s * SUPER_GROUP;
      const uint32_t mark = joined_marks(load_super_group(args, work.super_group(s), v), slot.marks[s]);
      slot.marks[s] = (uint8_t)mark;
      if (mark) {
        memset(v, 0, 4 * SUPER_GROUP);
        memset(noise, 0, 4 * SUPER_GROUP);
        continue;
      }
      for (int i = 0; i < SUPER_GROUP; ++i)
        v[i] = add(mul(v[i], own), mul((float)(int64_t)((uint64_t)(int64_t)q[i] << slot.shifts[s]), theirs));
      dithers_of(work.super_group(s), work.key(), noise);
    }
  }

  // The bits of the slot with this step; its integers and codes are kept.
  int64_t round(int32_t code) {
    const float factor = power_of_units(-UNITS_A_CODE * (code - FINEST));
    int64_t used = fixed_bits(args_.super_groups);
    for (int s = 0; s < args_.super_groups; ++s) {
      int32_t* q = slot_.q + s * SUPER_GROUP;
      uint32_t* z = z_ + s * SUPER_GROUP;
      rounded_down(values_ + s * SUPER_GROUP, factor, noise_ + s * SUPER_GROUP, q);
      GRADWIRE_SIMD
      for (int i = 0; i < SUPER_GROUP; ++i) z[i] = zigzag(q[i]);
      choices_[s] = Code::choose(z);
      used += choices_[s].bits;
    }
    return used;
  }

  void write(int64_t slot, int32_t code, int64_t used) {
    const uint8_t further[MOST_SUPER_GROUPS] = {};
    Code::write(z_, choices_, slot_.marks, further, (uint32_t)code, args_.super_groups, used, args_.size_out,
                args_.message_out + slot * args_.size_out / 8);
  }

 private:
  const gradwire_lattice& args_;
  const SlotWork<Code>& work_;
  Slot& slot_;
  alignas(64) float values_[MOST_SUPER_GROUPS * SUPER_GROUP], noise_[MOST_SUPER_GROUPS * SUPER_GROUP];
  alignas(64) uint32_t z_[MOST_SUPER_GROUPS * SUPER_GROUP];
  typename Code::Choice choices_[MOST_SUPER_GROUPS];
};

void store_mean(const gradwire_lattice& args, int64_t super_group, uint32_t mark, const float* total) {
  if (super_group < 0) return;
  float* out = args.means + super_group * SUPER_GROUP;
  const bool silent = mark == SILENT_MARK || (*args.nothing && mark == 0);
  const float workers = (float)args.workers;
  for (int i = 0; i < SUPER_GROUP; ++i)
    out[i] = mark == BROKEN_MARK ? float_of(NOT_A_NUMBER) : silent ? 0.0f : div(total[i], workers);
}

}  // namespace

// The finest step at which each slot fits.
template <class Code>
static void seal(const gradwire_lattice& args, int64_t begin, int64_t end) {
  for (int64_t item = begin; item < end; ++item) {
    const SlotWork<Code> work(args, item);
    Slot slot;
    work.load_sums(slot);
    Sealing<Code> sealing(args, work, slot);
    args.wanted[item] = sealing.round(FINEST);
    int32_t low = -1, high = STEP_CODES - 1;
    for (int turn = 0; turn < NUMBER_BITS; ++turn) {
      const int32_t middle = (low + high) >> 1;
      (sealing.round(middle) <= args.size_out ? high : low) = middle;
    }
    sealing.write(item, high, sealing.round(high));
  }
}
GRADWIRE_CPU_KERNEL(lattice_seal, gradwire_lattice, 1) {
  (args.packed ? seal<PackedCode> : seal<RiceCode>)(args, begin, end);
}

template <class Code>
static void unseal(const gradwire_lattice& args, int64_t begin, int64_t end) {
  for (int64_t item = begin; item < end; ++item) {
    const SlotWork<Code> work(args, item);
    Slot slot;
    const int64_t code = work.read_sealed(slot);
    const float step = power_of_units(*args.step + args.coarser),
                relative = power_of_units(UNITS_A_CODE * (code - FINEST));
    for (int s = 0; s < args.super_groups; ++s) {
      alignas(64) float values[SUPER_GROUP];
      const int32_t* q = slot.q + s * SUPER_GROUP;
      dithers_of(work.super_group(s), work.key(), values);
      GRADWIRE_SIMD
      for (int i = 0; i < SUPER_GROUP; ++i)
        values[i] = mul(mul(add(sub((float)q[i], values[i]), 0.5f), step), relative);
      store_mean(args, work.super_group(s), slot.marks[s], values);
    }
  }
}
GRADWIRE_CPU_KERNEL(lattice_unseal, gradwire_lattice, 1) {
  (args.packed ? unseal<PackedCode> : unseal<RiceCode>)(args, begin, end);
}

// The mean of complete sums that are not sealed; at the sink with its own gradients.
GRADWIRE_CPU_KERNEL(lattice_means, gradwire_lattice, 1) {
  for (int64_t item = begin; item < end; ++item) {
    const SlotWork<RiceCode> work(args, item);
    Slot slot;
    work.load_sums(slot);
    const float step = power_of_units(*args.step);
    for (int s = 0; s < args.super_groups; ++s) {
      alignas(64) float total[SUPER_GROUP], row[SUPER_GROUP];
      const int32_t* q = slot.q + s * SUPER_GROUP;
      uint32_t mark = slot.marks[s];
      for (int i = 0; i < SUPER_GROUP; ++i)
        total[i] = mul((float)(int64_t)((uint64_t)(int64_t)q[i] << slot.shifts[s]), step);
      if (args.values) {
        mark = joined_marks(mark, load_super_group(args, work.super_group(s), row));
        for (int i = 0; i < SUPER_GROUP; ++i) total[i] = add(total[i], row[i]);
      }
      store_mean(args, work.super_group(s), mark, total);
    }
  }
}
