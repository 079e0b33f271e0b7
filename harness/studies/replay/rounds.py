"""Synchronizes saved gradients, with all ranks in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradwire.codecs.interface import ChoosesWidths, Codec, Layout, Round
from gradwire.harness.comm.world.interface import Collective
from gradwire.harness.comm.world.virtual import VirtualWorld
from gradwire.harness.parallel.synchronize import synchronize_buckets


@dataclass(frozen=True)
class Repeat:
    """One synchronization: its result, what it sent, and how long its codec worked.

    `mean` is (coordinates,) on the CPU; `bytes_by_rank` are the bytes each rank sent, by phase, and
    `bytes_between_nodes` those that all ranks sent to other nodes; `codec_s` is the codec's work on the
    busiest rank, in seconds; `logged` is what the codec logs.
    """

    seed: int
    mean: Tensor
    bytes_by_rank: tuple[Mapping[str, int], ...]
    bytes_between_nodes: int
    codec_s: float
    logged: Mapping[str, float]


class Replay:
    """All workers' gradients of one step, ready to be synchronized in `world` again and again.

    `values` is (workers, coordinates), bucket after bucket as in `layouts`; buckets on the world's device.
    """

    def __init__(self, values: Tensor, layouts: Sequence[Layout], world: VirtualWorld) -> None:
        self._world = world
        placed = [replace(layout, device=world.device) for layout in layouts]
        lengths = [layout.numel for layout in layouts]
        self._buckets = {
            rank: list(zip(placed, torch.split(values[rank].to(world.device), lengths), strict=True))
            for rank in world.ranks
        }

    def repeat(self, make: Callable[[], Codec], seed: int, rounds: int, *, check_hashes: bool) -> Repeat:
        """Synchronizes `rounds` times with new codecs and returns the last round.

        `check_hashes` compares the results over all ranks. Raises what the codec raises.
        """
        codecs = {rank: make() for rank in self._world.ranks}
        for step in range(rounds):
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
        return Repeat(seed, torch.cat(means).cpu(), sent, between, self._codec_seconds(), logged)

    def widths(self, codec: Codec, seed: int) -> Tensor | None:
        """Bits per coordinate of each super-group, bucket after bucket: (super-groups,) int64; None for a
        codec that does not choose them."""
        if not isinstance(codec, ChoosesWidths):
            return None
        found = []
        for bucket in range(len(self._buckets[0])):
            runs = {rank: self._choice(codec, rank, seed, bucket) for rank in self._world.ranks}
            found.append(self._world.run(runs)[0].cpu())
        return torch.cat(found)

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
