"""Compiled kernels of DynamiQ: the structs that they take, and the tensors that these structs point to."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gradwire.codecs.arithmetic.floats import BF16_INFINITY
from gradwire.codecs.dynamiq.allocation import WidthIncrements, threshold_patterns
from gradwire.codecs.dynamiq.codebooks import Codebooks
from gradwire.codecs.dynamiq.definition import Coder, Dither, OrderedChunk
from gradwire.codecs.dynamiq.format import COUNTED_WIDTHS, used_bytes
from gradwire.codecs.dynamiq.values import Distinct, Geometric, Sign, Values
from gradwire.codecs.native.call import Call, pointer, run
from gradwire.codecs.native.loading import BUCKETS, Library
from gradwire.codecs.options.dynamiq import SUPER_GROUP

MESSAGE_WIDTHS = (16, 8, 6, 5, 4, 3, 2, 1)
"""The order of widths in a message, and of `gradwire_values`."""

WidthsAndValues = tuple[tuple[int, Values | Codebooks], ...]
"""Pairs: a tuple, so that tables can be remembered."""


@lru_cache(maxsize=64)
def value_tables(
    library: Library, pairs: WidthsAndValues, dither_range: int, codebooks: int, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """The bytes of eight `gradwire_values`, the costs of all codebooks (int64: number c's in bits 16·c and
    above), and the bytes that CUDA kernels copy to shared memory (`gradwire_dynamiq_tables`).

    `dither_range` is N: a dither is scaled by step/N, rounded to float32 once. `codebooks` is `Format`'s.
    """
    table: Any = (library.declarations.structs["gradwire_values"] * len(MESSAGE_WIDTHS))()
    costs: list[Tensor] = []
    for width, values in pairs:
        entry = table[MESSAGE_WIDTHS.index(width)]
        entry.kind = library.constant(_kind(values.values if isinstance(values, Codebooks) else values))
        if isinstance(values, Codebooks):
            entry.points, entry.first_cost = len(values.costs) // 2 - 1, sum(map(len, costs))
            costs.append(values.costs.cpu().to(torch.int16).view(torch.int64).flatten())
            _fill(entry, values.values, 2, dither_range)
        else:
            _fill(entry, values, 1, dither_range)
    flat = torch.frombuffer(bytearray(bytes(table)), dtype=torch.uint8)
    all_costs = torch.cat(costs) if costs else torch.zeros(1, dtype=torch.int64, device="cpu")
    tables = torch.zeros(library.constant("GRADWIRE_DYNAMIQ_TABLE_BYTES"), dtype=torch.uint8, device="cpu")
    run(
        library,
        "dynamiq_tables",
        tables.device,
        values=(flat, flat.numel()),
        costs=(all_costs, all_costs.numel()),
        codebooks=codebooks,
        tables=(tables, tables.numel()),
    )
    return flat.to(device), all_costs.to(device), tables.to(device)


def _fill(entry: Any, values: Values, books: int, dither_range: int) -> None:
    """Fill in the parameters and tables of one width for each of `books` ε."""
    entry.largest = getattr(values, "largest", 1)
    total = torch.tensor(dither_range, dtype=torch.float32, device="cpu")
    for book in range(books):
        entry.span[book] = _number(values.span, book)
        entry.centre[book] = _number(values.centre, book)
        step = torch.tensor(_number(values.step, book), dtype=torch.float32, device="cpu")
        entry.unit[book] = float(step.div(total))
        if values.width < 16:
            _copy(values.decoded.cpu().chunk(books)[book], entry.decoded[book])
        if isinstance(values, Geometric):
            entry.levels_per_octave[book] = _number(values.levels_per_octave, book)
            entry.levels_per_step[book] = 1 / _number(values.step, book)
            _copy(values.thresholds.cpu().chunk(books)[book][: values.largest], entry.thresholds[book])
        if isinstance(values, Distinct):
            entry.negative_factor[book] = _number(values.negative_span, book)


def _kind(values: Values) -> str:
    if isinstance(values, Distinct):
        return "GRADWIRE_DISTINCT"
    if isinstance(values, Geometric):
        return "GRADWIRE_GEOMETRIC"
    return "GRADWIRE_SIGN" if isinstance(values, Sign) else "GRADWIRE_UNIFORM"


def kind_of(library: Library, values: Mapping[int, Values | Codebooks]) -> int:
    """The one kind that the values of all widths from 2 to 8 bits share, as a number."""
    kinds = [_kind(v.values if isinstance(v, Codebooks) else v) for w, v in values.items() if 1 < w < 16]
    return library.constant(kinds[0] if kinds else "GRADWIRE_UNIFORM")


def _number(parameter: float | Tensor, book: int) -> float:
    return float(parameter[book]) if isinstance(parameter, Tensor) else parameter


def _copy(numbers: Tensor, target: Any) -> None:
    for index, number in enumerate(numbers.tolist()):
        target[index] = number


_PLAN = "dynamiq_plan"


class NativePlan:
    """The plan of a bucket among `workers`, for one round after another: each call overwrites the same
    tensors.

    `order` (super-groups,) int32, `mean` (super-groups,) float32 and `numbers` (chunks, 17) int32 are those
    of an `Arrangement`.
    """

    def __init__(
        self,
        library: Library,
        spare: Tensor,
        total: int,
        increments: WidthIncrements,
        workers: int,
    ) -> None:
        """`spare` (chunks,) int64 holds the bytes that each chunk may spend on increments, `total` is the
        number of super-groups.

        Not checked: that spare bytes are not negative.
        """
        chunks, device = spare.numel(), spare.device
        self.order = torch.empty(total, dtype=torch.int32, device=device)
        self.mean = torch.empty(total, dtype=torch.float32, device=device)
        self.numbers = torch.empty(chunks, COUNTED_WIDTHS, dtype=torch.int32, device=device)
        words = _plan_words(library, total, chunks)
        self.workspace = torch.empty(words, dtype=torch.int32, device=device)
        number = len(increments.bits)
        thresholds = threshold_patterns(increments, device) if number else None
        self._keep = spare, thresholds
        self._total, self._device, self._chooses = total, device, number > 0
        settings = {
            "spare": (spare, chunks),
            "thresholds": (thresholds, number * (BF16_INFINITY + 1)),
            "total": total,
            "chunks": chunks,
            "workers": workers,
            "increments": number,
            "widths": increments.widths,
            "order": (self.order, total),
            "mean": (self.mean, total),
            "counts": (self.numbers, chunks * COUNTED_WIDTHS),
            "workspace": (self.workspace, words),
            "workspace_words": words,
        }
        self.call = Call(library, _PLAN, device, settings)

    def run(self, mean_sum: Tensor | None, norm: Tensor | None) -> None:
        """Plan a round from its reduced statistics, bf16 (super-groups,); None for one that was not sent.

        Raises ValueError without norms where there are widths to choose from.
        """
        if norm is None and self._chooses:
            raise ValueError(f"{_PLAN}: choosing widths needs norms, got none")
        arguments = self.call.arguments
        arguments.mean_sum = self._statistic(mean_sum, "mean_sum")
        arguments.norm = self._statistic(norm, "norm")
        self.call.run()

    def _statistic(self, x: Tensor | None, name: str) -> int | None:
        return pointer(x, _PLAN, name, (torch.bfloat16,), self._total, self._device)


def _plan_words(library: Library, total: int, chunks: int) -> int:
    """Words of the workspace: `words_of_plan` in csrc/include/gradwire/plan.h."""
    names = ("PART", "PARTS", "PART_WORDS")
    part, most, of_part = (library.constant(f"GRADWIRE_PLAN_{name}") for name in names)
    length, parts = -(-total // chunks), 1
    while parts < most and parts * part < length:
        parts *= 2
    return chunks * (length + parts * of_part)


_HOP = "dynamiq_hop"
_BYTES = (torch.uint8,)


class ChunkSizes:
    """The chunks of a bucket as kernels take them, in host memory."""

    def __init__(self, library: Library, sizes: Sequence[tuple[int, int]]) -> None:
        """`sizes` are the super-groups and the bytes of the message of each chunk."""
        struct: Any = library.declarations.structs["gradwire_dynamiq_chunk"]
        self._array = (struct * len(sizes))(*sizes)
        self._item = ctypes.sizeof(struct)

    def of(self, chunks: range) -> ChunkSizesPart:
        """Those of some chunks."""
        at = ctypes.addressof(self._array) + self._item * chunks.start
        return ChunkSizesPart(at, len(chunks), self._array)


class ChunkSizesPart(NamedTuple):
    """An address, how many chunks are described from there on, and the owner of this memory."""

    address: int
    number: int
    memory: object


class NativeHop:
    """The hops of one chunk of one worker, or of several that follow one another, see `hops.Hop`: native
    calls of which only the changing fields are filled in.

    `begin_round` moves them to another round, for which order, means and counts may have changed.
    """

    def __init__(
        self,
        library: Library,
        numel: int,
        dtype: torch.dtype,
        chunk: OrderedChunk,
        coder: Coder,
        sizes: ChunkSizesPart | None = None,
    ) -> None:
        """`sizes` are those of several chunks, whose super-groups follow one another in `chunk`, with
        (chunks, 17) counts; None for one chunk."""
        order, mean, counts = chunk
        dither, form, device = coder.dither, coder.format, order.device
        pairs = tuple(sorted(coder.values.items()))
        values, costs, tables = value_tables(library, pairs, dither.range, form.codebooks, device)
        self._rows, self._numel, self._dtype, self._device = order.numel(), numel, dtype, device
        if dtype not in BUCKETS:
            raise ValueError(f"{_HOP}: a bucket of float32 or bfloat16 is needed, got {dtype}")
        self._dtype_code = BUCKETS.index(dtype)
        self._least = used_bytes({min(form.widths): self._rows}, form)
        self._keep = (*chunk, values, costs, tables, sizes)
        settings = {
            "numel": numel,
            "rows": self._rows,
            "order": (order, self._rows),
            "mean": (mean, self._rows),
            "counts": (counts, COUNTED_WIDTHS * (sizes.number if sizes else 1)),
            "values": (values, values.numel()),
            "costs": (costs, costs.numel()),
            "tables": (tables, tables.numel()),
            "inverse": 1 / dither.workers,  # to float32 by way of float64: the nearest one all the same
            "group": form.group,
            "bf16_scales": form.scales == "bf16",
            "ceil_scales": coder.scale_rounding == "ceil",
            "correlated": dither.rounding == "correlated",
            "codebooks": form.codebooks,
            "kind": kind_of(library, coder.values),
            "workers": dither.workers,
        }
        self._call = Call(library, _HOP, device, settings)
        self._arguments, self._header = self._call.arguments, self._call.header
        if sizes is not None:
            self._arguments.chunks, self._arguments.chunk_count = sizes.address, sizes.number
        self.begin_round(dither)

    def begin_round(self, dither: Dither) -> None:
        """Use these hops for another round, or another of the workers."""
        arguments, place = self._arguments, dither.key_place
        arguments.key0, arguments.key1 = dither.key
        at = None if place is None else pointer(place, _HOP, "key_place", (torch.int32,), 2, self._device)
        arguments.key_place, arguments.rank, self._keep_key = at, dither.rank, place

    def run(
        self,
        *,
        x: Tensor | None = None,
        sums: Tensor | None = None,
        incoming: Tensor | None = None,
        outgoing: Tensor | None = None,
        new_sums: Tensor | None = None,
        result: Tensor | None = None,
    ) -> None:
        if not self._rows:
            if outgoing is not None:
                outgoing.zero_()
            return
        arguments, gather, scatter = self._arguments, x is not None, result is not None
        if gather or scatter:
            self._header.dtype = self._dtype_code
        arguments.gather, arguments.scatter = gather, scatter
        arguments.x = self._sums(sums, "sums") if x is None else self._bucket(x, "x")
        arguments.out = self._sums(new_sums, "new_sums") if result is None else self._bucket(result, "result")
        arguments.incoming, arguments.incoming_bytes = self._message(incoming, "incoming")
        arguments.outgoing, arguments.outgoing_bytes = self._message(outgoing, "outgoing")
        self._call.run()

    def _bucket(self, x: Tensor, name: str) -> int | None:
        return pointer(x, _HOP, name, (self._dtype,), self._numel, self._device)

    def _sums(self, sums: Tensor | None, name: str) -> int | None:
        if sums is None:
            return None
        return pointer(sums, _HOP, name, (torch.float32,), self._rows * SUPER_GROUP, self._device)

    def _message(self, message: Tensor | None, name: str) -> tuple[int | None, int]:
        """The address and the bytes of a message."""
        if message is None:
            return None, 0
        num_bytes = message.numel()
        if num_bytes < self._least:  # more, as the widths need it, is checked where these are known
            raise ValueError(f"{_HOP}: {name} has {num_bytes} bytes, {self._least} or more are needed")
        return pointer(message, _HOP, name, _BYTES, num_bytes, self._device), num_bytes
