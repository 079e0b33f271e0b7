"""The quantization values of a coder as compiled kernels read them: `gradwire_values`, one for each width."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, ClassVar

import torch
from torch import Tensor

from gradwire.codecs.dynamiq.codebooks import Codebooks
from gradwire.codecs.dynamiq.values import Distinct, Geometric, Sign, Values

MESSAGE_WIDTHS = (16, 8, 6, 5, 4, 3, 2, 1)
"""The order of widths in a message, and of `gradwire_values`."""

SIGN, UNIFORM, GEOMETRIC, DISTINCT = range(4)
"""Kinds of values: `GRADWIRE_SIGN`, …"""

_THRESHOLDS, _DECODED = 128, 256

_Two = ctypes.c_float * 2


class WidthValues(ctypes.Structure):
    """`gradwire_values`."""

    _fields_: ClassVar = [
        ("kind", ctypes.c_int32),
        ("largest", ctypes.c_int32),
        ("points", ctypes.c_int32),
        ("first_cost", ctypes.c_int32),
        ("span", _Two),
        ("centre", _Two),
        ("unit", _Two),
        ("negative_factor", _Two),
        ("levels_per_octave", _Two),
        ("levels_per_step", _Two),
        ("thresholds", ctypes.c_float * _THRESHOLDS * 2),
        ("decoded", ctypes.c_float * _DECODED * 2),
    ]


WidthsAndValues = tuple[tuple[int, Values | Codebooks], ...]
"""Pairs: a tuple, so that tables can be remembered."""


@lru_cache(maxsize=64)
def value_tables(pairs: WidthsAndValues, dither_range: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The bytes of eight `WidthValues`, and the costs of all codebooks (int64: number c's in bits 16·c and
    above).

    `dither_range` is N: a dither is scaled by step/N, rounded to float32 once.
    """
    table = (WidthValues * len(MESSAGE_WIDTHS))()
    costs: list[Tensor] = []
    for width, values in pairs:
        entry = table[MESSAGE_WIDTHS.index(width)]
        if isinstance(values, Codebooks):
            entry.points, entry.first_cost = len(values.costs) // 2 - 1, sum(map(len, costs))
            costs.append(values.costs.cpu().to(torch.int16).view(torch.int64).flatten())
            _fill(entry, values.values, 2, dither_range)
        else:
            _fill(entry, values, 1, dither_range)
    flat = torch.frombuffer(bytearray(bytes(table)), dtype=torch.uint8)
    all_costs = torch.cat(costs) if costs else torch.zeros(1, dtype=torch.int64)
    return flat.to(device), all_costs.to(device)


def _fill(entry: Any, values: Values, books: int, dither_range: int) -> None:
    """The parameters and tables of one width, of each of `books` ε."""
    entry.kind = _kind(values)
    entry.largest = getattr(values, "largest", 1)
    total = torch.tensor(dither_range, dtype=torch.float32)
    for book in range(books):
        entry.span[book] = _number(values.span, book)
        entry.centre[book] = _number(values.centre, book)
        step = torch.tensor(_number(values.step, book), dtype=torch.float32)
        entry.unit[book] = float(step.div(total))
        if values.width < 16:
            _copy(values.decoded.cpu().chunk(books)[book], entry.decoded[book])
        if isinstance(values, Geometric):
            entry.levels_per_octave[book] = _number(values.levels_per_octave, book)
            entry.levels_per_step[book] = 1 / _number(values.step, book)
            _copy(values.thresholds.cpu().chunk(books)[book][: values.largest], entry.thresholds[book])
        if isinstance(values, Distinct):
            entry.negative_factor[book] = _number(values.negative_span, book)


def _kind(values: Values) -> int:
    if isinstance(values, Distinct):
        return DISTINCT
    if isinstance(values, Geometric):
        return GEOMETRIC
    return SIGN if isinstance(values, Sign) else UNIFORM


def kind_of(values: Mapping[int, Values | Codebooks]) -> int:
    """The kind of the values of 2 to 8 bits, which all widths have in common."""
    kinds = [_kind(v.values if isinstance(v, Codebooks) else v) for w, v in values.items() if 1 < w < 16]
    return kinds[0] if kinds else UNIFORM


def _number(parameter: float | Tensor, book: int) -> float:
    return float(parameter[book]) if isinstance(parameter, Tensor) else parameter


def _copy(numbers: Tensor, target: Any) -> None:
    for index, number in enumerate(numbers.tolist()):
        target[index] = number
