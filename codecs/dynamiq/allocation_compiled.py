"""The compiled kernel of the `fast` allocation of widths."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.codecs.dynamiq.upgrades import INFINITY
from gradwire.codecs.native.call import Call, Pointer, pointer, run
from gradwire.codecs.native.library import Library

OPERATION = "width_allocation"

_MOST_WIDTHS = 8


class AllocationArguments(ctypes.Structure):
    """`gradwire_allocation`."""

    _fields_: ClassVar = [
        ("call", Call),
        ("patterns", Pointer),
        ("spare", Pointer),
        ("thresholds", Pointer),
        ("chunks", ctypes.c_int64),
        ("length", ctypes.c_int64),
        ("upgrades", ctypes.c_int32),
        ("widths", ctypes.c_int32 * _MOST_WIDTHS),
        ("chosen", Pointer),
    ]


def width_allocation(
    library: Library,
    patterns: Tensor,
    spare: Tensor,
    thresholds: Tensor,
    widths: Sequence[int],
    chosen: Tensor,
) -> None:
    """Fill `chosen`, int64 (chunks, super-groups), from `patterns`, int32 of the same shape, `spare`, int64
    (chunks,), and `thresholds`, int32 (upgrades, 0x7f81), of the upgrades between 2 to 8 `widths`.

    Not checked: patterns are those of finite norms, from 0 on, spare bytes are not negative, and thresholds
    do not descend.
    """
    ascending = all(a < b for a, b in pairwise(widths))
    if not 2 <= len(widths) <= _MOST_WIDTHS or not ascending:
        raise ValueError(f"{OPERATION}: 2 to {_MOST_WIDTHS} ascending widths are needed, got {tuple(widths)}")
    chunks, length = patterns.shape
    device, upgrades = patterns.device, len(widths) - 1
    table = upgrades * (INFINITY + 1)
    arguments = AllocationArguments(
        patterns=pointer(patterns, OPERATION, "patterns", (torch.int32,), chunks * length, device),
        spare=pointer(spare, OPERATION, "spare", (torch.int64,), chunks, device),
        thresholds=pointer(thresholds, OPERATION, "thresholds", (torch.int32,), table, device),
        chunks=chunks,
        length=length,
        upgrades=upgrades,
        widths=tuple(widths),
        chosen=pointer(chosen, OPERATION, "chosen", (torch.int64,), chunks * length, device),
    )
    run(library, OPERATION, arguments, device)
