"""A stage in the process of the ranks that hold it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from accelerate import Accelerator
from torch import Tensor

from gradwire.harness.models.stages import Stage
from gradwire.harness.parallel.accumulation import GradientBucket, Hooks, bucketed
from gradwire.harness.parallel.buckets import BucketLayouts
from gradwire.harness.parallel.interface import ParallelSetup
from gradwire.harness.parallel.update import Updater


class HostedStage:
    """A stage that ranks of this process hold: its parameters and optimizer once for all of them. Passes of
    several ranks take turns, so that each rank has buckets of its own."""

    def __init__(
        self,
        stage: Stage,
        accelerator: Accelerator,
        setup: ParallelSetup,
        layouts: BucketLayouts,
        ranks: Sequence[int],
    ) -> None:
        self.stage = stage
        self.forward = accelerator.prepare_model(stage, evaluation_mode=True)
        self.parameters = {name: p for name, p in stage.named().items() if p.requires_grad}
        self.hooks, self.updater = Hooks(self.parameters), self._updater(setup)
        sizes = {name: parameter.numel() for name, parameter in self.parameters.items()}
        # Gradients get ready in about this order.
        backwards = list(reversed(self.parameters))
        device = next(iter(self.parameters.values())).device
        self.layouts = tuple(
            layouts.named(names, torch.float32, device)
            for names in bucketed(backwards, sizes, setup.parallel.bucket_cap_mb)
        )
        self.buckets = {
            rank: [GradientBucket(each, torch.zeros(each.numel, device=device)) for each in self.layouts]
            for rank in ranks
        }

    def _updater(self, setup: ParallelSetup) -> Updater:
        return Updater(self.stage.model, setup.optimizer)

    def set_gradients(self, means: Sequence[Tensor], rank: int) -> None:
        """Makes views of the means of a rank's buckets the gradients."""
        for bucket, mean in zip(self.buckets[rank], means, strict=True):
            for name, view in bucket.views(mean):
                self.parameters[name].grad = view

    def gradient(self, name: str) -> Tensor:
        """A parameter's gradient."""
        found = self.parameters[name].grad
        assert found is not None
        return found

    def squares(self, without: str | None) -> Tensor:
        """The sum of the squares of all gradients, (1,) float64, `without` a parameter's that another stage
        counts."""
        counted = [self.gradient(name) for name in self.parameters if name != without]
        return torch.nn.utils.get_total_norm(counted).double().square().view(1)
