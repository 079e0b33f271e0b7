"""The length of a run and the learning rate of each step: arithmetic on the step number."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gradwire.harness.record.directory import check_saved_steps
from gradwire.harness.trainer.parts import Parts
from gradwire.harness.trainer.rates import check_warm_up
from gradwire.harness.trainer.settings import RunConfig, TrainConfig


@dataclass(frozen=True)
class TrainingSchedule:
    """The steps of a run: `steps` steps of `tokens` tokens each (None if not counted), with a learning rate
    that follows `train` and reaches its end in `schedule_steps`, or decays every `decay_steps`."""

    train: TrainConfig
    steps: int
    tokens: int | None
    schedule_steps: int
    decay_steps: int

    @classmethod
    def of(cls, config: RunConfig, parts: Parts) -> TrainingSchedule:
        """The schedule of a run. Raises ValueError if its warm-up, or a step to be saved, ends too late."""
        train, measure = config.train, config.measure
        per_step = parts.parallelism.replicas * train.micro_batch * (train.accumulation or 1)
        rows, per_row = len(parts.data.train), parts.objective.tokens_per_row
        steps = num_steps(train.steps, train.epochs, rows, per_step)
        check_warm_up(train.warmup_steps, steps)
        check_saved_steps("save_gradients_at", measure.save_gradients_at, steps)
        check_saved_steps("save_weights_at", measure.save_weights_at, steps)
        schedule_steps, decay_steps = steps, 1
        if train.schedule_steps is not None or train.schedule_epochs is not None:
            schedule_steps = num_steps(train.schedule_steps, train.schedule_epochs, rows, per_step)
        if train.schedule == "steps":
            decay_steps = num_steps(train.decay_steps, train.decay_epochs, rows, per_step)
        tokens = None if per_row is None else per_row * per_step
        return cls(train, steps, tokens, schedule_steps, decay_steps)

    def rate(self, step: int) -> float:
        """The rate of step `step` (from 0): linear warm-up, then `schedule` to `end_factor`, then constant.

        With `schedule="steps"` it is multiplied by `decay_factor` every `decay_steps` after the warm-up, to
        the end of the run, as torch's StepLR has it ("decayed by 10 every 30 epochs", AQGB §2.2).

        Without warm-up it is torch's LinearLR from factor 1 to `end_factor` over `schedule_steps`
        (DynamiQ Table 1), or CosineAnnealingLR down to `lr * end_factor`, as a pure function of the step:
        nothing to save, nothing to resume.
        """
        train = self.train
        lr, warmup_steps = train.lr, train.warmup_steps
        assert lr is not None, "validated: null has been replaced"
        if step < warmup_steps:
            return lr * (step + 1) / warmup_steps
        if train.schedule == "steps":
            return lr * train.decay_factor ** ((step - warmup_steps) // self.decay_steps)
        progress = min(1.0, (step - warmup_steps) / max(1, self.schedule_steps - warmup_steps))
        if train.schedule == "cosine":
            progress = (1.0 - math.cos(math.pi * progress)) / 2.0
        return lr * (1.0 + (train.end_factor - 1.0) * progress)


def num_steps(steps: int | None, epochs: float | None, sequences: int, sequences_per_step: int) -> int:
    """`steps` if given, else the steps of `epochs` passes over `sequences`, at least one."""
    if steps is not None:
        return steps
    assert epochs is not None, "validated: steps or epochs is set"
    return max(1, math.ceil(epochs * sequences / sequences_per_step))
