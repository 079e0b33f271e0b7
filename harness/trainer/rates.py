"""The learning rate that suits a batch, and how long a warm-up may be; it needs no PyTorch."""

from __future__ import annotations

import math


def rate_for_batch(rate: float, batch: int, suited: int | None) -> float:
    """The learning rate of steps of `batch` sequences by a recipe whose `rate` is for `suited` sequences.

    The rate of Adam and AdamW grows with the square root of the batch (Malladi et al., "On the SDEs and
    Scaling Rules for Adaptive Gradient Algorithms", NeurIPS 2022), up to the recipe's own: beyond it a longer
    warm-up would be needed. `suited` is None if the rate suits any batch.
    """
    return rate if suited is None else rate * math.sqrt(min(1.0, batch / suited))


def check_warm_up(warmup_steps: int, steps: int) -> None:
    """Raises ValueError if the warm-up is longer than the run, whether a recipe or the user has set it."""
    if warmup_steps > steps:
        raise ValueError(
            f"train.warmup_steps={warmup_steps} is more than train.steps={steps}, and the rate would never "
            f"reach train.lr; choose at most train.warmup_steps={steps}, or more steps"
        )
