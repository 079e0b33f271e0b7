#include "rotation.h"

using namespace gradwire;
using namespace gradwire_cuda;

namespace {

// Rows are transformed where they are; what they lack of whole units is zeros.
struct Rows {
  __device__ __forceinline__ Rows(const gradwire_hadamard& args, bool aligned)
      : blocks(blocks_of(args)), between(args.rows), numel(args.numel), vectors(aligned) {}

  template <class Place>
  __device__ __forceinline__ void load(const Place& place, float (&v)[GROUPS][4]) const {
    load_tile(between, numel, vectors, place, v);
  }
  template <class Place>
  __device__ __forceinline__ void finish(const Place& place, float (&v)[GROUPS][4]) const {
    const float scale = scale_of(blocks.log);
#pragma unroll
    for (int i = 0; i < GROUPS; ++i) {
#pragma unroll
      for (int k = 0; k < 4; ++k) v[i][k] = mul(v[i][k], scale);
    }
    store_tile(between, numel, vectors, place, v);
  }

  Blocks blocks;
  float* between;
  int64_t numel;
  bool vectors;
};

__global__ void __launch_bounds__(TILE_THREADS, 2)
    near(const GRADWIRE_GRID_CONSTANT gradwire_hadamard args, bool aligned) {
  rotate_near(Rows(args, aligned));
}
__global__ void __launch_bounds__(TILE_THREADS, 2)
    far(const GRADWIRE_GRID_CONSTANT gradwire_hadamard args, bool aligned) {
  rotate_far(Rows(args, aligned));
}

}  // namespace

GRADWIRE_API int gradwire_hadamard_transform(const gradwire_hadamard* args) {
  GRADWIRE_CUDA_BEGIN(hadamard_transform, args);
  const Blocks blocks = blocks_of(*args);
  GRADWIRE_LAUNCH(near, tile_grid(blocks), TILE_THREADS, stream, *args, aligned(args->rows));
  if (blocks.log > TILE_LOG)
    GRADWIRE_LAUNCH(far, tile_grid(blocks), TILE_THREADS, stream, *args, aligned(args->rows));
  return cudaGetLastError();
}
