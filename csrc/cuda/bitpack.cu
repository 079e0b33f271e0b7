// The width is known when the kernel runs: it is the same for all lanes, so branches on it cost little.
#include "gradwire/bitpack.h"

#include "launch.h"

using namespace gradwire;
using namespace gradwire_cuda;

namespace {

// What a warp packs at a time: a row of 32 values for each lane. Rows are a word apart, so that lanes that
// walk along theirs use different banks.
constexpr int ROW = 32, STRIDE = ROW + 1, TILE = WARP * ROW;
using Rows = uint32_t[WARPS][WARP * STRIDE];

// The warp's values into its rows, zeros beyond `valid`.
__device__ __forceinline__ void load_rows(const uint32_t* codes, int64_t valid, bool vectors, int lane,
                                          uint32_t* rows) {
  if (vectors && valid >= TILE) {
#pragma unroll
    for (int k = 0; k < ROW / 4; ++k) {
      const uint4 four = reinterpret_cast<const uint4*>(codes)[k * WARP + lane];
      uint32_t* target = rows + (4 * k + lane / 8) * STRIDE + lane % 8 * 4;
      target[0] = four.x, target[1] = four.y, target[2] = four.z, target[3] = four.w;
    }
  } else {
    for (int k = 0; k < ROW; ++k) {
      const int64_t i = k * WARP + lane;
      rows[k * STRIDE + lane] = i < valid ? codes[i] : 0;
    }
  }
}

// A lane's row of values becomes its words, in place: a word is complete only after as many values are read.
__device__ __forceinline__ void pack_row(uint32_t* row, int bits) {
  BitWriter writer;
  uint32_t* target = row;
#pragma unroll 8
  for (int i = 0; i < ROW; ++i)
    if (put(writer, row[i], bits)) *target++ = writer.word;
}

__device__ __forceinline__ void store_bytes(uint8_t* target, uint32_t word, int count) {
  for (int k = 0; k < count; ++k) target[k] = (uint8_t)(word >> 8 * k);
}

// The rows' first `bits` words, one row after another, to the stream, of which `valid` bytes are left.
__device__ __forceinline__ void store_rows(const uint32_t* rows, int bits, int64_t valid, bool words,
                                           int lane, uint8_t* out) {
  int row = lane / bits, column = lane % bits;
  const int rows_on = WARP / bits, columns_on = WARP % bits;
  for (int k = 0; k < bits; ++k) {
    const uint32_t word = rows[row * STRIDE + column];
    const int64_t byte = 4 * (k * WARP + lane);
    if (words && byte + 4 <= valid)
      *reinterpret_cast<uint32_t*>(out + byte) = word;
    else if (byte < valid)
      store_bytes(out + byte, word, (int)smaller(valid - byte, (int64_t)4));
    row += rows_on;
    column += columns_on;
    if (column >= bits) column -= bits, ++row;
  }
}

// The values in the warp's rows to their part of the stream.
__device__ __forceinline__ void pack_tile(const gradwire_bitpack& args, int64_t tile, bool words, int lane,
                                          uint32_t* rows) {
  const int64_t bytes = args.numel / EIGHT * args.bits, byte = tile * (TILE / EIGHT) * args.bits;
  __syncwarp();
  pack_row(rows + lane * STRIDE, args.bits);
  __syncwarp();
  store_rows(rows, args.bits, bytes - byte, words, lane, args.packed_out + byte);
  __syncwarp();
}

__global__ void __launch_bounds__(THREADS)
    pack(const GRADWIRE_GRID_CONSTANT gradwire_bitpack args, bool vectors, bool words) {
  GRADWIRE_SHARED(Rows, shared);
  const int lane = lane_of_thread();
  uint32_t* rows = shared[threadIdx.x / WARP];
  const int64_t tiles = divide_up(args.numel, TILE);
  for (int64_t tile = warp_of_grid(); tile < tiles; tile += warps_of_grid()) {
    load_rows((const uint32_t*)args.codes_in + tile * TILE, args.numel - tile * TILE, vectors, lane, rows);
    pack_tile(args, tile, words, lane, rows);
  }
}

// Four values that begin at bit `shift` < 32 of `words`.
__device__ __forceinline__ void unpack_words(const uint32_t* words, int shift, int bits, uint32_t* values) {
  const uint32_t mask = mask_of(bits);
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const int word = shift / 32, rest = shift % 32;
    uint64_t both = words[word];
    if (rest + bits > 32) both |= (uint64_t)words[word + 1] << 32;
    values[j] = (uint32_t)(both >> rest) & mask;
    shift += bits;
  }
}

// As above, but from single bytes: the stream may end among them.
__device__ __forceinline__ void unpack_bytes(const uint8_t* bytes, int shift, int bits, uint32_t* values) {
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const int rest = shift % 8;
    uint64_t both = 0;
    for (int k = 0; 8 * k < rest + bits; ++k) both |= (uint64_t)bytes[shift / 8 + k] << 8 * k;
    values[j] = (uint32_t)(both >> rest) & mask_of(bits);
    shift += bits;
  }
}

// Each thread has four values at a time. `words`: the stream may be read by words, but for the last, partial
// one.
template <bool ADD>
__global__ void __launch_bounds__(THREADS)
    unpack(const GRADWIRE_GRID_CONSTANT gradwire_bitpack args, bool vectors, bool words) {
  const int64_t fours = args.numel / 4, step = (int64_t)gridDim.x * THREADS;
  const int64_t whole = args.numel / EIGHT * args.bits / 4 * 32;  // bits in whole words
  for (int64_t four = (int64_t)blockIdx.x * THREADS + threadIdx.x; four < fours; four += step) {
    const int64_t bit = 4 * four * args.bits;
    uint32_t values[4];
    if (words && bit + 4 * args.bits <= whole)
      unpack_words((const uint32_t*)args.packed_in + bit / 32, (int)(bit % 32), args.bits, values);
    else
      unpack_bytes(args.packed_in + bit / 8, (int)(bit % 8), args.bits, values);
    uint32_t* target = (uint32_t*)args.codes_out + 4 * four;
    if (vectors) {
      uint4& all = *reinterpret_cast<uint4*>(target);
      const uint4 before = ADD ? all : make_uint4(0, 0, 0, 0);
      all =
          make_uint4(before.x + values[0], before.y + values[1], before.z + values[2], before.w + values[3]);
    } else {
#pragma unroll
      for (int j = 0; j < 4; ++j) target[j] = (ADD ? target[j] : 0) + values[j];
    }
  }
}

// Whether a stream of this many values is read by words, and the bits in whole words.
struct Stream {
  const uint8_t* bytes;
  bool words;
  int64_t whole;
};
__device__ __forceinline__ void load_four_of(const Stream& stream, int64_t four, int bits, uint32_t* values) {
  const int64_t bit = 4 * four * bits;
  if (stream.words && bit + 4 * bits <= stream.whole)
    unpack_words((const uint32_t*)stream.bytes + bit / 32, (int)(bit % 32), bits, values);
  else
    unpack_bytes(stream.bytes + bit / 8, (int)(bit % 8), bits, values);
}

// The sums of the warp's values and those of a stream into its rows, zeros beyond the end. `vectors`: values
// may be loaded and stored by four.
__device__ __forceinline__ void add_rows(const gradwire_bitpack& args, const Stream& stream, int64_t tile,
                                         bool vectors, int lane, uint32_t* rows) {
  const int64_t fours = args.numel / 4;
  for (int k = 0; k < ROW / 4; ++k) {
    const int64_t four = (tile * (TILE / 4)) + k * WARP + lane;
    uint32_t* target = rows + (4 * k + lane / 8) * STRIDE + lane % 8 * 4;
    uint32_t values[4] = {0, 0, 0, 0};
    if (four < fours) {
      load_four_of(stream, four, args.bits, values);
      const uint32_t* codes = (const uint32_t*)args.codes_in + 4 * four;
      uint32_t* sums = (uint32_t*)args.codes_out + 4 * four;
      if (vectors) {
        const uint4 own = *reinterpret_cast<const uint4*>(codes);
        values[0] += own.x, values[1] += own.y, values[2] += own.z, values[3] += own.w;
        if (args.codes_out)
          *reinterpret_cast<uint4*>(sums) = make_uint4(values[0], values[1], values[2], values[3]);
      } else {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          values[j] += codes[j];
          if (args.codes_out) sums[j] = values[j];
        }
      }
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) target[j] = values[j];
  }
}

// As `pack`, of sums.
__global__ void __launch_bounds__(THREADS) add_and_pack(const GRADWIRE_GRID_CONSTANT gradwire_bitpack args,
                                                        bool vectors, bool read_words, bool words) {
  GRADWIRE_SHARED(Rows, shared);
  const int lane = lane_of_thread();
  uint32_t* rows = shared[threadIdx.x / WARP];
  const int64_t tiles = divide_up(args.numel, TILE);
  const Stream stream = {args.packed_in, read_words, args.numel / EIGHT * args.bits / 4 * 32};
  for (int64_t tile = warp_of_grid(); tile < tiles; tile += warps_of_grid()) {
    add_rows(args, stream, tile, vectors, lane, rows);
    pack_tile(args, tile, words, lane, rows);
  }
}

template <bool ADD>
int launch_unpack(const gradwire_bitpack& args, cudaStream_t stream) {
  const auto kernel = unpack<ADD>;
  const int grid = grid_of(kernel, divide_up(args.numel / 4, THREADS));
  GRADWIRE_LAUNCH(kernel, grid, THREADS, stream, args, aligned(args.codes_out), aligned(args.packed_in, 4));
  return cudaGetLastError();
}

}  // namespace

GRADWIRE_API int gradwire_pack_bits(const gradwire_bitpack* args) {
  GRADWIRE_CUDA_BEGIN(pack_bits, args);
  const auto kernel = pack;
  const int grid = grid_of(kernel, divide_up(args->numel, WARPS * TILE));
  GRADWIRE_LAUNCH(kernel, grid, THREADS, stream, *args, aligned(args->codes_in),
                  aligned(args->packed_out, 4));
  return cudaGetLastError();
}

GRADWIRE_API int gradwire_unpack_bits(const gradwire_bitpack* args) {
  GRADWIRE_CUDA_BEGIN(unpack_bits, args);
  return launch_unpack<false>(*args, stream);
}

GRADWIRE_API int gradwire_add_bits(const gradwire_bitpack* args) {
  GRADWIRE_CUDA_BEGIN(add_bits, args);
  return launch_unpack<true>(*args, stream);
}

GRADWIRE_API int gradwire_add_and_pack_bits(const gradwire_bitpack* args) {
  GRADWIRE_CUDA_BEGIN(add_and_pack_bits, args);
  const auto kernel = add_and_pack;
  const int grid = grid_of(kernel, divide_up(args->numel, WARPS * TILE));
  const bool vectors = aligned(args->codes_in) && aligned(args->codes_out);
  GRADWIRE_LAUNCH(kernel, grid, THREADS, stream, *args, vectors, aligned(args->packed_in, 4),
                  aligned(args->packed_out, 4));
  return cudaGetLastError();
}
