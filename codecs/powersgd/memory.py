"""What PowerSGD remembers of each parameter from round to round."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


class Memory:
    """By parameter name, so that any other division into buckets finds it."""

    def __init__(self) -> None:
        self.ranks: dict[str, int] = {}
        """The ranks that differ from the codec's own."""
        self.starts: dict[str, Tensor] = {}
        """Qᵀ of the latest round, (rank, columns) float32."""
        self.errors: dict[str, Tensor] = {}
        """What this worker's gradients still lack in the results, (numel,) float32."""

    def start(self, name: str, device: torch.device) -> Tensor | None:
        start = self.starts.get(name)
        return None if start is None else start.to(device)

    def add_error(self, name: str, gradient: Tensor) -> None:
        """Add what is still lacking to a gradient, (numel,) float32, in place."""
        if name in self.errors:
            gradient.add_(self.errors[name].to(gradient.device))

    def keep_error(self, name: str, error: Tensor, finite: Tensor) -> None:
        """`error` where the result was `finite`, else the one there was."""
        before = self.errors[name].to(error.device) if name in self.errors else torch.zeros_like(error)
        self.errors[name] = torch.where(finite, error, before)

    def state_dict(self) -> dict[str, Tensor]:
        ranks = {f"rank/{name}": torch.tensor(rank) for name, rank in self.ranks.items()}
        starts = {f"q/{name}": start for name, start in self.starts.items()}
        return ranks | starts | {f"error/{name}": error for name, error in self.errors.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Replace everything by what `state_dict` gave. Raises ValueError for other keys."""
        found: dict[str, dict[str, Tensor]] = {"rank": {}, "q": {}, "error": {}}
        for key, value in state.items():
            kind, _, name = key.partition("/")
            if kind not in found:
                raise ValueError(f"the state of a PowerSGD codec has rank/…, q/… and error/…, got {key}")
            found[kind][name] = value.clone()
        self.ranks = {name: int(rank) for name, rank in found["rank"].items()}
        self.starts, self.errors = found["q"], found["error"]
