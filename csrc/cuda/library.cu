// The library for CUDA as a whole: version, devices, errors. It loads on machines without a driver.
#include "launch.h"

GRADWIRE_API int gradwire_abi_version(void) { return GRADWIRE_ABI_VERSION; }

GRADWIRE_API int gradwire_cuda_devices(void) {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

// As CUDA numbers versions: 1000 · major + 10 · minor. Of the runtime that the library was built with, and of
// what the driver can run, 0 without one.
GRADWIRE_API int gradwire_cuda_runtime(void) {
  int version = 0;
  return cudaRuntimeGetVersion(&version) == cudaSuccess ? version : 0;
}
GRADWIRE_API int gradwire_cuda_driver(void) {
  int version = 0;
  return cudaDriverGetVersion(&version) == cudaSuccess ? version : 0;
}

GRADWIRE_API const char* gradwire_error(int code) {
  switch (code) {
    case GRADWIRE_OK: return "no error";
    case GRADWIRE_WRONG_SIZE: return "the library was built from other sources; build the package again";
    case GRADWIRE_BAD_ARGUMENT: return "an argument is out of range or missing";
    case GRADWIRE_MISALIGNED: return "a message does not begin at a multiple of 16 bytes";
    default: return cudaGetErrorString((cudaError_t)code);
  }
}
