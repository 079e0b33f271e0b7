// How a kernel for CPUs is written. cpu/<family>.cpp is compiled once for each level of instruction sets,
// with GRADWIRE_LEVEL set to base, v3 (AVX2) or v4 (AVX-512), and says for each operation what it does to
// some items:
//
//     GRADWIRE_CPU_KERNEL(<name>, gradwire_<family>, <grain>) { ... args, begin, end ... }
//
// `check_<name>(args)` and `items_<name>(args)` in <family>.h tell whether the arguments make sense and how
// many items there are. The base build defines the exported function as well: it checks, chooses the level
// that this machine has, and shares the items among threads, at least `grain` to each.
#pragma once
#include <string.h>

#include "gradwire/abi.h"
#include "gradwire/arithmetic.h"

// For loops over a group held in an array: GCC makes whole vectors of them if all operands are 32 bits wide.
#define GRADWIRE_SIMD _Pragma("omp simd")

namespace gradwire_cpu {
using Run = void (*)(const void* args, int64_t begin, int64_t end);
// 0 base, 1 v3, 2 v4: the best that this machine has, or what tests have chosen.
int level();
// Calls run(args, begin, end) for parts of the items, each at least `grain` long, in at most `threads`
// threads.
void share(Run run, const void* args, int64_t items, int64_t grain, int threads);
}  // namespace gradwire_cpu

#define GRADWIRE_JOIN_(a, b) a##_##b
#define GRADWIRE_JOIN(a, b) GRADWIRE_JOIN_(a, b)
#define GRADWIRE_SYMBOL(name) GRADWIRE_JOIN(gradwire_cpu_##name, GRADWIRE_LEVEL)

#ifdef GRADWIRE_EXPORTS
#ifdef GRADWIRE_X86
#define GRADWIRE_LEVELS(name) {gradwire_cpu_##name##_base, gradwire_cpu_##name##_v3, gradwire_cpu_##name##_v4}
#define GRADWIRE_DECLARE_LEVELS(name)                                      \
  extern "C" void gradwire_cpu_##name##_v3(const void*, int64_t, int64_t); \
  extern "C" void gradwire_cpu_##name##_v4(const void*, int64_t, int64_t);
#else
#define GRADWIRE_LEVELS(name) {gradwire_cpu_##name##_base}
#define GRADWIRE_DECLARE_LEVELS(name)
#endif
#define GRADWIRE_EXPORT(name, Args, grain)                                                         \
  GRADWIRE_DECLARE_LEVELS(name)                                                                    \
  GRADWIRE_API int gradwire_##name(const Args* args) {                                             \
    static const gradwire_cpu::Run levels[] = GRADWIRE_LEVELS(name);                               \
    if (args->call.bytes != (int32_t)sizeof(Args)) return GRADWIRE_WRONG_SIZE;                     \
    if (const int error = gradwire::check_##name(*args)) return error;                             \
    gradwire_cpu::share(levels[gradwire_cpu::level()], args, gradwire::items_##name(*args), grain, \
                        args->call.threads);                                                       \
    return GRADWIRE_OK;                                                                            \
  }
#else
#define GRADWIRE_EXPORT(name, Args, grain)
#endif

#define GRADWIRE_CPU_KERNEL(name, Args, grain)                                          \
  static void run_##name(const Args& args, int64_t begin, int64_t end);                 \
  extern "C" void GRADWIRE_SYMBOL(name)(const void* args, int64_t begin, int64_t end) { \
    run_##name(*(const Args*)args, begin, end);                                         \
  }                                                                                     \
  GRADWIRE_EXPORT(name, Args, grain)                                                    \
  static void run_##name(const Args& args, int64_t begin, int64_t end)

// An operation in two passes, where the second needs all of the first: each is a GRADWIRE_CPU_PASS(<name>,
// <pass>, gradwire_<family>) { … }, with `items_<name>_<pass>(args)` items, and the file ends with
//
//     GRADWIRE_CPU_PASSES(<name>, gradwire_<family>, <first>, <its grain>, <second>, <its grain>)
#define GRADWIRE_CPU_PASS(name, pass, Args)                                                      \
  static void run_##name##_##pass(const Args& args, int64_t begin, int64_t end);                 \
  extern "C" void GRADWIRE_SYMBOL(name##_##pass)(const void* args, int64_t begin, int64_t end) { \
    run_##name##_##pass(*(const Args*)args, begin, end);                                         \
  }                                                                                              \
  static void run_##name##_##pass(const Args& args, int64_t begin, int64_t end)
#ifdef GRADWIRE_EXPORTS
#define GRADWIRE_CPU_PASSES(name, Args, first, first_grain, second, second_grain)                     \
  GRADWIRE_DECLARE_LEVELS(name##_##first)                                                             \
  GRADWIRE_DECLARE_LEVELS(name##_##second)                                                            \
  GRADWIRE_API int gradwire_##name(const Args* args) {                                                \
    static const gradwire_cpu::Run firsts[] = GRADWIRE_LEVELS(name##_##first);                        \
    static const gradwire_cpu::Run seconds[] = GRADWIRE_LEVELS(name##_##second);                      \
    if (args->call.bytes != (int32_t)sizeof(Args)) return GRADWIRE_WRONG_SIZE;                        \
    if (const int error = gradwire::check_##name(*args)) return error;                                \
    const int level = gradwire_cpu::level(), threads = args->call.threads;                            \
    gradwire_cpu::share(firsts[level], args, items_##name##_##first(*args), first_grain, threads);    \
    gradwire_cpu::share(seconds[level], args, items_##name##_##second(*args), second_grain, threads); \
    return GRADWIRE_OK;                                                                               \
  }
#else
#define GRADWIRE_CPU_PASSES(name, Args, first, first_grain, second, second_grain)
#endif
