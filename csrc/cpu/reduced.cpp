#include "gradwire/reduced.h"

#include "kernel.h"

using namespace gradwire;

GRADWIRE_CPU_KERNEL(reduced_statistics, gradwire_reduced, 1 << 15) {
  int64_t chunk = begin % args.chunks, index = begin / args.chunks;
  for (int64_t super_group = begin; super_group < end; ++super_group) {
    write_reduced(args, super_group, chunk, index);
    if (++chunk == args.chunks) {
      chunk = 0;
      ++index;
    }
  }
}
