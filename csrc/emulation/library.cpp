// Beside what cuda/library.cu offers: tests choose what is emulated.
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
