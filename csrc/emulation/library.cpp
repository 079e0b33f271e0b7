// Beside what cuda/library.cu offers: tests choose the order of blocks and threads.
#include "emulation.h"
#include "gradwire/abi.h"

GRADWIRE_API void gradwire_emulation_reverse(int reversed) { emulation::reversed = reversed != 0; }
