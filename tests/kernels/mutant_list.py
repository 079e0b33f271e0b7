"""Faults to put into the CUDA sources one by one: strides, barriers, rounding, tails. Tests notice each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
WITHIN = 3000
"""The greatest distance of a fault's text behind its anchor, in characters."""


@dataclass(frozen=True)
class Mutant:
    """The first `old` from the only `anchor` on becomes `new`; `tests` are the kernel's own."""

    source: str
    anchor: str
    old: str
    new: str
    tests: str

    @property
    def name(self) -> str:
        return f"{self.source}, {self.anchor!r}: {self.old!r} becomes {self.new!r}"

    def place(self, text: str) -> int:
        """The fault's place in the source. Raises ValueError unless there is exactly one."""
        if text.count(self.anchor) != 1:
            raise ValueError(f"{self.name}: the anchor is there {text.count(self.anchor)} times, not once")
        begin = text.index(self.anchor)
        place = text.find(self.old, begin, begin + WITHIN)
        if place < 0:
            raise ValueError(f"{self.name}: its text does not follow the anchor")
        return place

    def put_into(self, text: str) -> str:
        place = self.place(text)
        return text[:place] + self.new + text[place + len(self.old) :]


WARPS, TWICE = "+= warps_of_grid()", "+= 2 * warps_of_grid()"
BLOCKS, SKIPPING = "+= gridDim.x", "+= 2 * gridDim.x"
BARRIER, LOCAL, NONE = "__syncthreads();", "__syncwarp();", ";"
TEAM = "sync_team<TEAM>();"

STRIDES = (
    Mutant("cuda/statistics.cu", "    statistics(const", WARPS, TWICE, "statistics"),
    Mutant("cuda/levels.cu", "    encode(const", WARPS, TWICE, "levels"),
    Mutant("cuda/levels.cu", "    encode_long(const", BLOCKS, SKIPPING, "levels"),
    Mutant("cuda/levels.cu", "    decode(const", WARPS, TWICE, "levels"),
    Mutant("cuda/signs.cu", "    encode(const", WARPS, TWICE, "signs"),
    Mutant("cuda/signs.cu", "    encode_long(const", BLOCKS, SKIPPING, "signs"),
    Mutant("cuda/signs.cu", "    decode(const", WARPS, TWICE, "signs"),
    Mutant("cuda/tfp.cu", "    encode(const", WARPS, TWICE, "tfp"),
    Mutant("cuda/tfp.cu", "    decode(const", WARPS, TWICE, "tfp"),
    Mutant("cuda/tfp.cu", "    refine(const", WARPS, TWICE, "tfp"),
    Mutant("cuda/mxfp.cu", "    maxima(const", WARPS, TWICE, "mxfp"),
    Mutant("cuda/mxfp.cu", "    quantize(const", WARPS, TWICE, "mxfp"),
    Mutant("cuda/mxfp.cu", "    dequantize(const", WARPS, TWICE, "mxfp"),
    Mutant("cuda/mxfp_add.cu", "    add_elements(", "* THREADS * BYTES;", "* THREADS * BYTES * 2;", "mxfp"),
    Mutant("cuda/norms.cu", "    short_blocks(const", WARPS, TWICE, "norms"),
    Mutant("cuda/norms.cu", "    long_blocks(const", WARPS, TWICE, "norms"),
    Mutant(
        "cuda/histogram.cu", "    histogram(const", "gridDim.x * STRIP", "gridDim.x * STRIP * 2", "histogram"
    ),
    Mutant("cuda/histogram.cu", "    energies(const", BLOCKS, SKIPPING, "histogram"),
    Mutant(
        "cuda/histogram.cu", "    equal_bins(const", "gridDim.x * STRIP", "gridDim.x * STRIP * 2", "histogram"
    ),
    Mutant("cuda/bitpack.cu", "    pack(const", WARPS, TWICE, "bitpack"),
    Mutant("cuda/bitpack.cu", " add_and_pack(const", WARPS, TWICE, "bitpack"),
    Mutant("cuda/bitpack.cu", "void add_rows(", "k * WARP + lane", "k * WARP + (lane ^ 1)", "bitpack"),
    Mutant("cuda/bitpack.cu", "void add_rows(", "four < fours", "four + 1 < fours", "bitpack"),
    Mutant("cuda/bitpack.cu", "void add_rows(", "values[3] += own.w", "values[3] += own.z", "bitpack"),
    Mutant("cuda/bitpack.cu", "void add_rows(", "if (args.codes_out) sums[j]", "if (j) sums[j]", "bitpack"),
    Mutant("cuda/bitpack.cu", "void load_four_of(", "bit % 32", "bit % 16", "bitpack"),
    Mutant("cuda/bitpack.cu", "void load_four_of(", "bit % 8", "bit % 4", "bitpack"),
    Mutant("cuda/bitpack.cu", "four < fours;", "four += step", "four += 2 * step", "bitpack"),
    Mutant("cuda/linear.cu", "    quantize(const", WARPS, TWICE, "linear"),
    Mutant("cuda/linear.cu", "    decode(const", WARPS, TWICE, "linear"),
    Mutant(
        "cuda/dynamiq.cu",
        "Warp this_warp()",
        "(int32_t)warps_of_grid()",
        "2 * (int32_t)warps_of_grid()",
        "dynamiq",
    ),
    Mutant(
        "cuda/dynamiq_shared.h",
        "plan.pairs[0] = 0;",
        "(int32_t)warps_of_grid()",
        "2 * (int32_t)warps_of_grid()",
        "dynamiq",
    ),
    Mutant(
        "cuda/dynamiq_rows.h", "void prepare(", "PAIRS * plan.stride", "(PAIRS + 1) * plan.stride", "dynamiq"
    ),
    Mutant("cuda/thc_norms.cu", "    large_blocks(const", WARPS, TWICE, "thc"),
    Mutant("cuda/metadata.cu", "metadata_hop(const GRADWIRE_GRID", BLOCKS, SKIPPING, "metadata"),
    Mutant("cuda/cast.cu", "    cast_slice(const", "* WARP * EACH;", "* WARP * EACH * 2;", "cast"),
    Mutant(
        "cuda/plan.cu",
        "    plan_of_one_width(const",
        "i < args.total; i += threads",
        "i < args.total; i += 2 * threads",
        "plan",
    ),
)

BARRIERS = (
    Mutant("cuda/histogram.cu", "    histogram(const", BARRIER, LOCAL, "histogram"),
    Mutant("cuda/histogram.cu", "if (zeros) atomicAdd", BARRIER, LOCAL, "histogram"),
    Mutant("cuda/histogram.cu", "threads.at[threadIdx.x] = squares[0];", BARRIER, LOCAL, "histogram"),
    Mutant("cuda/histogram.cu", "args.energies[piece] = sum;", BARRIER, LOCAL, "histogram"),
    Mutant("cuda/histogram.cu", "Counts[EQUAL_BINS];", BARRIER, LOCAL, "histogram"),
    Mutant("cuda/histogram.cu", "counts[bin_of(values[k], args.width", BARRIER, LOCAL, "histogram"),
    Mutant("cuda/norms.cu", "if (lane % TEAM == member)", BARRIER, LOCAL, "norms"),
    Mutant("cuda/norms.cu", "sum = sums[lane];", BARRIER, NONE, "norms"),
    Mutant("cuda/group_sums.h", "largest_of_warps(WarpWords", BARRIER, LOCAL, "levels"),
    Mutant("cuda/group_sums.h", "fold_warps(WarpWords", BARRIER, LOCAL, "levels"),
    Mutant("cuda/group_sums.h", "count_warps(WarpWords", BARRIER, LOCAL, "signs"),
    Mutant(
        "cuda/levels.cu", "(own >> shift) * 4, bits_of(scale.norm));\n    __sync", BARRIER, NONE, "levels"
    ),
    Mutant("cuda/bitpack.cu", "pack_row(rows + lane", LOCAL, NONE, "bitpack"),
    Mutant("cuda/bitpack.cu", "store_rows(rows, args.bits", LOCAL, NONE, "bitpack"),
    Mutant("cuda/rows.h", "halves[i] = (uint16_t)(words", LOCAL, NONE, "tfp"),
    Mutant("cuda/rotation.h", "for (int half = 0; half < 2; ++half)", BARRIER, NONE, "hadamard"),
    Mutant("cuda/thc.cu", "entries.at[i] = make_float2", BARRIER, NONE, "thc"),
    Mutant("cuda/thc_norms.cu", "GRADWIRE_SHARED(Units, units)", BARRIER, LOCAL, "thc"),
    Mutant("cuda/dynamiq.cu", "void encode_rows(const Parameters& p", BARRIER, LOCAL, "dynamiq"),
    Mutant("cuda/dynamiq.cu", "dynamiq_decode(const GRADWIRE_GRID", BARRIER, LOCAL, "dynamiq"),
    Mutant("cuda/plan_shared.h", "shared_.votes[threadIdx.x] = 0;", BARRIER, LOCAL, "plan"),
    Mutant("cuda/dynamiq_rows.h", "slot += pair >=", LOCAL, NONE, "dynamiq"),
    Mutant("cuda/dynamiq_rows.h", "worker_order(args, key, (uint32_t)", LOCAL, NONE, "dynamiq"),
    Mutant("cuda/plan_shared.h", "& (EXPONENTS - 1)], 1u);", BARRIER, LOCAL, "plan"),
    Mutant("cuda/plan_shared.h", "WARP>(shared_.exponents);", BARRIER, LOCAL, "plan"),
    Mutant("cuda/plan_shared.h", "seeks_high && finely.most > spare);", BARRIER, LOCAL, "plan"),
    Mutant("cuda/plan_shared.h", "shared_.tied_of_warp[warp] = tied;", BARRIER, LOCAL, "plan"),
    Mutant("cuda/plan_shared.h", "counts_[part_].exponents[thread] = ", TEAM, BARRIER, "plan"),
    Mutant("cuda/plan_shared.h", "counts_[part_].between[0][0])[i] = counted", TEAM, BARRIER, "plan"),
    Mutant("cuda/plan_shared.h", "counts_[part_].levels[level] = all;", TEAM, BARRIER, "plan"),
)

ROUNDING = (
    Mutant("cuda/cast.cu", "round_to(const uint16_t*", "0xffff0000u", "0xfffe0000u", "cast"),
    Mutant("cuda/cast.cu", "void divide(float* values", "div(1.0f, divisor)", "div(2.0f, divisor)", "cast"),
    Mutant(
        "include/gradwire/metadata.h",
        "float norm_of(float a, float b)",
        "add(mul(wide, wide), mul(other, other))",
        "(double)add(mul(a, a), mul(b, b))",
        "metadata",
    ),
    Mutant("cuda/histogram.cu", "int32_t bin_of(float", "beyond > TINY", "beyond >= 0.0f", "histogram"),
    Mutant(
        "cuda/histogram.cu",
        "void fold(double* values)",
        "values[k + HALF]",
        "values[COUNT - 1 - k]",
        "histogram",
    ),
    Mutant("cuda/dynamiq_scale.h", "uint32_t largest_of_row(", "distance < LANES", "distance < 8", "dynamiq"),
    Mutant("cuda/dynamiq_scale.h", "LaneScale encode_scale(", "k = 1; k < 16", "k = 1; k < 15", "dynamiq"),
    Mutant(
        "include/gradwire/tfp.h", "const int32_t sum = (int32_t)bits_of(", "__fadd_rz", "__fadd_rn", "tfp"
    ),
    Mutant("include/gradwire/levels.h", "#if defined(GRADWIRE_DEVICE_CODE)", "fminf", "fmaxf", "levels"),
    Mutant("cuda/linear_lane.h", "larger_magnitude(float a", "fabsf(b)", "b", "linear"),
    Mutant("cuda/linear_lane.h", "sub(value, (float)((1 << 23)", "1 << 23", "1 << 22", "linear"),
    Mutant(
        "include/gradwire/hadamard.h",
        "#if defined(GRADWIRE_DEVICE_CODE)",
        "__fmaf_rn(own, sign, other)",
        "__fmaf_rn(other, sign, own)",
        "linear",
    ),
    Mutant("cuda/thc_norms.cu", "void measure_units(", "own_normalizer, 4 * i)", "own_normalizer, 0)", "thc"),
    Mutant("cuda/thc_norms.cu", "void measure_units(", "lane / 4 * TILE_WARPS", "lane / 4", "thc"),
    Mutant("cuda/thc_norms.cu", "float fold_units(", "halve<16, 8>", "halve<16, 4>", "thc"),
    Mutant(
        "cuda/thc_norms.cu",
        "float sum_of_four(",
        "add(add(v[0], v[2]), add(v[1], v[3]))",
        "add(add(v[0], v[1]), add(v[2], v[3]))",
        "thc",
    ),
    Mutant(
        "cuda/group_sums.h", "float fold(const float* x)", "x[i + COUNT / 2]", "x[COUNT - 1 - i]", "levels"
    ),
)

TAILS = (
    Mutant("cuda/cast.cu", "void store_eight(", "place + COUNT > numel", "place >= numel", "cast"),
    Mutant("cuda/rows.h", "void store_values(", "count >= ROW", "count > 0", "tfp"),
    Mutant("include/gradwire/metadata.h", "int64_t start = 0;", "smaller(end, stop)", "end", "metadata"),
    Mutant(
        "include/gradwire/metadata.h", "int64_t start = 0;", "larger(begin, args.first)", "begin", "metadata"
    ),
    Mutant(
        "include/gradwire/metadata.h", "int64_t start = 0;", ", start), last", ", begin), last", "metadata"
    ),
    Mutant("cuda/metadata.cu", "struct ByWords {", "begin >= 0 && end <=", "end <=", "metadata"),
    Mutant(
        "cuda/metadata.cu", "struct ByWords {", "&& end <= (int)bytes", "&& begin < (int)bytes", "metadata"
    ),
    Mutant("cuda/metadata.cu", "struct ByWords {", "larger(begin, 0)", "begin", "metadata"),
    Mutant("cuda/metadata.cu", "struct ByWords {", "smaller(end, (int)bytes)", "end", "metadata"),
    Mutant("cuda/mxfp_add.cu", "if (vectors && left", "left >= BYTES", "left > 0", "mxfp"),
    Mutant(
        "cuda/histogram.cu", "    histogram(const", "first + STRIP <= total", "first < total", "histogram"
    ),
    Mutant(
        "cuda/histogram.cu", "    equal_bins(const", "first + STRIP <= total", "first < total", "histogram"
    ),
    Mutant("cuda/rows.h", "void store_codes(", "count == ROW", "count > 0", "levels"),
    Mutant("cuda/launch.h", "void store_some(", "if (i < valid)", "if (i <= valid)", "linear"),
    Mutant("cuda/rotation.h", "void store_tile(", "aligned && count == TILE", "aligned", "hadamard"),
    Mutant("cuda/plan_shared.h", "void share_window()", "part < part_", "part <= part_", "plan"),
    Mutant("cuda/plan_shared.h", "void share_levels()", "part < part_", "part <= part_", "plan"),
    Mutant("cuda/plan_shared.h", "patterns_ = (end", "<= HELD ?", "> HELD ?", "plan"),
    Mutant("cuda/plan_shared.h", "const bool some = ", "passed < granted", "granted > 0 && !part_", "plan"),
)

BY_VALUE, PLACE = "Key{args.key0, args.key1}", "args.key_place"
KEYS = (
    Mutant("include/gradwire/random.h", "Key key_of(", "place[0], place[1]", "place[1], place[0]", "levels"),
    Mutant("include/gradwire/levels.h", "Stream stream_of(", PLACE, "nullptr", "levels"),
    Mutant("include/gradwire/tfp.h", "Stream stream_of(", PLACE, "nullptr", "tfp"),
    Mutant("include/gradwire/thc.h", "Key key_of(const gradwire_thc_in&", PLACE, "nullptr", "thc"),
    Mutant("include/gradwire/thc.h", "Key key_of(const gradwire_thc_out&", PLACE, "nullptr", "thc"),
    Mutant(
        "cuda/dynamiq.cu",
        "bool INCOMING, bool PAPER, class Shared>",
        "p.args.key_place ?",
        "false ?",
        "dynamiq",
    ),
    Mutant("cuda/dynamiq.cu", "int launch_seal(", "p.args.key_place ?", "false ?", "dynamiq"),
    Mutant("cuda/dynamiq_shared.h", "void fill(SharedKeys&", "key_of(args)", BY_VALUE, "dynamiq"),
    Mutant("cuda/dynamiq_shared.h", "void fill(SharedKeys&", "round);", "round + 1);", "dynamiq"),
    Mutant("cuda/dynamiq_shared.h", "void fill(SharedKeys&", ">= PHILOX_ROUNDS", ">= 6", "dynamiq"),
    Mutant("cuda/dynamiq_shared.h", "const SharedKeys& keys) {", "(keys, 0)", "(keys, 1)", "dynamiq"),
    Mutant("cuda/dynamiq_shared.h", "round_key(const SharedKeys&", "pair >> 32", "pair >> 31", "dynamiq"),
    Mutant("cuda/mxfp.cu", "    quantize(const", "mu_of<PLACED>", "mu_of<false>", "mxfp"),
    Mutant("cuda/mxfp.cu", "    dequantize(const", "mu_of<PLACED>", "mu_of<false>", "mxfp"),
    Mutant("cuda/mxfp.cu", "launch(quantize<WIDTH, T, true>", "true", "false", "mxfp"),
    Mutant("cuda/mxfp.cu", "launch(dequantize<WIDTH, T, true>", "true", "false", "mxfp"),
)

CHUNKS = (
    Mutant("cuda/dynamiq_shared.h", "void make_plan(", "COUNTED * blockIdx.y", "0", "dynamiq_chunks"),
    Mutant("cuda/dynamiq_shared.h", "groups = end_of_codes -", "part.first_row", "0", "dynamiq_chunks"),
    Mutant("cuda/dynamiq_shared.h", "scales = end_of_groups -", "part.first_row", "0", "dynamiq_chunks"),
    Mutant("cuda/dynamiq_shared.h", "plan.lasts[slot] =", "part.first_row + ", "", "dynamiq_chunks"),
    Mutant("cuda/dynamiq_shared.h", "uintptr_t incoming =", "part.first_byte", "0", "dynamiq_chunks"),
    Mutant("cuda/dynamiq_shared.h", "outgoing = (uintptr_t)args", "part.first_byte", "0", "dynamiq_chunks"),
    Mutant("cuda/dynamiq_shared.h", "void read_back(Plan& plan)", BARRIER, LOCAL, "dynamiq"),
    Mutant("cuda/dynamiq_shared.h", "plan.incoming.scales = plan.outgoing", BARRIER, LOCAL, "dynamiq"),
    Mutant("cuda/dynamiq_shared.h", "WIDTH_SLOTS) plan.incoming.groups", "outgoing", "incoming", "dynamiq"),
    Mutant("cuda/dynamiq.cu", "uint8_t* message =", "p.parts[blockIdx.y].first_byte", "0", "dynamiq_chunks"),
    Mutant("cuda/dynamiq.cu", "void give_nan(", "part.first_row + ", "", "dynamiq_chunks"),
    Mutant("cuda/dynamiq.cu", "first < args->chunk_count", "+= MOST", "+= 2 * MOST", "dynamiq_chunks"),
    Mutant(
        "include/gradwire/dynamiq.h",
        "dynamiq chunks_of(",
        "mean += rows_before",
        "mean += 0",
        "dynamiq_chunks",
    ),
    Mutant("include/gradwire/dynamiq.h", "some.incoming +=", "bytes_before", "0", "dynamiq_chunks"),
)

COPY, THRESHOLD, MAKE = "void fill(Shared& tables", "float padded_threshold(", "bool make_tables("
TABLES = (
    Mutant("cuda/dynamiq_shared.h", COPY, "(ALL_PARTS + THREADS - 1)", "ALL_PARTS", "dynamiq"),
    Mutant("cuda/dynamiq_shared.h", COPY, "step * THREADS", "step * (THREADS - 1)", "dynamiq"),
    Mutant("cuda/dynamiq_tables.h", THRESHOLD, "r < values.largest", "r <= values.largest", "dynamiq"),
    Mutant("cuda/dynamiq_tables.h", THRESHOLD, "r < 0 ? 0.0f", "r < 0 ? 2.0f", "dynamiq"),
    Mutant("cuda/dynamiq_tables.h", MAKE, "first_cost + i]", "first_cost + 1]", "dynamiq"),
    Mutant("cuda/dynamiq_tables.h", MAKE, "i - first - 1", "i - first", "dynamiq"),
    Mutant("cuda/dynamiq_tables.h", MAKE, "book = row / WIDE", "book = 0", "dynamiq"),
)

TURNS = (
    Mutant("cuda/rows.h", "void to_turns(", "odd ? values[low] : values[high]", "values[high]", "levels"),
    Mutant("cuda/rows.h", "void to_turns(", "odd ? values[high] : received", "received", "tfp"),
    Mutant("cuda/rows.h", "void store_values(", "odd ? TURN : 0", "odd ? 0 : TURN", "signs"),
    Mutant("cuda/rows.h", "load_aligned<TURN>(", "target + 2 * i", "target + i", "levels"),
    Mutant("cuda/linear_lane.h", "void store_pairs(", "odd ? received : own[i]", "own[i]", "linear"),
    Mutant("cuda/linear_lane.h", "void store_pairs(", "lanes & 2", "lanes & 1", "linear"),
    Mutant("cuda/cast.cu", "void for_places(", "first + i * WARP", "first + i", "cast"),
    Mutant("cuda/metadata.cu", "uint64_t load_word(", "source + at), at)", "source + at), 0)", "metadata"),
    Mutant(
        "cuda/metadata.cu",
        "struct ByWords {",
        "element_of<T>(there, at)",
        "element_of<T>(there, 0)",
        "metadata",
    ),
    Mutant("cuda/rotation.h", "void store_four(uint16_t*", "values[2 * i + 1]", "values[2 * i]", "thc"),
)

DECODE, NEAR = "void decode_fours(", "struct Thresholds {"
DYNAMIQ = (
    Mutant("cuda/dynamiq_decode.h", DECODE, "FOUR * turn + lane.index / FOUR", "lane.index", "dynamiq"),
    Mutant("cuda/dynamiq_decode.h", DECODE, "WIDTH * k", "WIDTH * (k ^ 1)", "dynamiq"),
    Mutant(
        "cuda/dynamiq_decode.h",
        "load_four_codes(const",
        "(bit + FOUR * WIDTH - 1) / 32",
        "bit / 32",
        "dynamiq",
    ),
    Mutant("cuda/dynamiq_decode.h", "void give_fours(", "super_group < out.whole", "true", "dynamiq"),
    Mutant(
        "cuda/dynamiq_lane.h", "struct DecodedValues {", "(int)bits, 1 << WIDTH", "(int)bits, WARP", "dynamiq"
    ),
    Mutant("cuda/dynamiq_lane.h", "float div_normal(", "inverse, nearer)", "inverse, near)", "dynamiq"),
    Mutant(
        "cuda/dynamiq_levels.h", "DitherScale dither_scale(", "interval << 16", "interval << 15", "dynamiq"
    ),
    Mutant(
        "cuda/dynamiq_levels.h", "DitherScale dither_scale(", "interval << 24", "interval << 16", "dynamiq"
    ),
    Mutant(
        "cuda/dynamiq_levels.h", "struct LaneDither {", "smaller(place, place", "(place, place", "dynamiq"
    ),
    Mutant("cuda/dynamiq_estimate.h", "bool doubtful(", "<= doubt", "> 0xFFFFu", "dynamiq"),
    Mutant("cuda/dynamiq_estimate.h", "bool doubtful(", "closest >> 16", "doubt + 1", "dynamiq"),
    Mutant("cuda/dynamiq_estimate.h", "void add(", "0x7632", "0x3276", "dynamiq"),
    Mutant("cuda/dynamiq_estimate.h", "uint32_t codes(", "SIGNS - ONES", "SIGNS", "dynamiq"),
    Mutant(
        "cuda/dynamiq_tables.h",
        "Tolerance tolerance_of(",
        "before + units + 0.5",
        "before - units",
        "dynamiq",
    ),
    Mutant("cuda/dynamiq_tables.h", "Tolerance tolerance_of(", "(float)before / 65536", "0.0f", "dynamiq"),
    Mutant(
        "cuda/dynamiq_encode.h", "void encode_paper(", "2u * lane.index + 1", "2u * lane.index", "dynamiq"
    ),
    Mutant(
        "cuda/dynamiq_rows.h",
        "void prepare(",
        "number,\n                  lane & ~1",
        "number,\n                  lane",
        "dynamiq",
    ),
    Mutant("cuda/dynamiq_levels.h", NEAR, "1.5f", "0.5f", "dynamiq"),
    Mutant("cuda/dynamiq_levels.h", NEAR, "& MASK", "& MASK / 2", "dynamiq"),
    Mutant("cuda/dynamiq_rows.h", "uint32_t worker_order(", "< own", "<= own", "dynamiq"),
    Mutant("cuda/dynamiq_rows.h", "void prepare(", "lane % 2", "0", "dynamiq"),
)

HOPS = "lattice_hops"

LATTICE = (
    Mutant("cuda/lattice_slot.h", "put_all(", "<= room", "<= room + 4096", HOPS),
    Mutant("cuda/lattice_slot.h", "void flush(", BARRIER, LOCAL, HOPS),
    Mutant("cuda/lattice_slot.h", "void store(", "ring_[i % STAGE] = 0;", NONE, HOPS),
    Mutant("cuda/lattice_slot.h", "void add_up(", "before += total", "before = total", HOPS),
    Mutant("cuda/lattice_unary.h", "void find_starts(", "before += total;", "before += 0;", HOPS),
    Mutant("cuda/lattice_unary.h", "uint32_t place_of_one(", "before -= below", "before -= 0", HOPS),
    Mutant("cuda/lattice_unary.h", "void put_ones(", "sum > 32", "sum > 64", HOPS),
    Mutant("cuda/lattice_unary.h", "void load_low(", "r > 4", "r > 5", HOPS),
    Mutant("cuda/lattice_rice.h", "void read_escapes(", "32 * before++", "32 * before", HOPS),
    Mutant("cuda/lattice_rice.h", "Choice choose(", "least + 2", "least + 1", HOPS),
    Mutant("cuda/lattice_rice.h", "uint32_t rice_parameter(", "--r;", NONE, HOPS),
    Mutant("cuda/lattice_rice.h", "uint32_t unary_sum(", ">= (uint32_t)RICE_ESCAPE", "> 32u", HOPS),
    Mutant("cuda/lattice_packed.h", "Choice choose(", "most - 7", "most - 6", HOPS),
    Mutant("cuda/lattice_packed.h", "void put_lane(", "width > 8", "width > 9", HOPS),
    Mutant("cuda/lattice_sums.h", "uint32_t make_fit(", "k > first", "k >= first", HOPS),
    Mutant("cuda/lattice_sums.h", "void receive(", BARRIER, LOCAL, HOPS),
    Mutant("cuda/lattice_row.h", "void strata_of(", "over - count", "over", HOPS),
    Mutant("cuda/lattice_row.h", "void shift_row(", "<< more >> 16", ">> 16", HOPS),
    Mutant("cuda/lattice.cu", "!args.message_out) continue;", "mark == BROKEN_MARK", "false", HOPS),
    Mutant("cuda/lattice_seal.cu", "    seal(const", "turn <= NUMBER_BITS", "turn < NUMBER_BITS", HOPS),
    Mutant("cuda/lattice_seal.cu", "void store_mean(", "mark == SILENT_MARK ||", "", HOPS),
    Mutant("cuda/lattice_seal.cu", "means(const GRADWIRE", WARPS, TWICE, HOPS),
)
"""The lattice codec's slots."""

MUTANTS = STRIDES + BARRIERS + ROUNDING + TAILS + KEYS + CHUNKS + TABLES + TURNS + DYNAMIQ + LATTICE
