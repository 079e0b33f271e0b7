"""What parallelisms share in which every rank holds the whole model and trains it on data of its own."""

from __future__ import annotations

from accelerate import Accelerator
from torch import nn

from gradwire.codecs.interface import Codec
from gradwire.codecs.registry import make_codec
from gradwire.harness.comm.world.interface import World
from gradwire.harness.objectives.interface import Objective
from gradwire.harness.parallel.buffers import RankBuffers
from gradwire.harness.parallel.evaluate import evaluate
from gradwire.harness.parallel.interface import ParallelSetup


class Replicas:
    """One codec for each of the world's ranks here, and one model for all of them: replicas are identical bit
    for bit, so that ranks which share a process share a model."""

    def __init__(
        self, setup: ParallelSetup, model: nn.Module, accelerator: Accelerator, world: World
    ) -> None:
        self._setup, self._model, self._accelerator, self._world = setup, model, accelerator, world
        self._codecs: dict[int, Codec] = {rank: make_codec(**setup.codec) for rank in world.ranks}
        self._buffers = RankBuffers(model, world)
        self.replicas = world.size

    def replica(self, rank: int) -> int:
        return rank

    def group(self, rank: int) -> int:
        return 0

    def evaluate(self, objective: Objective, micro_batch: int) -> dict[str, float]:
        return evaluate(self._model, objective, self._world, micro_batch)

    def whole_model(self) -> nn.Module:
        return self._model

    def finish(self) -> None:
        self._buffers.take_first()
