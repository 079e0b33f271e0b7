"""Two all-to-alls, one inside every node and one between nodes: how SDP4Bit and ZeRO++ reduce gradients
(SDP4Bit §3.2 and Algorithm 3).

A bucket, padded with zeros to whole groups, has one slice for each of the P ranks on M nodes; slice r is rank
r's shard. A gradient is quantized twice, whatever the number of ranks:

local     a rank sends to each rank of its node the M slices of all ranks with the receiver's local index;
              the receiver sums what its node has sent
    node      a rank sends to each of its counterparts on the M nodes its node's sum of that one's slice; the
              receiver sums its shard

Sums are float32, in the order of the ranks. A rank's own slices are quantized and dequantized like all
others: keeping them exact would be another method, with a fraction of the error.

The smoother transforms every 32 coordinates once, before the first quantization, and once more after the last
sum. All steps in between work on transformed values, because inverse and forward transforms there would
cancel out (SDP4Bit §3.3).

A level of one rank is skipped: it has nothing to send and must not quantize. So gradients are quantized only
once on a single node (with `bits_local`) and with one rank on each node (with `bits_node`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast

import torch
from torch import Tensor

from gradwire.codecs.arithmetic.floats import constant
from gradwire.codecs.arithmetic.hadamard import hadamard_
from gradwire.codecs.collectives import Collectives, Kept
from gradwire.codecs.costs import COPY, NOTHING, Costs, once
from gradwire.codecs.interface import Codec, Layout, Round
from gradwire.codecs.linear.definition import BLOCK
from gradwire.codecs.linear.quantizer import LinearQuantizer, RoundingNoise, quantizing, reducing
from gradwire.codecs.options.quantized import AllToAllOptions, LinearRounding, ScaleType
from gradwire.codecs.shards import Shard
from gradwire.codecs.slices import chunk_slice
from gradwire.codecs.traits import SCALED_FROM, About, Traits

LevelName = Literal["local", "node"]

DRAWS: dict[LevelName, int] = {"local": 0, "node": 1}
"""The levels in their order; the numbers distinguish their random draws."""

TOPOLOGIES = ("ring", "two_level")
"""It follows none. The default one is let through, and the one that has these two levels."""


@dataclass(frozen=True)
class SumLevel:
    """One all-to-all of a round, among the ranks of `comm`; its messages hold `share` of the bucket."""

    name: LevelName
    comm: Collectives
    quantizer: LinearQuantizer
    noise: RoundingNoise | None
    inverts: bool
    share: float

    async def summed(self, rows: Tensor) -> Tensor:
        """Returns the sum over the ranks of the rows addressed to this rank: (numel,) float32. The inverse
        transform is applied if the level `inverts` it.

        `rows`, (ranks, numel) float32, holds one row for each receiver; the rows are quantized for sending.
        """
        ranks, numel = rows.shape
        num_bytes = self.quantizer.message_bytes(numel)
        messages = torch.empty((ranks, num_bytes), dtype=torch.uint8, device=rows.device)
        for index, (row, message) in enumerate(zip(rows, messages, strict=True)):
            self.quantizer.quantize(row, message, self.noise, first=index * numel)
        self.comm.worked(label("encode", self.name, self.quantizer.hadamard), self.share)
        received = await self.comm.all_to_all(messages)
        sums = torch.empty(numel, dtype=torch.float32, device=rows.device)
        self.quantizer.reduce(received, sums, hadamard=self.inverts)
        self.comm.worked(label("collect", self.name, self.inverts), self.share)
        return sums


@dataclass
class AllToAll(AllToAllOptions, Codec):
    """int8 inside nodes and int4 between them, smoothed: SDP4Bit's TLq-HS at the default settings.

    TLq is `hadamard="none"`, and ULq, which is ZeRO++'s, `hadamard="none"` with `bits_local=4`. Raises
    ValueError for settings that are not offered.
    """

    about = About(
        group="quantized all-reduce",
        source="SDP4Bit §3.2, Algorithm 3 (TLq-HS); ZeRO++",
        wire_bits="`codec.bits_local` inside nodes, `codec.bits_node` between, each + 32/`codec.group`; the "
        "mean uncompressed",
        unbiased_if="codec.rounding=stochastic",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.traits = Traits(
            unbiased=self.rounding == "stochastic", smallest_magnitude=SCALED_FROM, worst_vnmse=0.1
        )

    def supports(self, topology: str, size: int, layout: Layout) -> str | None:
        if topology not in TOPOLOGIES:
            return (
                f"codec={self.name} does not use topology={topology}: it has an all-to-all inside nodes and "
                "one between; leave topology out, or choose topology=two_level"
            )
        return super().supports(topology, size, layout)

    @property
    def scatters(self) -> bool:
        return True

    def shards(self, layout: Layout, kept: Kept) -> tuple[Shard, ...]:
        """Gives slice r to rank r, whatever chunks the topology would assign to it."""
        return tuple(chunk_slice(layout.numel, len(kept), rank, self.group) for rank in range(len(kept)))

    def _slice_length(self, numel: int, ranks: int) -> int:
        """Number of coordinates in a slice: a whole number of groups, and therefore of the smoother's
        blocks."""
        return -(-numel // (ranks * self.group)) * self.group

    async def synchronize(self, x: Tensor, this_round: Round, comm: Collectives) -> Tensor:
        """Reduce-scatters the bucket and gathers the resulting shards in the bucket's dtype."""
        shard = await self.scatter(x, this_round, comm)
        ranks = [[rank] for rank in range(comm.size)]
        sizes = [each.numel for each in self.shards(this_round.layout, ranks)]
        mean = torch.cat(await comm.all_gather(shard.to(x.dtype), sizes))
        comm.worked("gather", 1.0)
        return mean

    async def scatter(self, x: Tensor, this_round: Round, comm: Collectives) -> Tensor:
        if comm.size == 1:
            return x.to(torch.float32, copy=True)
        inside, between = comm.group("local"), comm.group("node")
        length = self._slice_length(x.numel(), comm.size)
        sums = by_local_index(x, length, inside.size, between.size)
        self._smooth_apart(sums)
        comm.worked("plan", 1.0)
        for level in self._levels(inside, between, this_round):
            sums = await level.summed(sums.view(level.comm.size, -1))
        self._smooth_apart(sums)
        own = max(0, min(length, x.numel() - comm.rank * length))
        mean = sums[:own].div_(constant(comm.size, sums))
        comm.worked("finish", 1 / comm.size)
        return mean

    def _smooth_apart(self, values: Tensor) -> None:
        """Transforms every 32 of `values`, float32, in place, unless the transform is fused with the
        quantization."""
        if self.hadamard == "apart":
            hadamard_(values.view(-1, BLOCK))

    def _levels(self, inside: Collectives, between: Collectives, this_round: Round) -> list[SumLevel]:
        """The levels that have more than one rank, in order of execution."""
        groups: list[tuple[LevelName, Collectives]] = [("local", inside), ("node", between)]
        groups = [(name, comm) for name, comm in groups if comm.size > 1]
        fused = self.hadamard == "fused"
        return [
            SumLevel(
                name,
                comm,
                self._quantizer(name, hadamard=fused and name == groups[0][0]),
                self._noise(name, this_round),
                inverts=fused and name == groups[-1][0],
                share=1.0 if name == "local" else 1 / inside.size,
            )
            for name, comm in groups
        ]

    def _quantizer(self, level: LevelName, hadamard: bool) -> LinearQuantizer:
        bits = self.bits_local if level == "local" else self.bits_node
        scales, rounding = cast(ScaleType, self.scales), cast(LinearRounding, self.rounding)
        return LinearQuantizer(bits, self.group, scales, hadamard, rounding)

    def _noise(self, level: LevelName, this_round: Round) -> RoundingNoise | None:
        if self.rounding == "nearest":
            return None
        return RoundingNoise(this_round.key, this_round.rank, DRAWS[level])

    def costs(self, workers: int) -> Costs:
        smoothing = once("hadamard.transform.1024") if self.hadamard == "apart" else NOTHING
        costs = {"plan": COPY + smoothing, "finish": COPY + smoothing, "gather": COPY}
        for level in DRAWS:
            for hadamard in (False, True):
                quantizer = self._quantizer(level, hadamard)
                costs[label("encode", level, hadamard)] = quantizing(quantizer)
                costs[label("collect", level, hadamard)] = reducing(quantizer.bits, hadamard)
        return costs


def label(step: str, level: LevelName, hadamard: bool) -> str:
    """The name of a level's work in traces and `costs`, e.g. `encode.local` or `collect.node.hadamard`."""
    return f"{step}.{level}{'.hadamard' if hadamard else ''}"


def by_local_index(x: Tensor, length: int, num_local: int, num_nodes: int) -> Tensor:
    """Copies a bucket, (numel,), into slices of `length` coordinates in sending order.

    The slices of the ranks with the first local index come first, node by node, then those with the second,
    and so on; zeros pad the end. Returns (num_local · num_nodes · length,) float32.
    """
    sliced = torch.empty((num_local, num_nodes, length), dtype=torch.float32, device=x.device)
    of_node = num_local * length
    for node in range(num_nodes):
        own = x[node * of_node : (node + 1) * of_node]
        if own.numel() < of_node:
            own = torch.nn.functional.pad(own, (0, of_node - own.numel()))
        sliced[:, node] = own.view(num_local, length)
    return sliced.view(-1)
