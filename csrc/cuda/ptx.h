// The PTX instructions that kernels name, each as a function; emulation/intrinsics.h says what they compute.
#pragma once
#include <cuda_runtime.h>
#include <stdint.h>

namespace gradwire_cuda {
namespace ptx {

// log2 to about 2^-22, subnormal numbers being zeros.
__device__ __forceinline__ float lg2_approx_ftz(float x) {
  float result;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
// 1/x to about 2^-23, subnormal numbers being zeros.
__device__ __forceinline__ float rcp_approx_ftz(float x) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
// NaN if one of them is.
__device__ __forceinline__ float max_nan(float a, float b) {
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
}
// Two bfloat16, to nearest, ties to even; a NaN becomes 0x7fff.
__device__ __forceinline__ uint32_t cvt_rn_bf16x2(float high, float low) {
  uint32_t both;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}
// Two sums of two float16 each, to nearest, ties to even.
__device__ __forceinline__ uint32_t add_rn_f16x2(uint32_t a, uint32_t b) {
  uint32_t sums;
  asm("add.rn.f16x2 %0, %1, %2;" : "=r"(sums) : "r"(a), "r"(b));
  return sums;
}
// The thread's place in its warp, asked for again wherever it is used.
__device__ __forceinline__ int laneid() {
  int lane;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane;
}
// The smaller ones of two whole numbers of 16 bits each.
__device__ __forceinline__ uint32_t min_u16x2(uint32_t a, uint32_t b) { return __vminu2(a, b); }
// 16 or 8 bytes as one instruction: left to itself the compiler takes some of them apart.
__device__ __forceinline__ void st_global_v4(void* target, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(target)), "r"(a),
               "r"(b), "r"(c), "r"(d)
               : "memory");
}
__device__ __forceinline__ void st_global_v2(void* target, uint32_t a, uint32_t b) {
  asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(__cvta_generic_to_global(target)), "r"(a), "r"(b)
               : "memory");
}
// All threads of a cluster's blocks wait here; what they have written to memory before, all see after it. A
// kernel without clusters, for older devices, must not come here.
__device__ __forceinline__ void barrier_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#else
  __trap();
#endif
}
// The value, which the compiler takes for another.
__device__ __forceinline__ int64_t opaque(int64_t value) {
  asm volatile("" : "+l"(value));
  return value;
}

}  // namespace ptx
}  // namespace gradwire_cuda
