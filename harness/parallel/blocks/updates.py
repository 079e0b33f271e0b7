"""Updates of blocks that a step leaves pending until the next forward pass uses the block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gradwire.harness.comm.world.interface import CollectivePlace, Started
from gradwire.harness.parallel.accumulation import GradientBucket
from gradwire.harness.parallel.blocks.groups import Block
from gradwire.harness.parallel.update import OptimizerSettings, Updater


class BlockUpdaters:
    """One optimizer for each block; clipping is by the norm of all blocks' gradients."""

    def __init__(
        self,
        model: nn.Module,
        blocks: Sequence[Block],
        buckets: Sequence[GradientBucket],
        settings: OptimizerSettings,
    ) -> None:
        """`buckets` holds the buckets of the blocks, starting with that of the last block."""
        self._blocks, self._buckets = blocks, list(reversed(buckets))
        self._updaters = [Updater(model, settings, block.parameters.keys()) for block in blocks]

    @staticmethod
    def norm(means: Sequence[Tensor]) -> float:
        """The norm of the gradients of all blocks together."""
        return float(torch.nn.utils.get_total_norm(means))

    def apply(self, number: int, mean: Tensor, norm: float, rate: float) -> None:
        """Clips and updates a block; `mean`, (numel,) in its bucket's layout, is overwritten."""
        self._set_gradients(number, mean)
        self._updaters[number].apply(rate, norm)

    def warm_up(self) -> None:
        """Makes an update of each block that changes no values, so that the optimizers allocate their
        state.
        """
        for number, updater in enumerate(self._updaters):
            self._set_gradients(number, torch.zeros_like(self._buckets[number].gradient))
            updater.warm_up()

    def _set_gradients(self, number: int, mean: Tensor) -> None:
        for name, view in self._buckets[number].views(mean):
            self._blocks[number].parameters[name].grad = view

    def state_dict(self) -> dict[str, Tensor]:
        """All optimizers' moments and step counts: `<field>/<parameter name>` to tensor."""
        return {key: value for updater in self._updaters for key, value in updater.state_dict().items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Loads a result of `state_dict`, or the state of a single optimizer of all parameters. Raises
        ValueError for parameters that no block has."""
        known = {name: number for number, block in enumerate(self._blocks) for name in block.parameters}
        own: list[dict[str, Tensor]] = [{} for _ in self._blocks]
        for key, value in state.items():
            name = key.partition("/")[2]
            if name not in known:
                raise ValueError(f"the checkpoint belongs to another model: its optimizer has {name}")
            own[known[name]][key] = value
        for updater, part in zip(self._updaters, own, strict=True):
            updater.load_state_dict(part)


@dataclass
class Pending:
    """The updates that a rank's step leaves to the next one: the blocks' means by number, or the collectives
    that compute them, with the norm and the learning rate of the update.

    A collective whose mean has already been taken is still waited for, because the clock determines when it
    ends.
    """

    norm: float
    rate: float
    means: dict[int, Tensor]
    started: dict[int, Started[Tensor]]

    def mean(self, number: int) -> Tensor:
        """A block's mean, taken between two steps."""
        return self.started[number].result() if number in self.started else self.means[number]

    def places(self, blocks: int) -> Tensor:
        """(blocks, 2) int64: step and number of each block's collective, -1 if there is none."""
        places = [
            self.started[n].place if n in self.started else CollectivePlace(-1, -1) for n in range(blocks)
        ]
        return torch.tensor([list(place) for place in places], dtype=torch.int64, device="cpu")
