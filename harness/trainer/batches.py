"""The batches of a step: which rows each rank takes, and what its losses weigh in that of the step."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from gradwire.harness.comm.world.interface import World
from gradwire.harness.data.token_data import SampleOrder
from gradwire.harness.objectives.interface import Objective
from gradwire.harness.parallel.interface import Batch, MicroBatches, Parallelism, WeightedBatch
from gradwire.harness.trainer.settings import TrainConfig

Place = tuple[int, int]
"""A micro-batch of a step: (replica, its number among the replica's)."""


class StepBatches:
    """Makes the micro-batches of the world's ranks here, on their device.

    The loss of a step is the mean over all labels that count in it, however replicas and micro-batches cut
    it. Rows and their labels follow from the step by arithmetic on data that every process holds, so that
    each counts those of all replicas by itself, and nothing is sent.
    """

    def __init__(
        self, objective: Objective, parallelism: Parallelism, world: World, train: TrainConfig, seed: int
    ) -> None:
        self._objective, self._parallelism, self._world, self._seed = objective, parallelism, world, seed
        self._accumulation = train.accumulation or 1
        self._order = SampleOrder(
            len(objective.data.train), seed, parallelism.replicas, train.micro_batch, self._accumulation
        )

    def of_step(self, step: int) -> MicroBatches:
        """Hosted rank -> its micro-batches of `step`; those of another weight than 1 say so."""
        weights = self._weights(step)
        return {
            rank: [
                self._batch(step, (self._parallelism.replica(rank), number), weights)
                for number in range(self._accumulation)
            ]
            for rank in self._world.ranks
        }

    def _batch(self, step: int, place: Place, weights: Mapping[Place, float]) -> Batch:
        made = self._objective.batch(self._rows(step, place), key=(self._seed, step))
        device, weight = self._world.device, weights.get(place, 1.0)
        batch = {name: value.to(device, non_blocking=True) for name, value in made.items()}
        return batch if weight == 1.0 else WeightedBatch(batch, weight)

    def _rows(self, step: int, place: Place) -> Tensor:
        replica, number = place
        return self._order.indices(step, number, replica)

    def _weights(self, step: int) -> Mapping[Place, float]:
        """The weights of all micro-batches of a step; nothing if all have as many labels that count."""
        counts: dict[Place, int] = {}
        for replica in range(self._parallelism.replicas):
            for number in range(self._accumulation):
                counted = self._objective.counted(self._rows(step, (replica, number)))
                if counted is None:
                    return {}
                counts[replica, number] = int(counted.sum())
        return loss_weights(counts)


def loss_weights(counts: Mapping[Place, int]) -> dict[Place, float]:
    """The weight of each micro-batch's mean loss, such that the mean of these products is the mean over all
    labels that count: 1 exactly where a micro-batch has the mean number of them, 0 where it has none."""
    total = sum(counts.values())
    return {place: own * len(counts) / total if total else 0.0 for place, own in counts.items()}
