"""How long a run is and which learning rate each step has: arithmetic on the step number."""

from __future__ import annotations

import math


def num_steps(steps: int | None, epochs: float | None, sequences: int, sequences_per_step: int) -> int:
    """`steps` if given, else the steps of `epochs` passes over `sequences`, at least one."""
    if steps is not None:
        return steps
    assert epochs is not None, "validated: steps or epochs is set"
    return max(1, math.ceil(epochs * sequences / sequences_per_step))


def learning_rate(
    step: int,
    *,
    lr: float,
    warmup_steps: int,
    end_factor: float,
    schedule_steps: int,
    schedule: str = "linear",
    decay_steps: int = 1,
    decay_factor: float = 1.0,
) -> float:
    """The rate of step `step` (from 0): linear warm-up, then `schedule` to `end_factor`, then constant.

    With `schedule="steps"` it is multiplied by `decay_factor` every `decay_steps` after the warm-up, to the
    end of the run, as torch's StepLR has it ("decayed by 10 every 30 epochs", AQGB §2.2).

    Without warm-up it is torch's LinearLR from factor 1 to `end_factor` over `schedule_steps`
    (DynamiQ Table 1), or CosineAnnealingLR down to `lr * end_factor`, as a pure function of the
    step: nothing to save, nothing to resume.
    """
    if step < warmup_steps:
        return lr * (step + 1) / warmup_steps
    if schedule == "steps":
        return lr * decay_factor ** ((step - warmup_steps) // decay_steps)
    progress = min(1.0, (step - warmup_steps) / max(1, schedule_steps - warmup_steps))
    if schedule == "cosine":
        progress = (1.0 - math.cos(math.pi * progress)) / 2.0
    return lr * (1.0 + (end_factor - 1.0) * progress)
