"""What a hop does to one chunk, whatever implements it, and its operator in PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, cast

import torch
from torch import Tensor

from gradwire.codecs.dynamiq.default_hop import DefaultHop
from gradwire.codecs.dynamiq.definition import Coder
from gradwire.codecs.dynamiq.format import Format, Scales
from gradwire.codecs.dynamiq.native import CompiledHop
from gradwire.codecs.dynamiq.rounding import Dither, Rounding
from gradwire.codecs.dynamiq.scaling import ScaleRounding
from gradwire.codecs.dynamiq.tables import Kind, chosen_values
from gradwire.codecs.native.choice import library_for
from gradwire.codecs.native.operators import operator


class Hop(Protocol):
    """The hops of one chunk in one round of one worker."""

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
        """Add up what is given, and give it in one form.

        Given are this worker's bucket `x`, (numel,), or partial `sums`, (super-groups, 256) float32, or an
        `incoming` message, or it and one of these two. The sum goes to an `outgoing` message, to `new_sums`,
        which may be `sums`, or, as means over the workers, to the bucket `result`.
        """
        ...


def make_hop(
    numel: int, dtype: torch.dtype, order: Tensor, mean: Tensor, counts: Mapping[int, int], coder: Coder
) -> Hop:
    """The hops of the super-groups `order` (int64), with their `mean`s (float32), of a bucket of `numel`
    coordinates of `dtype`, float32 or bfloat16. Not checked: that `order` has super-groups of the bucket."""
    library = library_for(order.device)
    if library is None:
        return DefaultHop(numel, order, mean, counts, coder)
    return CompiledHop(library, numel, dtype, order, mean, counts, coder)


@operator(
    "dynamiq_hop(Tensor? x, Tensor? sums, Tensor? incoming, Tensor(a!)? outgoing, Tensor(b!)? new_sums, "
    "Tensor(c!)? result, Tensor order, Tensor mean, int numel, int[] widths, int[] counts, str values, "
    "float[] epsilons, int codebooks, int group, str scales, str scale_rounding, str rounding, int key0, "
    "int key1, int rank, int workers) -> ()"
)
def dynamiq_hop(
    x: Tensor | None,
    sums: Tensor | None,
    incoming: Tensor | None,
    outgoing: Tensor | None,
    new_sums: Tensor | None,
    result: Tensor | None,
    order: Tensor,
    mean: Tensor,
    numel: int,
    widths: list[int],
    counts: list[int],
    values: str,
    epsilons: list[float],
    codebooks: int,
    group: int,
    scales: str,
    scale_rounding: str,
    rounding: str,
    key0: int,
    key1: int,
    rank: int,
    workers: int,
) -> None:
    """One `Hop.run`; `widths`, their `counts` of super-groups and their `epsilons` ascend together."""
    form = Format(tuple(widths), group, cast(Scales, scales), codebooks=codebooks)
    kind = cast(Kind, values)
    tables = {
        width: chosen_values(width, kind, epsilon, order.device, group, codebooks)
        for width, epsilon in zip(widths, epsilons, strict=True)
    }
    dither = Dither((key0, key1), rank, workers, cast(Rounding, rounding), group)
    coder = Coder(tables, dither, cast(ScaleRounding, scale_rounding), form)
    bucket = x if x is not None else result
    dtype = torch.float32 if bucket is None else bucket.dtype
    hop = make_hop(numel, dtype, order, mean, dict(zip(widths, counts, strict=True)), coder)
    hop.run(x=x, sums=sums, incoming=incoming, outgoing=outgoing, new_sums=new_sums, result=result)
