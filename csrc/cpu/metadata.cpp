#include "gradwire/metadata.h"

#include "kernel.h"

using namespace gradwire;

GRADWIRE_CPU_KERNEL(metadata_hop, gradwire_metadata, 64) {
  for (int64_t item = begin; item < end; ++item) work_on_tile(args, item, 0, 1);
}
