// What every library without CUDA says of itself.
#include "gradwire/abi.h"

GRADWIRE_API int gradwire_abi_version(void) { return GRADWIRE_ABI_VERSION; }

GRADWIRE_API const char* gradwire_error(int code) {
  switch (code) {
    case GRADWIRE_OK: return "no error";
    case GRADWIRE_WRONG_SIZE: return "the library was built from other sources; build the package again";
    case GRADWIRE_BAD_ARGUMENT: return "an argument is out of range or missing";
    case GRADWIRE_MISALIGNED: return "a message does not begin at a multiple of 16 bytes";
    default: return "unknown error";
  }
}
