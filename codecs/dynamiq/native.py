"""DynamiQ's compiled kernels: the structs that they take, and the tensors that these point to."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from gradwire.codecs.arithmetic.floats import BF16_INFINITY
from gradwire.codecs.dynamiq.definition import Coder
from gradwire.codecs.dynamiq.format import COUNTED_WIDTHS, SUPER_GROUP, num_super_groups, used_bytes
from gradwire.codecs.dynamiq.native_values import kind_of, value_tables
from gradwire.codecs.native.call import Call, pointer, run
from gradwire.codecs.native.loading import Library
from gradwire.codecs.native.structs import BUCKETS

_MOST_WIDTHS = 8


def super_group_statistics(library: Library, x: Tensor, mean: Tensor, norm: Tensor) -> None:
    """Fill `mean` and `norm`, bf16 (super-groups,), from the bucket `x`, (numel,) float32 or bfloat16."""
    numel, total = x.numel(), num_super_groups(x.numel())
    given = {"x": (x, numel), "mean": (mean, total), "norm": (norm, total)}
    run(library, "super_group_statistics", x.device, numel=numel, **given)


def reduced_statistics(
    library: Library, mean_sum: Tensor, norm: Tensor, workers: int, patterns: Tensor, mean: Tensor
) -> None:
    """Fill `patterns`, int32 (chunks, super-groups of a chunk), and `mean`, float32 (super-groups,), from
    `mean_sum` and `norm`, bf16 (super-groups,)."""
    (chunks, length), total = patterns.shape, norm.numel()
    run(
        library,
        "reduced_statistics",
        norm.device,
        mean_sum=(mean_sum, total),
        norm=(norm, total),
        total=total,
        chunks=chunks,
        length=length,
        workers=workers,
        patterns=(patterns, chunks * length),
        mean=(mean, total),
    )


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
    (chunks, length), increments = patterns.shape, len(widths) - 1
    run(
        library,
        operation,
        patterns.device,
        patterns=(patterns, chunks * length),
        spare=(spare, chunks),
        thresholds=(thresholds, increments * (BF16_INFINITY + 1)),
        chunks=chunks,
        length=length,
        increments=increments,
        widths=tuple(widths),
        chosen=(chosen, chunks * length),
    )


def message_order(library: Library, widths: Tensor, order: Tensor, counts: Tensor) -> None:
    """Fill `order`, int32 (super-groups,), and `counts`, int32 (chunks, 17), from `widths`, int64 (chunks,
    super-groups of a chunk)."""
    (chunks, length), total = widths.shape, order.numel()
    run(
        library,
        "message_order",
        widths.device,
        widths=(widths, chunks * length),
        chunks=chunks,
        length=length,
        total=total,
        order=(order, total),
        counts=(counts, chunks * COUNTED_WIDTHS),
    )


_HOP = "dynamiq_hop"


class NativeHop:
    """The hops of one chunk in one round of one worker, see `hops.Hop`: a call in which only what changes is
    filled in anew."""

    def __init__(
        self,
        library: Library,
        numel: int,
        dtype: torch.dtype,
        order: Tensor,
        mean: Tensor,
        counts: Tensor,
        coder: Coder,
    ) -> None:
        dither, form, device = coder.dither, coder.format, order.device
        tables, costs = value_tables(library, tuple(sorted(coder.values.items())), dither.range, device)
        self._rows, self._numel, self._dtype, self._device = order.numel(), numel, dtype, device
        if dtype not in BUCKETS:
            raise ValueError(f"{_HOP}: a bucket of float32 or bfloat16 is needed, got {dtype}")
        self._dtype_code = BUCKETS.index(dtype)
        self._least = used_bytes({min(form.widths): self._rows}, form)
        self._keep = (order, mean, counts, tables, costs)
        settings = {
            "numel": numel,
            "rows": self._rows,
            "order": (order, self._rows),
            "mean": (mean, self._rows),
            "counts": (counts, COUNTED_WIDTHS),
            "values": (tables, tables.numel()),
            "costs": (costs, costs.numel()),
            "inverse": 1 / dither.workers,  # to float32 by way of float64: the nearest one all the same
            "group": form.group,
            "bf16_scales": form.scales == "bf16",
            "ceil_scales": coder.scale_rounding == "ceil",
            "correlated": dither.rounding == "correlated",
            "codebooks": form.codebooks,
            "kind": kind_of(library, coder.values),
            "key0": dither.key[0],
            "key1": dither.key[1],
            "rank": dither.rank,
            "workers": dither.workers,
        }
        self._call = Call(library, _HOP, device, settings)

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
        arguments = self._call.arguments
        if x is not None or result is not None:
            arguments.call.dtype = self._dtype_code
        arguments.gather, arguments.scatter = x is not None, result is not None
        arguments.x = self._bucket(x, "x") if x is not None else self._sums(sums, "sums")
        arguments.out = (
            self._bucket(result, "result") if result is not None else self._sums(new_sums, "new_sums")
        )
        arguments.incoming = self._message(incoming, "incoming")
        arguments.outgoing = self._message(outgoing, "outgoing")
        arguments.incoming_bytes = 0 if incoming is None else incoming.numel()
        arguments.outgoing_bytes = 0 if outgoing is None else outgoing.numel()
        self._call.run()

    def _bucket(self, x: Tensor, name: str) -> int | None:
        return pointer(x, _HOP, name, (self._dtype,), self._numel, self._device)

    def _sums(self, sums: Tensor | None, name: str) -> int | None:
        return pointer(sums, _HOP, name, (torch.float32,), self._rows * SUPER_GROUP, self._device)

    def _message(self, message: Tensor | None, name: str) -> int | None:
        if message is None:
            return None
        if message.numel() < self._least:  # what the widths need beside that is checked where they are known
            raise ValueError(f"{_HOP}: {name} has {message.numel()} bytes, {self._least} or more are needed")
        return pointer(message, _HOP, name, (torch.uint8,), message.numel(), self._device)
