#include "gradwire/thc_norms.h"

#include "butterflies.h"

using namespace gradwire;

namespace {

struct Sum {
  GRADWIRE_HD Vector of(Vector a, Vector b) { return a + b; }
};
struct Maximum {
  GRADWIRE_HD Integers of(Integers a, Integers b) { return a > b ? a : b; }
};

// Joins the values that are DISTANCE apart in two vectors, each with 2·DISTANCE values of several units:
// returns a vector with DISTANCE values of all of these units.
template <int DISTANCE, class Operation, class V>
GRADWIRE_HD V halved(V a, V b) {
  const Integers lanes = {GRADWIRE_LANES};
  const Integers lower = (lanes & ~(DISTANCE - 1)) * 2 | (lanes & (DISTANCE - 1));
  return Operation::of(__builtin_shuffle(a, b, lower), __builtin_shuffle(a, b, lower + DISTANCE));
}
// Halves of each of LANES vectors are joined until one value is left: those of the i-th vector in lane i.
template <class Operation, class V, int DISTANCE = LANES / 2>
GRADWIRE_HD V fold_lanes(V* v) {
#pragma GCC unroll 8
  for (int i = 0; i < DISTANCE; ++i) v[i] = halved<DISTANCE, Operation>(v[2 * i], v[2 * i + 1]);
  if constexpr (DISTANCE > 1) return fold_lanes<Operation, V, DISTANCE / 2>(v);
  return v[0];
}
// Joins the vectors of one unit into one.
template <class Operation, int COUNT, class V>
GRADWIRE_HD V fold_vectors(V* v) {
#pragma GCC unroll 8
  for (int half = COUNT / 2; half >= 1; half /= 2)
#pragma GCC unroll 16
    for (int i = 0; i < half; ++i) v[i] = Operation::of(v[i], v[i + half]);
  return v[0];
}

// Maxima and energies of LANES units of WIDTH values.
template <int WIDTH>
void measure(const float* values, uint32_t* maxima, float* energies) {
  constexpr int VECTORS = WIDTH / LANES;
  Integers tops[LANES];
#pragma GCC unroll 1
  for (int unit = 0; unit < LANES; ++unit) {
    Integers v[VECTORS];
#pragma GCC unroll 32
    for (int i = 0; i < VECTORS; ++i)
      v[i] = (Integers)load_vector(values + unit * WIDTH + i * LANES) & (int32_t)MAGNITUDE;
    tops[unit] = fold_vectors<Maximum, VECTORS>(v);
  }
  const Integers top = fold_lanes<Maximum>(tops);
  alignas(64) float normalizers[LANES];
  for (int unit = 0; unit < LANES; ++unit) {
    maxima[unit] = (uint32_t)top[unit];
    normalizers[unit] = normalizer_of(maxima[unit]);
  }
  Vector sums[LANES];
#pragma GCC unroll 1
  for (int unit = 0; unit < LANES; ++unit) {
    Vector v[VECTORS];
#pragma GCC unroll 32
    for (int i = 0; i < VECTORS; ++i) {
      const Vector scaled = load_vector(values + unit * WIDTH + i * LANES) * normalizers[unit];
      v[i] = scaled * scaled;
    }
    sums[unit] = fold_vectors<Sum, VECTORS>(v);
  }
  store_vector(energies, fold_lanes<Sum>(sums));
}

// Joins `count` energies, a power of two up to JOINED.
void join(const uint32_t* maxima, const float* energies, int count, uint32_t* maximum, float* energy) {
  uint32_t top = 0;
  for (int i = 0; i < count; ++i) top = larger(top, maxima[i]);
  alignas(64) float sums[JOINED];
  GRADWIRE_SIMD
  for (int i = 0; i < count; ++i) sums[i] = energy_below(energies[i], maxima[i], top);
  for (int half = count / 2; half >= 1; half /= 2) GRADWIRE_SIMD
  for (int i = 0; i < half; ++i) sums[i] = add(sums[i], sums[i + half]);
  *maximum = top;
  *energy = sums[0];
}

// A tile: blocks that lie in it are done, what it adds to a larger one is noted.
template <class T, int WIDTH>
void tile_norms(const gradwire_thc_norms& args, int64_t tile) {
  constexpr int GROUP = WIDTH * LANES;
  uint32_t maxima[NORM_TILE / WIDTH];
  float energies[NORM_TILE / WIDTH];
  const Blocks blocks = blocks_of(args);
  const int64_t first = tile * NORM_TILE, count = smaller(blocks.total - first, (int64_t)NORM_TILE);
  for (int64_t done = 0; done < count; done += GROUP) {
    const T* x = (const T*)args.x + first + done;
    const int64_t there = args.numel - first - done;
    alignas(64) float values[GROUP];
    const float* measured = values;
    if (there < GROUP) {
      for (int k = 0; k < GROUP; ++k) values[k] = k < there ? load(x + k) : 0.0f;
    } else if (sizeof(T) == sizeof(float)) {
      measured = (const float*)x;
    } else {
      GRADWIRE_SIMD
      for (int k = 0; k < GROUP; ++k) values[k] = load(x + k);
    }
    measure<WIDTH>(measured, maxima + done / WIDTH, energies + done / WIDTH);
  }
  for (int64_t done = 0; done < count;) {
    const int log = log_at(blocks, first + done), here = log < NORM_TILE_LOG ? log : NORM_TILE_LOG;
    uint32_t maximum = maxima[done / WIDTH];
    float energy = energies[done / WIDTH];
    if (1 << here > WIDTH)
      join(maxima + done / WIDTH, energies + done / WIDTH, (1 << here) / WIDTH, &maximum, &energy);
    if (here == log) {
      args.root_mean_squares[index_at(blocks, first + done, log)] = root_mean_square_of(maximum, energy, log);
    } else {
      args.maxima[tile] = maximum;
      args.energies[tile] = energy;
    }
    done += (int64_t)1 << here;
  }
}
template <class T>
void norms(const gradwire_thc_norms& args, int64_t begin, int64_t end) {
  for (int64_t tile = begin; tile < end; ++tile) switch (args.block) {
      case 16: tile_norms<T, 16>(args, tile); break;
      case 32: tile_norms<T, 32>(args, tile); break;
      case 64: tile_norms<T, 64>(args, tile); break;
      default: tile_norms<T, UNIT>(args, tile);
    }
}

GRADWIRE_HD int64_t items_thc_root_mean_squares_tiles(const gradwire_thc_norms& args) {
  return norm_tiles(args);
}
// Whole tiles: in one of them each larger block begins.
GRADWIRE_HD int64_t items_thc_root_mean_squares_blocks(const gradwire_thc_norms& args) {
  return args.block > NORM_TILE ? blocks_of(args).total / NORM_TILE : 0;
}

}  // namespace

GRADWIRE_CPU_PASS(thc_root_mean_squares, tiles, gradwire_thc_norms) {
  if (args.call.dtype == GRADWIRE_FLOAT32)
    norms<float>(args, begin, end);
  else
    norms<uint16_t>(args, begin, end);
}

GRADWIRE_CPU_PASS(thc_root_mean_squares, blocks, gradwire_thc_norms) {
  const Blocks blocks = blocks_of(args);
  for (int64_t tile = begin; tile < end; ++tile) {
    const int64_t first = tile * NORM_TILE;
    const int log = log_at(blocks, first);
    if (log <= NORM_TILE_LOG || first != start_of(first, log)) continue;
    const int tiles = 1 << (log - NORM_TILE_LOG), parts = tiles < JOINED ? 1 : tiles / JOINED;
    uint32_t maxima[JOINED], maximum;
    float energies[JOINED], energy;
    for (int part = 0; part < parts; ++part) {
      const int64_t place = tile + part * JOINED;
      join(args.maxima + place, args.energies + place, tiles / parts, maxima + part, energies + part);
    }
    join(maxima, energies, parts, &maximum, &energy);
    args.root_mean_squares[index_at(blocks, first, log)] = root_mean_square_of(maximum, energy, log);
  }
}
GRADWIRE_CPU_PASSES(thc_root_mean_squares, gradwire_thc_norms, tiles, 16, blocks, 1024)
