"""All parallelisms by name. A new one is one entry here, its files in this folder, one YAML."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from accelerate import Accelerator
from torch import nn

from gradwire.codecs.plugins import find
from gradwire.harness.comm.world.interface import World
from gradwire.harness.parallel import ddp
from gradwire.harness.parallel.blocks import parallelism as blocks
from gradwire.harness.parallel.interface import Parallelism, ParallelSetup
from gradwire.harness.parallel.pipeline import parallelism as pipeline
from gradwire.harness.parallel.requirements import (
    blocks_refusal,
    ddp_refusal,
    pipeline_refusal,
    sharded_refusal,
)
from gradwire.harness.parallel.settings import ParallelConfig, PipelineConfig
from gradwire.harness.parallel.sharded import parallelism as sharded


def _stages(settings: ParallelConfig) -> int:
    assert isinstance(settings, PipelineConfig)
    return settings.stages


@dataclass(frozen=True)
class ParallelKind:
    """A parallelism: the function that makes it, the function that returns the reason why a run cannot use it
    (None if it can), and its number of stages."""

    build: Callable[[ParallelSetup, nn.Module, Accelerator, World], Parallelism]
    supports: Callable[[ParallelSetup], str | None]
    stages: Callable[[ParallelConfig], int] = lambda settings: 1


PARALLELISMS = {
    "blocks": ParallelKind(blocks.build, blocks_refusal),
    "ddp": ParallelKind(ddp.build, ddp_refusal),
    "pipeline": ParallelKind(pipeline.build, pipeline_refusal, _stages),
    "sharded": ParallelKind(sharded.build, sharded_refusal),
}


def parallel_kind(name: str) -> ParallelKind:
    """Returns the parallelism of a name: one of `PARALLELISMS`, or a plug-in that is a `ParallelKind`. Raises
    ValueError for an unknown name."""
    return find("parallel", name, PARALLELISMS, "<module>:<name>", _checked)


def _checked(found: object, name: str) -> ParallelKind:
    if not isinstance(found, ParallelKind):
        raise ValueError(
            f"parallel={name} is not a parallelism: it must be a ParallelKind of "
            f"gradwire.harness.parallel.registry, it is {type(found).__name__}"
        )
    return found
