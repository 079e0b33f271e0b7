"""DynamiQ: statistics of super-groups, the sums of that metadata, the plan made from them for 8 workers and
for 2, and the operations of a hop on a chunk, for single widths and for mixes.

`compress` encodes a bucket, `recompress` adds a message to a bucket and encodes the sum (the paper's
decompress_accumulate_recompress), `accumulate` adds a message to partial sums, `decompress` writes means to a
bucket. Super-groups are in the order of a message, so a bucket is read and written out of order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
from torch import Tensor

from gradwire.codecs.collectives import align
from gradwire.codecs.dynamiq.allocation import paper_increments
from gradwire.codecs.dynamiq.arrangement import (
    ArrangementRule,
    Chunks,
    arrange,
    native_plan,
    write_statistics,
)
from gradwire.codecs.dynamiq.codebooks import chosen_values
from gradwire.codecs.dynamiq.codec import DynamiQ, DynamiQPlus
from gradwire.codecs.dynamiq.definition import Coder, Dither, OrderedChunk
from gradwire.codecs.dynamiq.format import chunk_size, num_super_groups, numbers_of, used_bytes
from gradwire.codecs.dynamiq.hops import Hop, make_hop
from gradwire.codecs.native.choice import library_for
from gradwire.codecs.options.dynamiq import SUPER_GROUP, Format, ScaleRounding, ValueKind
from gradwire.harness.comm.collective.metadata import MetadataHops
from gradwire.harness.studies.bench.operation import Case, Operation

WORKERS, KEY = 8, (0x1234_5678, 0x9ABC_DEF0)

WIDTHS = (2, 3, 4, 5, 6, 8)

MIX = {8: 0.35, 4: 0.45, 2: 0.20}
"""The share of super-groups at each width: 5 bits of code on average."""

PLUS_MIX = {8: 0.1, 6: 0.2, 5: 0.3, 4: 0.25, 3: 0.1, 2: 0.05}
"""The shares for dynamiq_plus, which has more widths: 4.9 bits of code on average."""


def operations() -> Iterator[Operation]:
    yield Operation("dynamiq.statistics", ("super_group_statistics",), _statistics)
    for workers in (WORKERS, 2):
        name = "dynamiq.plan" if workers == WORKERS else f"dynamiq.plan.{workers}"
        yield Operation(name, ("dynamiq_plan",), partial(_plan, workers))
    for label, shares in [*((str(width), {width: 1.0}) for width in WIDTHS), ("mix", MIX)]:
        yield from _hops("dynamiq", label, partial(_chunk, DynamiQ(), shares))
    for label, shares in [*((str(width), {width: 1.0}) for width in (4, 8)), ("mix", PLUS_MIX)]:
        yield from _hops("dynamiq_plus", label, partial(_chunk, DynamiQPlus(), shares))
    yield Operation("metadata.combine", ("metadata_hop",), _metadata, dtypes=("float32",))


def _statistics(x: Tensor) -> Case:
    mean = torch.empty(num_super_groups(x.numel()), dtype=torch.bfloat16, device=x.device)
    norm = torch.empty_like(mean)
    return Case(lambda: write_statistics(x, mean, norm), (x,), (mean, norm))


def _norms(x: Tensor) -> Tensor:
    """Norms that vary as much as those of gradients: (super-groups,) bf16."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(num_super_groups(x.numel()), generator=generator).exp().bfloat16().to(x.device)


def _plan(workers: int, x: Tensor) -> Case:
    """The plan for as many chunks as workers: from reduced statistics to order, means and counts."""
    norm, form, increments = _norms(x), Format(), paper_increments(Format().widths)
    mean_sum = torch.zeros_like(norm)
    sizes = tuple(chunk_size(x.numel(), workers, chunk, 5.0, form) for chunk in range(workers))
    chunks, library = Chunks(sizes), library_for(x.device)
    kept = None if library is None else native_plan(library, chunks, increments, workers, x.device)

    def run() -> tuple[Tensor, Tensor, Tensor]:
        if kept is not None:
            kept.run(mean_sum, norm)
            return kept.order, kept.mean, kept.numbers
        made = arrange(mean_sum, norm, workers, chunks, ArrangementRule(increments, form))
        return made.order, made.mean, made.numbers

    return Case(run, (mean_sum, norm), run())


@dataclass(frozen=True)
class _Chunk:
    """A whole bucket as one chunk: its super-groups' order and means, a message, and the hops."""

    x: Tensor
    order: Tensor
    mean: Tensor
    hop: Hop
    message: Tensor

    @property
    def plan(self) -> tuple[Tensor, Tensor]:
        """The tensors that every hop reads in addition to values and messages."""
        return self.order, self.mean


def _hops(family: str, label: str, chunk: Callable[[Tensor], _Chunk]) -> Iterator[Operation]:
    def case_of(make: Callable[[_Chunk], Case]) -> Callable[[Tensor], Case]:
        return lambda x: make(chunk(x))

    for name, make in _HOPS.items():
        yield Operation(f"{family}.{name}.{label}", ("dynamiq_hop",), case_of(make))


def _chunk(codec: DynamiQ, shares: Mapping[int, float], x: Tensor) -> _Chunk:
    total, device = num_super_groups(x.numel()), x.device
    generator = torch.Generator().manual_seed(0)
    mean = (1e-3 * torch.randn(total, generator=generator)).to(device)
    counts = {width: int(share * total) for width, share in shares.items()}
    counts[min(counts)] += total - sum(counts.values())
    places, begin = torch.randperm(total, generator=generator), 0
    runs = []
    for width in sorted(counts, reverse=True):
        runs.append(places[begin : begin + counts[width]].sort().values)
        begin += counts[width]
    order, coder = torch.cat(runs).to(device, torch.int32), _coder(codec, tuple(sorted(counts)), device)
    hop = make_hop(x.numel(), x.dtype, OrderedChunk(order, mean, numbers_of(counts, device)), coder)
    message = torch.empty(align(used_bytes(counts, coder.format)), dtype=torch.uint8, device=device)
    hop.run(x=x, outgoing=message)
    return _Chunk(x, order, mean, hop, message)


def _coder(codec: DynamiQ, widths: tuple[int, ...], device: torch.device) -> Coder:
    """The coder for these widths, with a codec's settings."""
    form = Format(widths, codec.group, "hierarchical", codec.mean, codec.codebooks)
    values = {
        width: chosen_values(
            width,
            cast(ValueKind, codec.values),
            getattr(codec, f"epsilon_{width}"),
            device,
            codec.group,
            codec.codebooks,
        )
        for width in widths
    }
    dither = Dither(KEY, 0, WORKERS, "correlated", codec.group)
    return Coder(values, dither, cast(ScaleRounding, codec.scale_rounding), form)


def _compress(chunk: _Chunk) -> Case:
    out = torch.empty_like(chunk.message)
    return Case(lambda: chunk.hop.run(x=chunk.x, outgoing=out), (chunk.x, *chunk.plan), (out,))


def _recompress(chunk: _Chunk) -> Case:
    out = torch.empty_like(chunk.message)
    read = (chunk.x, chunk.message, *chunk.plan)
    return Case(lambda: chunk.hop.run(x=chunk.x, incoming=chunk.message, outgoing=out), read, (out,))


def _accumulate(chunk: _Chunk) -> Case:
    sums = torch.zeros(len(chunk.order), SUPER_GROUP, device=chunk.x.device)
    read = (chunk.message, sums)
    return Case(lambda: chunk.hop.run(sums=sums, incoming=chunk.message, new_sums=sums), read, (sums,))


def _decompress(chunk: _Chunk) -> Case:
    out = torch.empty_like(chunk.x)
    read = (chunk.message, *chunk.plan)
    return Case(lambda: chunk.hop.run(incoming=chunk.message, result=out), read, (out,))


_HOPS: Mapping[str, Callable[[_Chunk], Case]] = {
    "compress": _compress,
    "recompress": _recompress,
    "accumulate": _accumulate,
    "decompress": _decompress,
}


CHUNKS, IN_MESSAGE = 8, range(4)


def _metadata(x: Tensor) -> Case:
    """Combines the metadata with a message: half of it, four chunks of eight, as in the first hop among eight
    workers."""
    generator = torch.Generator().manual_seed(0)
    mean, norm = (
        torch.rand(num_super_groups(x.numel()), generator=generator).to(x.device, torch.bfloat16)
        for _ in range(2)
    )
    hops = MetadataHops([(mean, "sum"), (norm, "norm")], CHUNKS)
    message = torch.zeros(hops.message_bytes(IN_MESSAGE, 1), dtype=torch.uint8, device=x.device)
    own = hops.messages_in_place()[: message.numel()]
    return Case(lambda: hops.accumulate(message, IN_MESSAGE, 1), (own, message), (own,))
