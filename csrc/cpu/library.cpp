// The library for CPUs as a whole: levels of instruction sets, threads.
#include <string.h>

#include <system_error>
#include <thread>
#include <vector>

#include "kernel.h"

namespace {
const char* const NAMES[] = {"base", "v3", "v4"};

int best_level() {
#ifdef GRADWIRE_X86
  __builtin_cpu_init();
  const bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                  __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("f16c") &&
                  __builtin_cpu_supports("bmi") && __builtin_cpu_supports("lzcnt");
  const bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                  __builtin_cpu_supports("avx512cd");
  return v4 ? 2 : v3 ? 1 : 0;
#else
  return 0;
#endif
}

int chosen = best_level();
}  // namespace

namespace gradwire_cpu {
int level() { return chosen; }

// Threads are made for each call, some 20 µs: no pool that a fork would break, no OpenMP beside PyTorch's.
void share(Run run, const void* args, int64_t items, int64_t grain, int threads) {
  int64_t parts = items / grain;
  if (parts > threads) parts = threads;
  if (parts <= 1) {
    if (items > 0) run(args, 0, items);
    return;
  }
  std::vector<std::thread> others;
  others.reserve((size_t)parts);
  int64_t done = items / parts;
  for (int64_t part = 1; part < parts; ++part) {
    const int64_t begin = items * part / parts, end = items * (part + 1) / parts;
    try {
      others.emplace_back(run, args, begin, end);
    } catch (const std::system_error&) {  // no more threads: do it here
      run(args, begin, end);
    }
  }
  run(args, 0, done);
  for (auto& other : others) other.join();
}
}  // namespace gradwire_cpu

// Name of the level in use.
GRADWIRE_API const char* gradwire_cpu_level(void) { return NAMES[chosen]; }

// For tests: use `name`, or the best level for ""; GRADWIRE_BAD_ARGUMENT if this machine lacks it.
GRADWIRE_API int gradwire_cpu_choose(const char* name) {
  const int best = best_level();
  for (int i = 0; i <= best; ++i)
    if (!strcmp(name, NAMES[i])) {
      chosen = i;
      return GRADWIRE_OK;
    }
  if (name[0]) return GRADWIRE_BAD_ARGUMENT;
  chosen = best;
  return GRADWIRE_OK;
}
