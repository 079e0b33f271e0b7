"""The quantization values of a coder as compiled kernels read them: `gradwire_values`, one for each width."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from gradwire.codecs.dynamiq.codebooks import Codebooks
from gradwire.codecs.dynamiq.values import Distinct, Geometric, Sign, Values
from gradwire.codecs.native.call import run
from gradwire.codecs.native.loading import Library

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
    """The parameters and tables of one width, of each of `books` ε."""
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
    """The kind of the values of 2 to 8 bits, which all widths have in common."""
    kinds = [_kind(v.values if isinstance(v, Codebooks) else v) for w, v in values.items() if 1 < w < 16]
    return library.constant(kinds[0] if kinds else "GRADWIRE_UNIFORM")


def _number(parameter: float | Tensor, book: int) -> float:
    return float(parameter[book]) if isinstance(parameter, Tensor) else parameter


def _copy(numbers: Tensor, target: Any) -> None:
    for index, number in enumerate(numbers.tolist()):
        target[index] = number
