"""Synchronizes saved gradients, with all ranks in this process: one file repeatedly, or a row of files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from gradwire.codecs.interface import ChoosesWidths, Codec, Layout, Round
from gradwire.harness.comm.world.interface import Collective
from gradwire.harness.comm.world.virtual import VirtualWorld
from gradwire.harness.parallel.synchronize import synchronize_buckets
from gradwire.harness.studies.replay.row import GradientRow


@dataclass(frozen=True)
class ReplayCosts:
    """The costs of one synchronization: bytes, and the time of its codec.

    `bytes_by_rank` holds the bytes that each rank sent, by phase, and `bytes_between_nodes` the bytes that
    all ranks sent to other nodes; `codec_s` is the time of codec work on the busiest rank, in seconds;
    `logged` holds the figures that the codec logs.
    """

    bytes_by_rank: tuple[Mapping[str, int], ...]
    bytes_between_nodes: int
    codec_s: float
    logged: Mapping[str, float]


class Synchronized(NamedTuple):
    """A measured synchronization of the file at `place` in the row: the gradients of all workers, (workers,
    coordinates), the mean that the codec gave, (coordinates,), both on the CPU, and what it cost."""

    place: int
    values: Tensor
    mean: Tensor
    traffic: ReplayCosts


class Replay:
    """A row of gradients that `world` can synchronize repeatedly.

    Files without buckets are cut into equal ones of at most `bucket_mb` MiB. The buckets of one file at a
    time are on the world's device.
    """

    def __init__(self, row: GradientRow, bucket_mb: float, world: VirtualWorld) -> None:
        self._row, self._world = row, world
        self._layouts = [replace(each, device=world.device) for each in row.first.layouts(bucket_mb)]
        self._buckets: dict[int, list[tuple[Layout, Tensor]]] = {}

    @property
    def numels(self) -> list[int]:
        """The number of coordinates of each bucket."""
        return [layout.numel for layout in self._layouts]

    def repeat(
        self, make: Callable[[], Codec], seed: int, rounds: int, *, check_hashes: bool
    ) -> Iterator[Synchronized]:
        """Synchronizes with new codecs: a row's files one after another, of which each is measured, or a
        single file `rounds` times, of which the last is.

        Rounds are numbered from 0, wherever the row begins. `check_hashes` compares the results over all
        ranks. Raises what the codec raises, and ValueError for a file that cannot be used.
        """
        codecs = {rank: make() for rank in self._world.ranks}
        if self._row.is_one:
            values = self._load(0)
            for step in range(rounds):
                mean, traffic = self._synchronize(codecs, step, seed, check_hashes)
            yield Synchronized(0, values, mean, traffic)
            return
        for place in range(len(self._row.paths)):
            values = self._load(place)
            yield Synchronized(place, values, *self._synchronize(codecs, place, seed, check_hashes))
            del values  # before the next file is read

    def widths(self, codec: Codec, seed: int) -> Tensor | None:
        """Bits per coordinate of each super-group of the file that was measured last, bucket by bucket:
        (super-groups,) int64; None for a codec without widths."""
        if not isinstance(codec, ChoosesWidths):
            return None
        found = []
        for bucket in range(len(self._layouts)):
            runs = {rank: self._choice(codec, rank, seed, bucket) for rank in self._world.ranks}
            found.append(self._world.run(runs)[0].cpu())
        return torch.cat(found)

    def _load(self, place: int) -> Tensor:
        """Puts the buckets of a file on the device; returns its gradients."""
        self._buckets.clear()  # two files may not fit into memory
        values = self._row.read(place, self._world.size).values
        for rank in self._world.ranks:
            parts = torch.split(values[rank].to(self._world.device), self.numels)
            self._buckets[rank] = list(zip(self._layouts, parts, strict=True))
        return values

    def _synchronize(
        self, codecs: Mapping[int, Codec], step: int, seed: int, check_hashes: bool
    ) -> tuple[Tensor, ReplayCosts]:
        """One step of the codecs on the gradients that are loaded: the mean on the CPU, and its costs."""
        self._forget()
        programs = {
            rank: synchronize_buckets(
                codec, step, seed, self._world.size, self._buckets[rank], check_hashes=check_hashes
            )
            for rank, codec in codecs.items()
        }
        means = self._world.run_step(step, programs).results[0]
        logged = [codec.end_step(step) for codec in codecs.values()][0]
        sent = tuple(dict(self._world.traffic[rank].by_phase) for rank in self._world.ranks)
        between = sum(self._world.traffic[rank].between_nodes for rank in self._world.ranks)
        return torch.cat(means).cpu(), ReplayCosts(sent, between, self._codec_seconds(), logged)

    def _choice(self, codec: ChoosesWidths, rank: int, seed: int, bucket: int) -> Collective[Tensor]:
        layout, x = self._buckets[rank][bucket]
        this_round = Round(0, layout, rank, self._world.size, seed, bucket)
        return lambda comm: codec.super_group_widths(x, this_round, comm)

    def _forget(self) -> None:
        for rank in self._world.ranks:
            self._world.traffic[rank].clear()
            self._world.recorders[rank].drain()

    def _codec_seconds(self) -> float:
        spans = {rank: self._world.recorders[rank].drain() for rank in self._world.ranks}
        return max(
            sum(span.end - span.start for span in own if span.kind == "codec") for own in spans.values()
        )
