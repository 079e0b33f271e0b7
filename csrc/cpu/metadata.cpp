#include "gradwire/metadata.h"

#include "kernel.h"

using namespace gradwire;

namespace {

struct ByElements {
  template <int KIND, class T>
  void run(uint8_t* own, const uint8_t* message, int64_t bytes) const {
    T* here = (T*)own;
    const T* there = (const T*)message;
    const int64_t count = bytes / (int64_t)sizeof(T);
    for (int64_t i = 0; i < count; ++i) here[i] = combined<KIND, T>(here[i], there[i]);
  }
};

}  // namespace

GRADWIRE_CPU_KERNEL(metadata_hop, gradwire_metadata, 128) {
  for (int64_t item = begin; item < end; ++item) work_on_tile(args, item, ByElements());
}
