"""The compiled kernel of a hop: one call for everything a hop does to a chunk (`gradwire_dynamiq`)."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.codecs.dynamiq.blocks import SUPER_GROUP
from gradwire.codecs.dynamiq.definition import Coder
from gradwire.codecs.dynamiq.sizes import used_bytes
from gradwire.codecs.dynamiq.value_tables import MESSAGE_WIDTHS, kind_of, value_tables
from gradwire.codecs.native.call import Call, Plan, Pointer, dtype_code, pointer
from gradwire.codecs.native.library import Library

OPERATION = "dynamiq_hop"

DTYPES = (torch.float32, torch.bfloat16)
"""Of buckets that the kernel reads and writes."""


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


class CompiledHop:
    """The hops of one chunk in one round of one worker, see `hop.Hop`: a plan in which only what a call is
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
            raise ValueError(f"{OPERATION}: counts {dict(counts)} do not add up to {self._rows} super-groups")
        self._keep = (order, mean, tables, costs)
        arguments = HopArguments(
            numel=numel,
            order=pointer(order, OPERATION, "order", (torch.int64,), self._rows, device),
            mean=pointer(mean, OPERATION, "mean", (torch.float32,), self._rows, device),
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
        self._plan = Plan(library, OPERATION, arguments, device)

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
            arguments.call.dtype = dtype_code(bucket, OPERATION)
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
        return pointer(x, OPERATION, name, (self._dtype,), self._numel, self._device)

    def _sums(self, sums: Tensor | None, name: str) -> int | None:
        return pointer(sums, OPERATION, name, (torch.float32,), self._rows * SUPER_GROUP, self._device)

    def _message(self, message: Tensor | None, name: str) -> int | None:
        if message is None:
            return None
        if message.numel() < self._used:
            raise ValueError(f"{OPERATION}: {name} has {message.numel()} bytes, {self._used} are needed")
        return pointer(message, OPERATION, name, (torch.uint8,), message.numel(), self._device)
