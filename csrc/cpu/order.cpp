#include "gradwire/order.h"

#include "kernel.h"

using namespace gradwire;

// A stable counting sort of each chunk.
GRADWIRE_CPU_KERNEL(message_order, gradwire_order, divide_up(1 << 14, larger(args->length, (int64_t)1))) {
  for (int64_t chunk = begin; chunk < end; ++chunk) {
    const int64_t* widths = args.widths + chunk * args.length;
    const int64_t count = super_groups_of(args, chunk);
    int32_t counts[WIDTHS] = {};
    for (int64_t i = 0; i < count; ++i) ++counts[(uint32_t)widths[i] % WIDTHS];
    memcpy(args.counts + chunk * COUNTED_WIDTHS, counts, COUNTED_WIDTHS * sizeof *counts);
    int32_t* next[WIDTHS];
    next[WIDTHS - 1] = args.order + super_groups_before(args, chunk);
    for (int width = WIDTHS - 2; width >= 0; --width) next[width] = next[width + 1] + counts[width + 1];
    for (int64_t i = 0; i < count; ++i)
      *next[(uint32_t)widths[i] % WIDTHS]++ = (int32_t)(i * args.chunks + chunk);
  }
}
