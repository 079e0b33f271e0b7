"""The batches of a step: the rows of each rank, and the weight of its losses in the step's loss."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from gradwire.harness.comm.world.interface import World
from gradwire.harness.data.token_data import SampleOrder
from gradwire.harness.objectives.interface import Objective
from gradwire.harness.parallel.interface import Batch, MicroBatches, Parallelism, WeightedBatch
from gradwire.harness.trainer.settings import TrainConfig

Place = tuple[int, int]
"""A micro-batch of a step: (replica, its index among the replica's micro-batches)."""


class StepBatches:
    """Makes the micro-batches of the world's ranks in this process, on their device.

    The loss of a step is the mean over all its counted labels, however replicas and micro-batches divide it.
    Every process holds the whole data and computes from the step number which rows belong to which replica.
    So each process counts the labels of all replicas itself, and nothing is sent.
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
        """The micro-batches of `step` by hosted rank; those with a weight other than 1 carry it."""
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
        """The weights of all micro-batches of a step; empty if all have the same number of counted labels."""
        counts: dict[Place, int] = {}
        for replica in range(self._parallelism.replicas):
            for number in range(self._accumulation):
                counted = self._objective.counted(self._rows(step, (replica, number)))
                if counted is None:
                    return {}
                counts[replica, number] = int(counted.sum())
        return loss_weights(counts)


def loss_weights(counts: Mapping[Place, int]) -> dict[Place, float]:
    """The weight of each micro-batch's mean loss, such that the mean of the weighted losses is the mean over
    all counted labels. The weight is exactly 1 for the mean number of labels, and 0 without labels."""
    total = sum(counts.values())
    return {place: own * len(counts) / total if total else 0.0 for place, own in counts.items()}
