"""A virtual cluster on a GPU whose rounds are captured, all ranks' in one CUDA graph."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from gradwire.codecs.interface import Layout, Round
from gradwire.codecs.registry import make_codec
from gradwire.harness.comm.collective.collectives import Fabric
from gradwire.harness.comm.topology.registry import make_schedule
from gradwire.harness.comm.transport.captured_rounds import SETTLING, make_captured_rounds
from gradwire.harness.comm.world.interface import Collective, RankStep, Submission
from gradwire.harness.comm.world.virtual import VirtualWorld
from gradwire.harness.config.compose import compose
from gradwire.harness.config.validate import validate
from gradwire.harness.launch.launch import run_here
from gradwire.harness.parallel.synchronize import synchronization
from gradwire.harness.record.runs import load_run
from gradwire.harness.timing.trace.step import Post, StepTrace, Work, lane_shape

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

STEPS, NUMEL = 6, 300_000


def steps(codec: str, topology: str, size: int, graphs: str) -> tuple[list[Tensor], list[int], StepTrace]:
    """The means of all steps, the bytes that each rank has sent, and the last step's trace."""
    device = torch.device("cuda", torch.cuda.current_device())
    rounds = make_captured_rounds(graphs, device)
    world = VirtualWorld(size, Fabric(partial(make_schedule, topology)), device, captured=rounds)
    codecs, layout = [make_codec(codec) for _ in range(size)], Layout.flat(NUMEL, device=device)

    async def of_rank(step: int, rank_step: RankStep) -> Tensor:
        rank = rank_step.rank

        def make(x: Tensor) -> Collective[Tensor]:
            return synchronization(codecs[rank], x, Round(step, layout, rank, size, 7), check_hashes=False)

        with rank_step.compute("pass"):
            generator = torch.Generator(device).manual_seed(1000 * step + rank)
            x = torch.randn(NUMEL, device=device, generator=generator)
        return await rank_step.start(make, x, Submission("bucket", NUMEL))

    means = []
    for step in range(STEPS):
        found = world.run_step(step, dict.fromkeys(world.ranks, partial(of_rank, step))).results
        assert all(torch.equal(own.view(torch.int32), found[0].view(torch.int32)) for own in found.values())
        means.append(found[0].to("cpu", copy=True))
        for each in codecs:
            each.end_step(step)
    assert (0 if rounds is None else rounds.launches) == (0 if graphs == "never" else STEPS - SETTLING)
    sent, measured = [world.traffic[rank].total for rank in world.ranks], world.measured
    world.close()
    return means, sent, measured


CODECS = ["fp32", "bf16", "dynamiq", "dynamiq_plus", "thc", "qsgd", "onebit", "mxfp8"]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("topology", ["ring", "butterfly"])
@pytest.mark.parametrize("size", [2, 3])
def test_captured_rounds_are_those_step_by_step(codec: str, topology: str, size: int) -> None:
    """Bytes, and the operations of traces; each piece of work in a launch takes time, but not long."""
    means, sent, eager = steps(codec, topology, size, "never")
    launched, counted, captured = steps(codec, topology, size, "always")
    assert counted == sent
    for mean, expected in zip(launched, means, strict=True):
        assert torch.equal(mean.view(torch.int32), expected.view(torch.int32))
    for rank, own in captured.items():
        assert lane_shape(own.computation) == lane_shape(eager[rank].computation)
        (task,), (before,) = own.tasks, eager[rank].tasks
        posts = [each._replace(at=0.0) for each in task.operations if isinstance(each, Post)]
        assert posts == [each._replace(at=0.0) for each in before.operations if isinstance(each, Post)]
        work = [each for each in task.operations if isinstance(each, Work)]
        assert all(0 <= each.end - each.start < 0.01 for each in work)
        assert sum(each.end - each.start for each in work) > 0
        assert own.computation[0].end > own.computation[0].start  # type: ignore[union-attr]


def test_a_run_launches_the_rounds_of_all_its_buckets(tmp_path: Path) -> None:
    """Graphs are required, so it would end if a round could not be captured."""
    overrides = ["size=tiny", "cluster=virtual", "cluster.workers=3", "cluster.device=cuda", "codec=dynamiq"]
    chosen = [*overrides, "train.steps=8", "train.warmup_steps=2", "kernels.graphs=always"]
    run_here(validate(compose(chosen)), tmp_path / "run")
    assert load_run(tmp_path / "run").done.steps == 8
