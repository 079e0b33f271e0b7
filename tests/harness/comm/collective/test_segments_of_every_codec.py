"""Every codec of the registry with messages cut into segments, whatever the order in which they arrive."""

from __future__ import annotations

import math
from itertools import accumulate
from typing import Any

import pytest
import torch
from collective_jobs import fabric, gradients
from driven import DrivenChannel, drive
from torch import Tensor

from gradwire.codecs.hop_codec import ReportsLosses
from gradwire.codecs.interface import Layout, Round
from gradwire.codecs.registry import codec_classes, make_codec
from gradwire.codecs.wrappers.wrapper import innermost
from gradwire.harness.comm.collective.collectives import ScheduledCollectives
from gradwire.harness.comm.topology.registry import TOPOLOGIES

NAMES = sorted(
    name
    for name, made in codec_classes().items()
    if made.__module__.startswith("gradwire.") and name != "backend"  # which sends nothing itself
)
SHAPES = {"body.weight": (128, 256), "body.bias": (100,), "head.weight": (64, 512)}
SEGMENTS = [2, 3, 8]

every_codec = pytest.mark.parametrize("codec", NAMES)
every_topology = pytest.mark.parametrize("topology", sorted(TOPOLOGIES))


def model() -> Layout:
    """A bucket of matrices and a vector, 65636 coordinates: ten blocks of 256 in each segment."""
    sizes = [math.prod(shape) for shape in SHAPES.values()]
    ends = list(accumulate(sizes))
    return Layout(tuple(SHAPES), tuple(SHAPES.values()), (0, *ends[:-1]), ends[-1], torch.float32)


def means(
    codec: str, topology: str, segments: int, layout: Layout, xs: list[Tensor], steps: int = 1
) -> Tensor:
    """The last step's mean, the same on all ranks, bit for bit."""
    codecs = [make_codec(codec) for _ in xs]

    async def run(comm: ScheduledCollectives, channel: DrivenChannel) -> Tensor:
        own = codecs[comm.rank]
        return await own.synchronize(xs[comm.rank], Round(step, layout, comm.rank, comm.size, seed=3), comm)

    for step in range(steps):
        results, _ = drive(fabric(topology, segments=segments), len(xs), run, seed=step)
        assert all(torch.equal(result, results[0]) for result in results)
    return results[0]


def error(mean: Tensor, xs: list[Tensor]) -> float:
    exact = torch.stack(xs).double().mean(0)
    return float((mean - exact).square().sum() / exact.square().sum())


@every_codec
@every_topology
def test_the_mean_is_as_near_as_without_segments(codec: str, topology: str) -> None:
    layout = model()
    xs = [gradients(rank, layout.numel) for rank in range(3)]
    whole = error(means(codec, topology, 1, layout, xs, steps=2), xs)
    for segments in SEGMENTS:
        assert error(means(codec, topology, segments, layout, xs, steps=2), xs) <= 1.3 * whole + 1e-12


@every_codec
@every_topology
@pytest.mark.parametrize("segments", SEGMENTS)
def test_most_segments_of_a_tiny_bucket_are_empty(codec: str, topology: str, segments: int) -> None:
    for numel in (1, 7, 255):
        layout = Layout.flat(numel)
        xs = [gradients(rank, numel) for rank in range(4)]
        assert means(codec, topology, segments, layout, xs).isfinite().all()
        assert not means(codec, topology, segments, layout, [torch.zeros(numel)] * 4).any()


@every_codec
@every_topology
def test_losses_are_told_of_all_segments(codec: str, topology: str) -> None:
    """Summed over the ranks, inputs equal what came through plus what was lost."""
    made = [innermost(make_codec(codec)) for _ in range(3)]
    if not isinstance(made[0], ReportsLosses):
        pytest.skip("loses nothing, or has error feedback of its own")
    layout, size = model(), len(made)
    xs = [gradients(rank, layout.numel) for rank in range(size)]

    async def run(comm: ScheduledCollectives, channel: DrivenChannel) -> Any:
        this_round = Round(0, layout, comm.rank, size, seed=3)
        own = made[comm.rank]
        assert isinstance(own, ReportsLosses)
        return await own.synchronize_with_losses(xs[comm.rank], this_round, comm)

    results, _ = drive(fabric(topology, segments=3), size, run)
    total = torch.stack(xs).double().sum(0)
    accounted = size * results[0][0].double() + sum(losses.double() for _, losses in results)
    assert float((accounted - total).square().sum() / total.square().sum()) < 1e-9
