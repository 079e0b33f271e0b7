// Patterns of accesses whose sectors and turns of banks are known: what the counting is tested with.
#include "gradwire/abi.h"
#include "launch.h"

using namespace gradwire_cuda;

namespace {

struct alignas(16) Words {
  uint32_t at[32 * WARP];
};

enum Pattern {
  WHOLE,             // 16 bytes of each lane, next to its neighbours'
  OWN_64,            // a lane has 64 bytes, in turns of 16
  WORDS_64_APART,    // 4 bytes of each lane, 64 apart
  EVERY_OTHER_WORD,  // 4 bytes of each lane, 8 apart
  SHIFTED,           // words next to one another, off by one
  SOME_LANES,        // lanes skip words in a loop, and meet again
  ONE_WORD,          // all lanes have the same
  SHARED_WORDS,      // in shared memory: next to one another
  SHARED_2_APART,
  SHARED_32_APART,
  SHARED_31_APART,
  SHARED_ONE_WORD,
  SHARED_PAIRS,  // 8 bytes next to one another
  SHARED_PAIRS_2_APART,
  SHARED_FOURS,
  SHARED_FOURS_2_APART,
};

__global__ void touch(Pattern pattern, const uint32_t* in, uint32_t* out) {
  GRADWIRE_SHARED(Words, words);
  const int lane = lane_of_thread();
  if (threadIdx.x >= WARP) return;
  uint2* const pairs = reinterpret_cast<uint2*>(words.at);
  uint4* const fours = reinterpret_cast<uint4*>(words.at);
  const auto move = [&](int i) { out[i] = in[i]; };
  switch (pattern) {
    case WHOLE: reinterpret_cast<uint4*>(out)[lane] = reinterpret_cast<const uint4*>(in)[lane]; break;
    case OWN_64:
      for (int i = 0; i < 4; ++i)
        reinterpret_cast<uint4*>(out)[4 * lane + i] = reinterpret_cast<const uint4*>(in)[4 * lane + i];
      break;
    case WORDS_64_APART: move(16 * lane); break;
    case EVERY_OTHER_WORD: move(2 * lane); break;
    case SHIFTED: move(lane + 1); break;
    case SOME_LANES:
      for (int i = 0; i < 4; ++i) {
        if (i != lane % 4) move(WARP * i + lane);
        __syncwarp();
      }
      break;
    case ONE_WORD: move(0); break;
    case SHARED_WORDS: words.at[lane] = 0; break;
    case SHARED_2_APART: words.at[2 * lane] = 0; break;
    case SHARED_32_APART: words.at[32 * lane] = 0; break;
    case SHARED_31_APART: words.at[31 * lane] = 0; break;
    case SHARED_ONE_WORD: out[lane] = words.at[5]; break;
    case SHARED_PAIRS: pairs[lane] = make_uint2(0, 0); break;
    case SHARED_PAIRS_2_APART: pairs[2 * lane] = make_uint2(0, 0); break;
    case SHARED_FOURS: fours[lane] = make_uint4(0, 0, 0, 0); break;
    case SHARED_FOURS_2_APART: fours[2 * lane] = make_uint4(0, 0, 0, 0); break;
  }
}

}  // namespace

// 0, or the code of an error. `in` and `out` have 1024 words, at a multiple of 32 bytes.
GRADWIRE_API int gradwire_emulation_touch(int pattern, const uint32_t* in, uint32_t* out) {
  GRADWIRE_LAUNCH(touch, 1, THREADS, nullptr, (Pattern)pattern, in, out);
  return cudaGetLastError();
}
