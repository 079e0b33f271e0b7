"""Rounds of DynamiQ's codecs on every rank of an in-process world, over real topologies."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire.codecs.interface import Codec, Layout, Round
from gradwire.harness.comm.collective.collectives import Fabric
from gradwire.harness.comm.topology.registry import make_schedule
from gradwire.harness.comm.world.virtual import VirtualWorld
from gradwire.harness.parallel.synchronize import synchronization

CPU = torch.device("cpu")


class Cluster:
    """One codec per rank; ranks are checked to get the same bits."""

    def __init__(self, codecs: Sequence[Codec], topology: str = "ring") -> None:
        self.codecs, self.steps = list(codecs), 0
        fabric = Fabric(lambda n: make_schedule(topology, n))
        self.world = VirtualWorld(len(self.codecs), fabric, CPU, debug=True)

    def step(self, xs: Sequence[Tensor]) -> Tensor:
        """The mean of the ranks' gradients `xs`, which are one bucket."""
        layout, size = Layout.flat(xs[0].numel()), len(xs)
        results = self.world.run(
            {
                rank: synchronization(
                    codec, xs[rank], Round(self.steps, layout, rank, size, 0), check_hashes=True
                )
                for rank, codec in enumerate(self.codecs)
            }
        )
        self.steps += 1
        means = [results[rank] for rank in range(size)]
        for mean in means:
            assert torch.equal(mean.contiguous().view(torch.uint8), means[0].contiguous().view(torch.uint8))
        return means[0]

    def bytes_sent(self, phase: str) -> int:
        """Bytes sent by all ranks so far."""
        return sum(traffic.by_phase.get(phase, 0) for traffic in self.world.traffic.values())
