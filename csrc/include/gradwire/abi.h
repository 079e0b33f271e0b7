// What both libraries, for CPUs and for CUDA, offer to the outside: C functions that take one struct each.
//
// An operation `gradwire_<name>(const gradwire_<family>*)` is declared with its struct in <family>.h and
// defined in cpu/<family>.cpp and in cuda/<family>.cu. Structs hold plain pointers and numbers, no types of
// PyTorch, Python or CUDA; arrays have their sizes in digits. Python reads them from this text
// (codecs/native/loading.py). Pointers are the device's; what is host memory says so.
#pragma once
#include <stdint.h>

#define GRADWIRE_ABI_VERSION 3
#define GRADWIRE_API extern "C" __attribute__((visibility("default")))

enum {
  GRADWIRE_OK = 0,
  GRADWIRE_WRONG_SIZE = -1,    // the caller's struct is not this library's
  GRADWIRE_BAD_ARGUMENT = -2,  // a number out of range, or a pointer that is missing
  GRADWIRE_MISALIGNED = -3,    // a message must begin at a multiple of 16 bytes
};  // above 0: a cudaError_t

enum { GRADWIRE_FLOAT32 = 0, GRADWIRE_BFLOAT16 = 1 };

// Every operation's struct begins with it.
typedef struct {
  int32_t bytes;    // sizeof the struct that begins here
  int32_t device;   // CUDA's number of it, -1 for the CPU
  uint64_t stream;  // a cudaStream_t as an integer
  int32_t threads;  // of the CPU, at most
  int32_t dtype;    // of what is not encoded: GRADWIRE_FLOAT32 or GRADWIRE_BFLOAT16
} gradwire_call;

GRADWIRE_API int gradwire_abi_version(void);
// What the headers that the library was built from declare, as text.
GRADWIRE_API const char* gradwire_declarations(void);
// What an error code means; of CUDA's, the runtime's words.
GRADWIRE_API const char* gradwire_error(int code);
