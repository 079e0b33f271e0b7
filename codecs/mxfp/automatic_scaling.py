"""Automatic scaling: the factor μ between a block's maximum and its scale (DynamiQ Appendix C, after FP8-LM).

A larger μ leaves room for sums but loses small elements. After a step, μ becomes twice the μ of that step if
the share of saturated casts exceeded ε, and is multiplied by γ otherwise. The share is taken over all hops
and ranks, which agree on it during the next step (see `adaptation`). So μ follows one step late, in the same
way on all ranks and for all buckets of a step alike.

Late is why it says "of that step": when its overflow becomes known, the next step has run at nearly the same
μ and mostly overflowed too. Doubling the μ of the day would answer one overflow twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from gradwire.codecs.adaptation import Agreed
from gradwire.codecs.interface import Decision

MU, COUNTS = "mu", "cast_counts"

FIRST_DECISION: Decision = {MU: (0.0, 0.0)}
"""μ of a step and of the step before it, 0 where there was none yet."""


LARGEST_MU = 1e30
"""No gradients make it grow so far: it doubles a step."""


@dataclass
class CastCount:
    """What one rank did in one round: `saturated` casts (int64 scalar on the device) of all its `casts`."""

    saturated: Tensor
    casts: int = 0


class CastCounts:
    """The casts of a step, round by round."""

    def __init__(self) -> None:
        self._rounds: list[CastCount] = []

    def of_round(self, device: torch.device) -> CastCount:
        """The counter of a new round of the current step."""
        self._rounds.append(CastCount(torch.zeros((), dtype=torch.int64, device=device)))
        return self._rounds[-1]

    def total(self) -> Tensor:
        """Saturated and all casts of the step so far, (2,) int64, without waiting for the device."""
        counts = torch.zeros(2, dtype=torch.int64, device="cpu")
        for each in self._rounds:
            counts = counts.to(each.saturated.device)
            counts[0] += each.saturated
            counts[1] += each.casts
        return counts

    def forget(self) -> None:
        """Begin a new step."""
        self._rounds.clear()


@dataclass(frozen=True)
class AutomaticScaling:
    """The rule that μ follows, with its ε, γ and smallest μ."""

    epsilon: float
    gamma: float
    minimum: float

    def mu(self, decision: Decision, workers: int) -> float:
        """The μ of a step that follows `decision`; the first one is the number of workers."""
        return pair_of(decision)[0] or max(float(workers), self.minimum)

    def decide(self, agreed: Agreed) -> Decision:
        """The μ of the next step, beside that of the step that ends."""
        used, counted = self.mu(agreed.decision, agreed.size), pair_of(agreed.decision)[1]
        share, following = self.overflow(agreed), used
        if share is not None:
            risen, fallen = max(2 * counted, used), max(self.gamma * used, self.minimum)
            following = risen if share > self.epsilon else fallen
        return {MU: (following, used)}

    def overflow(self, agreed: Agreed) -> float | None:
        """The share of saturated casts that was agreed on; None if there were no casts."""
        saturated, casts = agreed.feedback[COUNTS].tolist()
        return saturated / casts if casts else None

    def logged(self, agreed: Agreed) -> Mapping[str, float]:
        """The μ of the step that ends, and the share of saturated casts that was agreed on during it."""
        return {"mu": self.mu(agreed.decision, agreed.size), "overflow": self.overflow(agreed) or 0.0}


def pair_of(decision: Decision) -> Sequence[float]:
    """The two factors of a decision."""
    return cast(Sequence[float], decision.get(MU, FIRST_DECISION[MU]))
