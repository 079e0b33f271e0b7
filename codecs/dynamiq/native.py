"""DynamiQ's compiled kernels: the structs that they take, and the tensors that these point to."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.codecs.arithmetic.floats import BF16_INFINITY
from gradwire.codecs.dynamiq.definition import Coder
from gradwire.codecs.dynamiq.format import SUPER_GROUP, num_super_groups, used_bytes
from gradwire.codecs.dynamiq.native_values import MESSAGE_WIDTHS, kind_of, value_tables
from gradwire.codecs.native.call import Call, Plan, Pointer, dtype_code, pointer, run
from gradwire.codecs.native.library import Library

DTYPES = (torch.float32, torch.bfloat16)
"""What kernels read and write as a bucket."""

COUNTED_WIDTHS = 17
"""Entries of a chunk's counts: one for each number of bits from 0 to 16."""

_MOST_WIDTHS = 8


class StatisticsArguments(ctypes.Structure):
    """`gradwire_statistics`."""

    _fields_: ClassVar = [
        ("call", Call),
        ("x", Pointer),
        ("numel", ctypes.c_int64),
        ("mean", Pointer),
        ("norm", Pointer),
    ]


def super_group_statistics(library: Library, x: Tensor, mean: Tensor, norm: Tensor) -> None:
    """Fill `mean` and `norm`, bf16 (super-groups,), from the bucket `x`, (numel,) float32 or bfloat16."""
    operation = "super_group_statistics"
    numel, total = x.numel(), num_super_groups(x.numel())
    arguments = StatisticsArguments(
        x=pointer(x, operation, "x", DTYPES, numel, x.device),
        numel=numel,
        mean=pointer(mean, operation, "mean", (torch.bfloat16,), total, x.device),
        norm=pointer(norm, operation, "norm", (torch.bfloat16,), total, x.device),
    )
    arguments.call.dtype = dtype_code(x, operation)
    run(library, operation, arguments, x.device)


class ReducedArguments(ctypes.Structure):
    """`gradwire_reduced`."""

    _fields_: ClassVar = [
        ("call", Call),
        ("mean_sum", Pointer),
        ("norm", Pointer),
        ("total", ctypes.c_int64),
        ("chunks", ctypes.c_int64),
        ("length", ctypes.c_int64),
        ("workers", ctypes.c_int32),
        ("patterns", Pointer),
        ("mean", Pointer),
    ]


def reduced_statistics(
    library: Library, mean_sum: Tensor, norm: Tensor, workers: int, patterns: Tensor, mean: Tensor
) -> None:
    """Fill `patterns`, int32 (chunks, super-groups of a chunk), and `mean`, float32 (super-groups,), from
    `mean_sum` and `norm`, bf16 (super-groups,)."""
    operation = "reduced_statistics"
    chunks, length = patterns.shape
    total, device = norm.numel(), norm.device
    bf16 = (torch.bfloat16,)
    arguments = ReducedArguments(
        mean_sum=pointer(mean_sum, operation, "mean_sum", bf16, total, device),
        norm=pointer(norm, operation, "norm", bf16, total, device),
        total=total,
        chunks=chunks,
        length=length,
        workers=workers,
        patterns=pointer(patterns, operation, "patterns", (torch.int32,), chunks * length, device),
        mean=pointer(mean, operation, "mean", (torch.float32,), total, device),
    )
    run(library, operation, arguments, device)


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
    (chunks,), and `thresholds`, int32 (increments, 0x7f81), of the increments between 2 to 8 `widths`.

    Not checked: patterns are those of finite norms, from 0 on, spare bytes are not negative, and thresholds
    do not descend.
    """
    operation = "width_allocation"
    ascending = all(a < b for a, b in pairwise(widths))
    if not 2 <= len(widths) <= _MOST_WIDTHS or not ascending:
        raise ValueError(f"{operation}: 2 to {_MOST_WIDTHS} ascending widths are needed, got {tuple(widths)}")
    chunks, length = patterns.shape
    device, increments = patterns.device, len(widths) - 1
    table = increments * (BF16_INFINITY + 1)
    arguments = AllocationArguments(
        patterns=pointer(patterns, operation, "patterns", (torch.int32,), chunks * length, device),
        spare=pointer(spare, operation, "spare", (torch.int64,), chunks, device),
        thresholds=pointer(thresholds, operation, "thresholds", (torch.int32,), table, device),
        chunks=chunks,
        length=length,
        upgrades=increments,
        widths=tuple(widths),
        chosen=pointer(chosen, operation, "chosen", (torch.int64,), chunks * length, device),
    )
    run(library, operation, arguments, device)


class OrderArguments(ctypes.Structure):
    """`gradwire_order`."""

    _fields_: ClassVar = [
        ("call", Call),
        ("widths", Pointer),
        ("chunks", ctypes.c_int64),
        ("length", ctypes.c_int64),
        ("total", ctypes.c_int64),
        ("order", Pointer),
        ("counts", Pointer),
    ]


def message_order(library: Library, widths: Tensor, order: Tensor, counts: Tensor) -> None:
    """Fill `order`, int64 (super-groups,), and `counts`, int64 (chunks, 17), from `widths`, int64 (chunks,
    super-groups of a chunk)."""
    operation = "message_order"
    chunks, length = widths.shape
    total, device = order.numel(), widths.device
    arguments = OrderArguments(
        widths=pointer(widths, operation, "widths", (torch.int64,), chunks * length, device),
        chunks=chunks,
        length=length,
        total=total,
        order=pointer(order, operation, "order", (torch.int64,), total, device),
        counts=pointer(counts, operation, "counts", (torch.int64,), chunks * COUNTED_WIDTHS, device),
    )
    run(library, operation, arguments, device)


class HopArguments(ctypes.Structure):
    """`gradwire_dynamiq`."""

    _fields_: ClassVar = [
        ("call", Call),
        ("x", Pointer),
        ("out", Pointer),
        ("numel", ctypes.c_int64),
        ("order", Pointer),
        ("mean", Pointer),
        ("incoming", Pointer),
        ("outgoing", Pointer),
        ("message_bytes", ctypes.c_int64),
        ("counts", ctypes.c_int64 * len(MESSAGE_WIDTHS)),
        ("values", Pointer),
        ("costs", Pointer),
        ("gather", ctypes.c_int32),
        ("scatter", ctypes.c_int32),
        ("inverse", ctypes.c_float),
        ("group", ctypes.c_int32),
        ("bf16_scales", ctypes.c_int32),
        ("ceil_scales", ctypes.c_int32),
        ("correlated", ctypes.c_int32),
        ("codebooks", ctypes.c_int32),
        ("kind", ctypes.c_int32),
        ("key0", ctypes.c_uint32),
        ("key1", ctypes.c_uint32),
        ("rank", ctypes.c_uint32),
        ("workers", ctypes.c_uint32),
    ]


_HOP = "dynamiq_hop"


class NativeHop:
    """The hops of one chunk in one round of one worker, see `hops.Hop`: a plan in which only what a call is
    given is filled in anew."""

    def __init__(
        self,
        library: Library,
        numel: int,
        dtype: torch.dtype,
        order: Tensor,
        mean: Tensor,
        counts: Mapping[int, int],
        coder: Coder,
    ) -> None:
        dither, form, device = coder.dither, coder.format, order.device
        tables, costs = value_tables(tuple(sorted(coder.values.items())), dither.range, device)
        self._rows, self._numel, self._dtype, self._device = order.numel(), numel, dtype, device
        self._used = used_bytes(counts, form)
        if min(counts.values()) < 0 or sum(counts.values()) != self._rows:
            raise ValueError(f"{_HOP}: counts {dict(counts)} do not add up to {self._rows} super-groups")
        self._keep = (order, mean, tables, costs)
        arguments = HopArguments(
            numel=numel,
            order=pointer(order, _HOP, "order", (torch.int64,), self._rows, device),
            mean=pointer(mean, _HOP, "mean", (torch.float32,), self._rows, device),
            counts=tuple(counts.get(width, 0) for width in MESSAGE_WIDTHS),
            values=tables.data_ptr(),
            costs=costs.data_ptr(),
            inverse=float(torch.tensor(1.0).div(torch.tensor(float(dither.workers)))),
            group=form.group,
            bf16_scales=form.scales == "bf16",
            ceil_scales=coder.scale_rounding == "ceil",
            correlated=dither.rounding == "correlated",
            codebooks=form.codebooks,
            kind=kind_of(coder.values),
            key0=dither.key[0],
            key1=dither.key[1],
            rank=dither.rank,
            workers=dither.workers,
        )
        self._plan = Plan(library, _HOP, arguments, device)

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
        arguments = self._plan.arguments
        bucket = x if x is not None else result
        if bucket is not None:
            arguments.call.dtype = dtype_code(bucket, _HOP)
        arguments.gather, arguments.scatter = x is not None, result is not None
        arguments.x = self._bucket(x, "x") if x is not None else self._sums(sums, "sums")
        arguments.out = (
            self._bucket(result, "result") if result is not None else self._sums(new_sums, "new_sums")
        )
        arguments.incoming = self._message(incoming, "incoming")
        arguments.outgoing = self._message(outgoing, "outgoing")
        arguments.message_bytes = 0 if outgoing is None else outgoing.numel()
        self._plan.run()

    def _bucket(self, x: Tensor, name: str) -> int | None:
        return pointer(x, _HOP, name, (self._dtype,), self._numel, self._device)

    def _sums(self, sums: Tensor | None, name: str) -> int | None:
        return pointer(sums, _HOP, name, (torch.float32,), self._rows * SUPER_GROUP, self._device)

    def _message(self, message: Tensor | None, name: str) -> int | None:
        if message is None:
            return None
        if message.numel() < self._used:
            raise ValueError(f"{_HOP}: {name} has {message.numel()} bytes, {self._used} are needed")
        return pointer(message, _HOP, name, (torch.uint8,), message.numel(), self._device)
