"""A shard of a bucket, parameter by parameter."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from gradwire.codecs.interface import Layout
from gradwire.codecs.shards import Run, Shard


class Piece(NamedTuple):
    """Coordinates of one parameter: those of `run`, counted from the parameter's first one, are at `place` in
    the shard's values."""

    name: str
    run: Run
    place: slice


def pieces(layout: Layout, shard: Shard) -> Iterator[Piece]:
    """What a shard has of each parameter, in the order of the shard's values."""
    stops = [*layout.offsets[1:], layout.numel]
    at = 0
    for run in shard.runs:
        first = bisect_right(layout.offsets, run.start) - 1
        last = run.start + (run.count - 1) * run.stride + run.length - 1
        for name, offset, stop in list(zip(layout.names, layout.offsets, stops, strict=True))[first:]:
            if offset > last:
                break
            for part in run.within(offset, stop):
                yield Piece(name, replace(part, start=part.start - offset), slice(at, at + part.numel))
                at += part.numel
