"""What PowerSGD remembers of each parameter from round to round."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from gradwire.codecs.residuals import LatestNorms, bounded
from gradwire.codecs.step_memory import StepMemory

LARGEST_ERROR = 1e5
"""Times the norm of a bucket's gradients: an error beyond it is what a spike has left.

A worker's error is far larger than what the result lacks. It holds all that the worker's gradients have
differed from the mean, of which the sum over the workers is zero, and grows with the root of the number of
steps: to 1e5 times a gradient in 1e10 steps. Adding so large an error rounds off 1 % of a gradient."""


START, ERROR = "q/", "error/"
"""Begin the keys under which a parameter's Qᵀ and its error are saved."""


class Memory:
    """By parameter name, so that any other division into buckets finds it."""

    def __init__(self) -> None:
        self.ranks: dict[str, int] = {}
        """The ranks that differ from the codec's own."""
        self.starts = StepMemory[Tensor]()
        """Qᵀ of the latest round, (rank, columns) float32."""
        self.errors = StepMemory[Tensor]()
        """What this worker's gradients still lack in the results, (numel,) float32."""
        self.norms = LatestNorms()
        """Norms of this worker's latest gradients, bucket by bucket."""

    def start(self, name: str, device: torch.device) -> Tensor | None:
        start = self.starts.get(name)
        return None if start is None else start.to(device)

    def add_error(self, name: str, gradient: Tensor, norm: Tensor) -> None:
        """Add what is still lacking to a gradient, (numel,) float32, in place; `norm`, () float32, is that of
        the recent gradients of its bucket."""
        if name in self.errors:
            gradient.add_(bounded(self.errors[name].to(gradient.device), norm, LARGEST_ERROR))

    def keep_error(self, name: str, error: Tensor, finite: Tensor) -> None:
        """`error` where the result was `finite`, else the one there was."""
        before = self.errors[name].to(error.device) if name in self.errors else torch.zeros_like(error)
        self.errors[name] = torch.where(finite, error, before)

    def end_step(self) -> None:
        for memory in (self.starts, self.errors, self.norms.memory):
            memory.end_step()

    def skip_step(self) -> None:
        """All but the ranks, which are the user's, as before the step."""
        for memory in (self.starts, self.errors, self.norms.memory):
            memory.skip_step()

    def state_dict(self) -> dict[str, Tensor]:
        ranks = {f"rank/{name}": torch.tensor(rank) for name, rank in self.ranks.items()}
        starts = {f"{START}{name}": start for name, start in self.starts.items()}
        errors = {f"{ERROR}{name}": error for name, error in self.errors.items()}
        return ranks | starts | errors | self.norms.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Replace everything by what `state_dict` gave. Raises ValueError for other keys."""
        found: dict[str, dict[str, Tensor]] = {"rank": {}, "q": {}, "error": {}, "norms": {}}
        for key, value in state.items():
            kind, _, name = key.partition("/")
            if kind not in found:
                raise ValueError(
                    f"the state of a PowerSGD codec has rank/…, q/…, error/… and norms/…, got {key}"
                )
            found[kind][name] = value.clone()
        self.ranks = {name: int(rank) for name, rank in found["rank"].items()}
        self.starts.load(found["q"])
        self.errors.load(found["error"])
        self.norms.load_state_dict(state)
