"""Automatic scaling: the factor μ between a block's maximum and its scale (DynamiQ Appendix C, after FP8-LM).

A larger μ leaves room for sums but loses small elements. After a step, μ becomes twice the μ of that step if
the share of saturated casts exceeded ε, and is multiplied by γ otherwise. The share is taken over all hops
and ranks: each rank counts its own casts, and the counts of a step travel in the metadata of the next step's
first bucket. So μ follows one step late, in the same way on all ranks and for all buckets of a step alike.

Late is why it says "of that step": when its overflow becomes known, the next step has run at nearly the same
μ and mostly overflowed too. Doubling the μ of the day would answer one overflow twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

_MU, _COUNTS = "mu", "cast_counts"


@dataclass
class CastCount:
    """What one rank did in one round: `saturated` casts (int64 scalar on the device) of all its `casts`."""

    saturated: Tensor
    casts: int = 0


class AutomaticScaling:
    """μ and the counts that move it; `epsilon`, `gamma` and `minimum` are the rule's ε, γ and smallest μ."""

    def __init__(self, epsilon: float, gamma: float, minimum: float) -> None:
        self._epsilon, self._gamma, self._minimum = epsilon, gamma, minimum
        self._mu: float | None = None
        self._counted_mu = 0.0
        self._previous = torch.zeros(2, dtype=torch.int64)
        self._rounds: list[CastCount] = []
        self._agreed: Tensor | None = None

    def mu(self, workers: int) -> float:
        """This step's μ; the first one is the number of workers."""
        if self._mu is None:
            self._mu = max(float(workers), self._minimum)
        return self._mu

    def count(self, device: torch.device) -> CastCount:
        """The counter of a new round of the current step."""
        self._rounds.append(CastCount(torch.zeros((), dtype=torch.int64, device=device)))
        return self._rounds[-1]

    def previous_counts(self, device: torch.device) -> Tensor:
        """This rank's saturated and all casts of the last step, (2,) int64, to be summed over the ranks."""
        return self._previous.to(device)

    def agree(self, counts: Tensor) -> None:
        """Take the sums over all ranks of `previous_counts`; they have an effect once the step has ended."""
        self._agreed = counts

    def end_step(self) -> dict[str, float]:
        """Close the step: the μ it used, and the share of saturated casts that was agreed on during it."""
        if self._mu is None:
            return {}
        used, overflow = self._mu, self._overflow()
        if overflow is not None:
            risen, fallen = max(2 * self._counted_mu, used), max(self._gamma * used, self._minimum)
            self._mu = risen if overflow > self._epsilon else fallen
        self._previous, self._rounds, self._agreed = self._sum_of_rounds(), [], None
        self._counted_mu = used
        return {"mu": used, "overflow": overflow or 0.0}

    def skip_step(self) -> dict[str, float]:
        """Close a step whose casts do not count: what was agreed on is asked for again in the next one."""
        if self._mu is None:
            return {}
        used, overflow = self._mu, self._overflow()
        self._rounds, self._agreed = [], None
        if not self._counted_mu:  # no step has counted yet
            self._mu = None
        return {"mu": used, "overflow": overflow or 0.0}

    def _overflow(self) -> float | None:
        """The share of saturated casts that was agreed on in this step; None if there were no casts."""
        saturated, casts = (0, 0) if self._agreed is None else self._agreed.tolist()
        return saturated / casts if casts else None

    def _sum_of_rounds(self) -> Tensor:
        """Saturated and all casts of the step so far, (2,) int64, without waiting for the device."""
        counts = torch.zeros_like(self._previous)
        for each in self._rounds:
            counts = counts.to(each.saturated.device)
            counts[0] += each.saturated
            counts[1] += each.casts
        return counts

    def state_dict(self) -> dict[str, Tensor]:
        """Between two steps: μ and that of the last step, 0 before the first round, and its counts."""
        mu = torch.tensor([self._mu or 0.0, self._counted_mu], dtype=torch.float64)
        return {_MU: mu, _COUNTS: self._previous.cpu()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on from `state`, as if nothing had happened since."""
        if set(state) != {_MU, _COUNTS}:
            raise ValueError(f"the state of an MXFP codec has {_MU} and {_COUNTS}, got {sorted(state)}")
        if any(tuple(value.shape) != (2,) for value in state.values()):
            shapes = {key: list(value.shape) for key, value in state.items()}
            raise ValueError(f"the state of an MXFP codec has two elements each, got {shapes}")
        mu, self._counted_mu = state[_MU].tolist()
        self._mu = mu or None
        self._previous = state[_COUNTS].to("cpu", torch.int64, copy=True)
        self._rounds, self._agreed = [], None
