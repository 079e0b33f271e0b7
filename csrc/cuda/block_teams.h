// Blocks that wait for one another: the blocks of a cluster, which a device of compute capability 9.0 or
// later runs at the same time, or all blocks of a cooperative launch, which a device begins when it has room
// for all of them. Nothing else guarantees that a block does not wait for one that has no place on the
// device. Both can be captured in a CUDA graph.
#pragma once
#include "launch.h"

#ifndef GRADWIRE_EMULATED
#include <cooperative_groups.h>

#define GRADWIRE_LAUNCH_CLUSTERS(kernel, grid, cluster, block, stream, ...) \
  gradwire_cuda::launch_with(gradwire_cuda::of_clusters(cluster), kernel, grid, block, stream, __VA_ARGS__)
#define GRADWIRE_LAUNCH_COOPERATIVE(kernel, grid, block, stream, ...) \
  gradwire_cuda::launch_with(gradwire_cuda::cooperative(), kernel, grid, block, stream, __VA_ARGS__)
#endif

namespace gradwire_cuda {

enum class Team { ALONE, CLUSTER, GRID };
// Blocks that every device with clusters accepts in one.
constexpr int MOST_OF_CLUSTER = 8;

#ifdef GRADWIRE_EMULATED
inline void sync_cluster() { emulation::sync_team(emulation::CLUSTER); }
inline void sync_grid() { emulation::sync_team(emulation::COOPERATIVE); }
#else
__device__ __forceinline__ void sync_cluster() { ptx::barrier_cluster(); }
__device__ __forceinline__ void sync_grid() { cooperative_groups::this_grid().sync(); }

inline cudaLaunchAttribute of_clusters(int blocks) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = (unsigned)blocks;
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  return attribute;
}
inline cudaLaunchAttribute cooperative() {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeCooperative;
  attribute.val.cooperative = 1;
  return attribute;
}
template <class... Parameters, class... Arguments>
void launch_with(cudaLaunchAttribute attribute, void (*kernel)(Parameters...), int grid, int block,
                 cudaStream_t stream, const Arguments&... arguments) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3((unsigned)grid);
  config.blockDim = dim3((unsigned)block);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  cudaLaunchKernelEx(&config, kernel, arguments...);  // cudaGetLastError says what went wrong
}
#endif

// All threads of the team's blocks wait here, and see what the others have written to memory before.
template <Team TEAM>
__device__ __forceinline__ void sync_team() {
  if (TEAM == Team::CLUSTER)
    sync_cluster();
  else if (TEAM == Team::GRID)
    sync_grid();
  else
    __syncthreads();
}

// What the current device offers a kernel of blocks of `threads`, of which there is a variant for clusters
// and one for cooperative launches. Each host thread remembers it: to ask costs more than a launch.
struct Teams {
  bool clusters = false;  // the kernel was compiled for them, too
  int resident = 0;       // blocks of a cooperative launch at most; 0 where there are none
};
template <class Kernel>
const Teams& teams_of(Kernel of_cluster, Kernel of_grid, int threads) {
  struct Known {
    Kernel kernel;
    int device;
    Teams teams;
  };
  constexpr int PLACES = 16;  // as in grid_of
  static thread_local Known known[PLACES];
  static thread_local int count = 0;
  int device = 0;
  cudaGetDevice(&device);
  for (int i = 0; i < count && i < PLACES; ++i)
    if (known[i].kernel == of_cluster && known[i].device == device) return known[i].teams;
  Teams teams;
  int clusters = 0, launches = 0, processors = 0, each = 0;
  cudaFuncAttributes attributes = {};
  cudaDeviceGetAttribute(&clusters, cudaDevAttrClusterLaunch, device);
  cudaFuncGetAttributes(&attributes, of_cluster);
  teams.clusters = clusters && attributes.ptxVersion >= 90;
  cudaDeviceGetAttribute(&launches, cudaDevAttrCooperativeLaunch, device);
  cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, of_grid, threads, 0);
  teams.resident = launches ? processors * each : 0;
  Known& place = known[count++ % PLACES];
  place = {of_cluster, device, teams};
  return place.teams;
}

}  // namespace gradwire_cuda
