// A block per tile of a message, a thread for each of its words. The square root of a float64 is a call;
// without a limit on registers it takes a stack.
#include "gradwire/metadata.h"

#include "launch.h"

using namespace gradwire;
using namespace gradwire_cuda;

namespace {

enum : int { WORD = METADATA_WORD };
static_assert((int)METADATA_TILE == WORD * THREADS, "a thread has one word of a tile");

// Elements of a word: the one at the lowest address has the lowest bits.
template <class T>
__device__ __forceinline__ T element_of(uint64_t word, int at) {
  T element;
  word >>= 8 * at;
  __builtin_memcpy(&element, &word, sizeof(T));
  return element;
}
template <class T>
__device__ __forceinline__ uint64_t word_of(T element, int at) {
  uint64_t word = 0;
  __builtin_memcpy(&word, &element, sizeof(T));
  return word << (8 * at);
}

// A word of a message, whose words may lie otherwise than a rank's own.
template <class T>
__device__ __forceinline__ uint64_t load_word(const uint8_t* source) {
  if ((uint64_t)source % WORD == 0) return *reinterpret_cast<const uint64_t*>(source);
  uint64_t word = 0;
#pragma unroll
  for (int at = 0; at < WORD; at += (int)sizeof(T))
    word |= word_of(*reinterpret_cast<const T*>(source + at), at);
  return word;
}

// Its loops are not unrolled: the kernel has fifteen of this function.
struct ByWords {
  template <int KIND, class T>
  __device__ __forceinline__ void run(uint8_t* own, const uint8_t* message, int64_t bytes) const {
    const int begin = WORD * (int)threadIdx.x - (int)((uint64_t)own % WORD), end = begin + WORD;
    if (begin >= 0 && end <= (int)bytes) {
      uint64_t* const target = reinterpret_cast<uint64_t*>(own + begin);
      const uint64_t here = *target, there = load_word<T>(message + begin);
      uint64_t word = 0;
#pragma unroll 1
      for (int at = 0; at < WORD; at += (int)sizeof(T))
        word |= word_of(combined<KIND, T>(element_of<T>(here, at), element_of<T>(there, at)), at);
      *target = word;
      return;
    }
    // Words that a part or a message begins or ends within.
#pragma unroll 1
    for (int at = larger(begin, 0); at < smaller(end, (int)bytes); at += (int)sizeof(T)) {
      T* const element = reinterpret_cast<T*>(own + at);
      *element = combined<KIND, T>(*element, *reinterpret_cast<const T*>(message + at));
    }
  }
};

__global__ void __launch_bounds__(THREADS, 1)
    metadata_hop(const GRADWIRE_GRID_CONSTANT gradwire_metadata args) {
  const int64_t items = items_metadata_hop(args);
  for (int64_t item = blockIdx.x; item < items; item += gridDim.x) work_on_tile(args, item, ByWords());
}

}  // namespace

GRADWIRE_API int gradwire_metadata_hop(const gradwire_metadata* args) {
  GRADWIRE_CUDA_BEGIN(metadata_hop, args);
  const int grid = grid_of(metadata_hop, items_metadata_hop(*args));
  GRADWIRE_LAUNCH(metadata_hop, grid, THREADS, stream, *args);
  return cudaGetLastError();
}
