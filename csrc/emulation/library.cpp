// Beside what cuda/library.cu offers: tests choose what is emulated.
#include <dlfcn.h>

#include "emulation.h"
#include "gradwire/abi.h"

// `reversed`: blocks and threads run backwards. `small`: one multiprocessor, which holds one block.
// `watched`: launches fail where nothing orders accesses to shared memory; -1 if this library cannot tell.
GRADWIRE_API int gradwire_emulation_choose(int reversed, int small, int watched) {
  emulation::reversed = reversed != 0;
  emulation::small = small != 0;
#ifdef GRADWIRE_WATCHED
  emulation::watched = watched != 0;
  return 0;
#else
  return watched ? -1 : 0;
#endif
}

// Counts what a warp's accesses to memory need from now on, or does not; -1 if this library cannot.
GRADWIRE_API int gradwire_emulation_count(int counting) {
  emulation::accesses::forget();
#ifdef GRADWIRE_WATCHED
  emulation::accesses::counting = counting != 0;
  return 0;
#else
  return counting ? -1 : 0;
#endif
}
GRADWIRE_API int gradwire_emulation_kernels() { return emulation::accesses::kernels(); }

// What the launches of one of these kernels have needed: the numbers of accesses.h's Totals, in their order.
// Returns where the kernel is in this library.
GRADWIRE_API uint64_t gradwire_emulation_totals(int kernel, uint64_t* totals) {
  const void* code = nullptr;
  memcpy(totals, &emulation::accesses::totals_of(kernel, &code), sizeof(emulation::accesses::Totals));
  Dl_info library = {};
  dladdr((const void*)&gradwire_emulation_kernels, &library);
  return (uint64_t)((const char*)code - (const char*)library.dli_fbase);
}

// How many kernels and memsets calls have launched so far.
GRADWIRE_API int64_t gradwire_emulation_launches() { return emulation::launches; }

#ifndef GRADWIRE_UCONTEXT
asm(R"(
.text
.globl gradwire_emulation_switch
.hidden gradwire_emulation_switch
.type gradwire_emulation_switch, @function
gradwire_emulation_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size gradwire_emulation_switch, . - gradwire_emulation_switch
)");
#endif
