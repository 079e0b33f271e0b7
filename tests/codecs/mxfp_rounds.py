"""Steps of an MXFP codec on every rank of an in-process world, over real topologies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from world_steps import run_collectives

from gradwire.codecs.interface import Layout, Round
from gradwire.codecs.mxfp import MXFP
from gradwire.codecs.mxfp.hops import MXFPHops
from gradwire.codecs.registry import make_codec
from gradwire.harness.comm.collective.collectives import Fabric
from gradwire.harness.comm.topology.registry import make_schedule
from gradwire.harness.comm.world.virtual import VirtualWorld
from gradwire.harness.parallel.synchronize import synchronization

CPU = torch.device("cpu")


class Cluster:
    """`size` ranks with a codec each; `step()` synchronizes a step's buckets, two in flight at once."""

    def __init__(self, size: int, topology: str = "ring", mu: float = 0.0, **options: Any) -> None:
        """`mu` is what the codecs begin with, their own choice if 0."""
        options = {"name": "mxfp8", **options}
        self.codecs = [make_codec(**options) for _ in range(size)]
        for codec in self.codecs:
            codec.load_state_dict(
                {
                    "mu": torch.tensor([mu, mu], dtype=torch.float64),
                    "cast_counts": torch.zeros(2, dtype=torch.int64),
                }
            )
        self.world = VirtualWorld(size, Fabric(lambda n: make_schedule(topology, n)), CPU, debug=True)
        self.steps = 0

    def synchronize(self, *buckets: Sequence[Tensor]) -> list[list[Tensor]]:
        """Every bucket's means by rank; a bucket is given as its gradients by rank. Ends no step."""
        size = len(self.codecs)
        collectives = {
            rank: [
                synchronization(
                    self.codecs[rank],
                    bucket[rank],
                    Round(
                        self.steps,
                        Layout.flat(bucket[rank].numel(), f"bucket{index}"),
                        rank,
                        size,
                        0,
                        index,
                    ),
                    check_hashes=True,
                )
                for index, bucket in enumerate(buckets)
            ]
            for rank in range(size)
        }
        results = run_collectives(self.world, collectives)
        return [[results[rank][index] for rank in range(size)] for index in range(len(buckets))]

    def end_step(self) -> list[dict[str, float]]:
        """The codecs' logged figures, by rank."""
        logged = [dict(codec.end_step(self.steps)) for codec in self.codecs]
        self.steps += 1
        return logged

    def step(self, *buckets: Sequence[Tensor]) -> tuple[list[Tensor], dict[str, float]]:
        """Rank 0's means and log; all ranks have the same, bit for bit."""
        means, logged = self.synchronize(*buckets), self.end_step()
        for by_rank in means:
            assert all(torch.equal(as_bytes(mean), as_bytes(by_rank[0])) for mean in by_rank)
        assert all(log == logged[0] for log in logged)
        return [by_rank[0] for by_rank in means], logged[0]

    def bytes_sent(self, phase: str) -> int:
        """Bytes sent by all ranks in all steps so far."""
        return sum(traffic.by_phase.get(phase, 0) for traffic in self.world.traffic.values())


def make_hops(name: str, x: Tensor, num_chunks: int) -> MXFPHops:
    """The hops of one of two ranks, whose blocks have the largest maxima."""
    codec, this_round = MXFP(name=name), Round(0, Layout.flat(x.numel()), 0, 2, 0)
    return codec.plan(x, this_round, [part for part, _ in codec.statistics(x, this_round)], num_chunks)


def as_bytes(tensor: Tensor) -> Tensor:
    """A NaN equals the same NaN."""
    return tensor.contiguous().view(torch.uint8)


def mean_of(xs: Sequence[Tensor], **options: Any) -> Tensor:
    """One step's mean of one bucket along a ring."""
    return Cluster(len(xs), **options).step(xs)[0][0]


def gradients(numel: int, workers: int, seed: int = 0, spread: float = 1.0) -> list[Tensor]:
    """Blocks that differ in magnitude, coordinates partly common to the workers."""
    generator = torch.Generator().manual_seed(seed)
    blocks = -(-numel // 32)
    magnitude = torch.exp(spread * torch.randn(blocks, generator=generator)).repeat_interleave(32)[:numel]
    common = torch.randn(numel, generator=generator)
    noises = (torch.randn(numel, generator=generator) for _ in range(workers))
    return [1e-3 * magnitude * (0.5 * common + noise) for noise in noises]


def vnmse(estimate: Tensor, xs: Sequence[Tensor]) -> float:
    """‖estimate − mean‖² / ‖mean‖², in float64."""
    mean = torch.stack([x.double() for x in xs]).mean(dim=0)
    return float((estimate.double() - mean).square().sum() / mean.square().sum())
