"""Steps of any codec on every rank of a world in this process: what the tests of all codecs run."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from world_steps import run_collectives

from gradwire.codecs.interface import Layout, Round
from gradwire.codecs.registry import make_codec
from gradwire.harness.comm.collective.collectives import Fabric
from gradwire.harness.comm.topology.registry import make_schedule
from gradwire.harness.comm.world.interface import Collective
from gradwire.harness.comm.world.virtual import VirtualWorld
from gradwire.harness.parallel.synchronize import synchronization

CPU = torch.device("cpu")

SHAPES = {"body.weight": (24, 32), "body.bias": (24,), "head.weight": (40, 50), "norm": (300,)}


def layout_of(shapes: dict[str, tuple[int, ...]], dtype: torch.dtype = torch.float32) -> Layout:
    """The layout of one bucket of named parameters."""
    ends = list(accumulate(math.prod(shape) for shape in shapes.values()))
    return Layout(tuple(shapes), tuple(shapes.values()), (0, *ends[:-1]), ends[-1], dtype)


MODEL = layout_of(SHAPES)
"""Matrices and vectors, 3092 coordinates."""
TAIL = layout_of({"tail": (5,)})
"""A bucket of almost nothing."""


def gradients(layout: Layout, size: int, step: int = 0) -> list[Tensor]:
    """Every rank's bucket: partly common to all ranks, with parameters and blocks of different magnitude."""
    generator = torch.Generator().manual_seed(1000 * step + layout.numel)
    magnitude = torch.exp(torch.randn(-(-layout.numel // 32), generator=generator)).repeat_interleave(32)
    common = torch.randn(layout.numel, generator=generator)
    noises = [torch.randn(layout.numel, generator=generator) for _ in range(size)]
    scale = 1e-3 * magnitude[: layout.numel]
    return [(scale * (common + 0.5 * noise)).to(layout.dtype) for noise in noises]


class Cluster:
    """`size` ranks with a codec each; `step()` synchronizes a step's buckets, two in flight at once."""

    def __init__(
        self, size: int, topology: str, codec: str, seed: int = 0, num_nodes: int = 1, **options: Any
    ) -> None:
        self.codecs = [make_codec(codec, **options) for _ in range(size)]
        self.world = VirtualWorld(size, Fabric(partial(make_schedule, topology), num_nodes), CPU, debug=True)
        self.topology, self.steps, self.seed = topology, 0, seed

    def supports(self, layout: Layout) -> str | None:
        return self.codecs[0].supports(self.topology, len(self.codecs), layout)

    def step(
        self,
        *buckets: tuple[Layout, Sequence[Tensor]],
        skip: bool | None = False,
        unused: Collection[str] = (),
    ) -> list[Tensor]:
        """Every bucket's mean; asserts that all ranks get the same bits and that inputs are left as they
        were.

        With `skip` the codecs skip the step; None: if the norm of all means is not
        finite, as in training. The means of the parameters named `unused` are not applied.
        """
        before = [[x.clone() for x in xs] for _, xs in buckets]
        collectives = {rank: self._collectives(rank, buckets) for rank in self.world.ranks}
        results = run_collectives(self.world, collectives)
        for (_, xs), copies in zip(buckets, before, strict=True):
            for x, copy in zip(xs, copies, strict=True):
                assert torch.equal(as_bytes(x), as_bytes(copy)), "the gradient was written to"
        if skip is None:
            skip = not bool(torch.cat(results[0]).norm().isfinite())
        for codec in self.codecs:
            codec.take_back(unused)
        self._end_step(skip)
        return results[0]

    def _end_step(self, skip: bool) -> None:
        ended = [codec.skip_step if skip else codec.end_step for codec in self.codecs]
        logged = [dict(end(self.steps)) for end in ended]
        assert all(log.keys() == logged[0].keys() for log in logged)
        self.steps += 1

    def _collectives(self, rank: int, buckets: Sequence[tuple[Layout, Sequence[Tensor]]]) -> list[Any]:
        return [
            self._collective(rank, layout, xs, index, check_hashes=True)
            for index, (layout, xs) in enumerate(buckets)
        ]

    def _collective(
        self, rank: int, layout: Layout, xs: Sequence[Tensor], index: int, check_hashes: bool
    ) -> Collective[Tensor]:
        this_round = Round(self.steps, layout, rank, len(self.codecs), self.seed, index)
        return synchronization(self.codecs[rank], xs[rank], this_round, check_hashes)

    def train(self, steps: int) -> list[list[Tensor]]:
        """The means of `steps` steps on gradients of their own."""
        size = len(self.codecs)
        return [
            self.step(*((layout, gradients(layout, size, self.steps)) for layout in (MODEL, TAIL)))
            for _ in range(steps)
        ]

    def one(self, xs: Sequence[Tensor], layout: Layout | None = None, *, skip: bool | None = False) -> Tensor:
        """The mean of one bucket."""
        return self.step((layout or Layout.flat(xs[0].numel()), xs), skip=skip)[0]

    def quick(self, xs: Sequence[Tensor], layout: Layout) -> Tensor:
        """`one` for tests of many rounds: the same bytes, without times and without the checks of `step`."""
        ranks = self.world.ranks
        results = self.world.run({rank: self._collective(rank, layout, xs, 0, False) for rank in ranks})
        self._end_step(skip=False)
        return results[0]


def as_bytes(tensor: Tensor) -> Tensor:
    """A NaN equals the same NaN."""
    return tensor.contiguous().view(-1).view(torch.uint8)


def mean_of(xs: Sequence[Tensor]) -> Tensor:
    """The exact mean, float64."""
    return torch.stack([x.double() for x in xs]).mean(dim=0)


def vnmse(estimate: Tensor, xs: Sequence[Tensor]) -> float:
    """‖estimate − mean‖² / ‖mean‖², in float64."""
    mean = mean_of(xs)
    return float((estimate.double() - mean).square().sum() / mean.square().sum())


Make = Callable[[], Cluster]
