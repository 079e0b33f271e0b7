#include "gradwire/lattice.h"

#include "kernel.h"
#include "lattice_slot.h"

using namespace gradwire;

template <class Code>
static void hop(const gradwire_lattice& args, int64_t begin, int64_t end) {
  for (int64_t item = begin; item < end; ++item) {
    const SlotWork<Code> work(args, item);
    Slot slot, other;
    if (args.message_in) work.read(args.held ? other : slot);
    if (args.held) work.load_sums(slot);
    if (args.held && args.message_in) work.add_sums(slot, other);
    if (args.values) work.add_own(slot, args.message_in != nullptr);
    if (args.sums && !(args.held && !args.message_in)) work.store_sums(slot);
    if (args.message_out) work.write(slot);
  }
}

// One hop: what is received, what is held and this worker's gradients become sums, or the next message.
GRADWIRE_CPU_KERNEL(lattice_hop, gradwire_lattice, 1) {
  (args.packed ? hop<PackedCode> : hop<RiceCode>)(args, begin, end);
}
