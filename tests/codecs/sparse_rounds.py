"""Steps of codecs that send some of the coordinates, made directly from their classes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import ml_dtypes
import numpy as np
import torch
from codec_rounds import CPU, Cluster
from torch import Tensor

from gradwire.codecs.hop_codec import ReportsLosses
from gradwire.codecs.interface import Codec, Layout, Round
from gradwire.harness.comm.collective.collectives import Fabric, ScheduledCollectives
from gradwire.harness.comm.topology.registry import make_schedule
from gradwire.harness.comm.world.interface import Collective
from gradwire.harness.comm.world.virtual import VirtualWorld


class Ranks(Cluster):
    """`size` ranks with a codec each, as `make` makes them."""

    def __init__(self, make: Callable[[], Codec], size: int, topology: str = "ring", seed: int = 0) -> None:
        self.codecs = [make() for _ in range(size)]
        self.world = VirtualWorld(size, Fabric(lambda n: make_schedule(topology, n)), CPU, debug=True)
        self.topology, self.steps, self.seed = topology, 0, seed

    def bytes_sent(self) -> int:
        """Bytes sent by all ranks, including metadata."""
        return sum(sum(traffic.by_phase.values()) for traffic in self.world.traffic.values())

    def one_with_losses(self, xs: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """The mean of one bucket, and what each rank's encodings lost; then the next step begins."""
        layout, size = Layout.flat(xs[0].numel()), len(xs)

        def collective(rank: int) -> Collective[tuple[Tensor, Tensor]]:
            async def run(comm: ScheduledCollectives) -> tuple[Tensor, Tensor]:
                codec = self.codecs[rank]
                assert isinstance(codec, ReportsLosses)
                this_round = Round(self.steps, layout, rank, size, self.seed)
                return await codec.synchronize_with_losses(xs[rank], this_round, comm)

            return run

        results = self.world.run({rank: collective(rank) for rank in range(size)})
        self.steps += 1
        return results[0][0], [results[rank][1] for rank in range(size)]


def heavy(numel: int, workers: int, seed: int = 0, block: int = 16) -> list[Tensor]:
    """Heavy-tailed gradients that differ between workers, blocks and coordinates."""
    generator = torch.Generator().manual_seed(seed)
    blocks = -(-numel // block)
    sizes = torch.exp(1.5 * torch.randn(workers, blocks, generator=generator)).repeat_interleave(block, dim=1)
    tails = torch.exp(torch.randn(workers, numel, generator=generator))
    return list(1e-3 * torch.randn(workers, numel, generator=generator) * tails * sizes[:, :numel])


def ring_sums(xs: Sequence[Tensor]) -> np.ndarray:
    """Sums of (numel,) float32 vectors as a ring with bfloat16 messages makes them, coordinate by
    coordinate."""
    workers, numel = len(xs), xs[0].numel()
    per_chunk = -(-numel // (8 * workers)) * 8
    sums = np.zeros(numel, np.float32)
    for i in range(numel):
        travel = [np.float32(xs[(i // per_chunk + hop) % workers][i]) for hop in range(workers)]
        total = travel[0].astype(ml_dtypes.bfloat16)
        for value in travel[1:]:
            total = (total.astype(np.float32) + value).astype(ml_dtypes.bfloat16)
        sums[i] = total.astype(np.float32)
    return sums


def kept_by_feedback(
    make: Callable[[], ReportsLosses], size: int, rounds: int, topology: str = "ring"
) -> Iterator[float]:
    """The norm of all ranks' residuals after every round of error feedback on one heavy-tailed gradient,
    relative to the gradient."""
    ranks, xs = Ranks(make, size, topology), heavy(768, size)
    losses = [torch.zeros_like(x) for x in xs]
    for _ in range(rounds):
        _, losses = ranks.one_with_losses([x + loss for x, loss in zip(xs, losses, strict=True)])
        yield float(torch.stack(losses).norm() / torch.stack(xs).norm())
