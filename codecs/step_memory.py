"""State that lasts from step to step: values that a skipped step leaves, and the bound on residuals.

A spike, one coordinate of 1e12 in one step, loses a share of itself when it is encoded. The residual would
bring that share back, again and again, for as many steps as it takes to sink below the gradients.

What ordinary training can pile up is bounded. With a worker's gradients of norm at most G and a codec that
keeps a share δ of the energy it encodes, residuals stay below 2·√(1 − δ)/δ · G (Karimireddy et al., "Error
feedback fixes SignSGD", 2019, Lemma 3). `ReportsLosses.largest_residual` says how many times G a codec needs;
what exceeds `MARGIN` times as much is no residual of such gradients, and its large coordinates are dropped.

G is the median norm of the latest gradients, which a spike or two do not move. It is the worker's own, as the
residuals are, so nothing has to be agreed.
"""

from __future__ import annotations

import math
from collections import UserDict
from collections.abc import Collection, Mapping
from typing import TypeVar

import torch
from torch import Tensor

Value = TypeVar("Value")


class StepMemory(UserDict[str, Value]):
    """Values by name, of a parameter or (`Layout.key`) a bucket, which a step sets and a skipped one leaves.

    From the first time that a step sets a value until the step ends, the one before is kept, too. The
    owner calls `end_step` or `skip_step` once a step, and sets values, but never writes into them.
    """

    def __init__(self) -> None:
        super().__init__()
        self._before: dict[str, Value | None] = {}

    def __setitem__(self, name: str, value: Value) -> None:
        self._before.setdefault(name, self.data.get(name))
        self.data[name] = value

    def end_step(self) -> None:
        """The step counts: what was there before it is forgotten."""
        self._before.clear()

    def skip_step(self) -> None:
        """The step counts for nothing: what was there before it is there again."""
        self._restore(list(self._before))

    def take_back(self, names: Collection[str]) -> None:
        """The step counts for nothing for these: what was there before it is there again."""
        self._restore(self._before.keys() & set(names))

    def _restore(self, names: Collection[str]) -> None:
        for name in names:
            value = self._before.pop(name)
            if value is None:
                del self.data[name]
            else:
                self.data[name] = value

    def load(self, values: Mapping[str, Value]) -> None:
        """Replace everything by `values`, as they are between two steps."""
        self.data = dict(values)
        self._before.clear()


class Memories(UserDict[str, StepMemory[Tensor]]):
    """Memories of tensors, by what their keys begin with in a codec's saved state: `error/`, `norms/`."""

    def end_step(self) -> None:
        for memory in self.values():
            memory.end_step()

    def skip_step(self) -> None:
        for memory in self.values():
            memory.skip_step()

    def take_back(self, names: Collection[str]) -> None:
        for memory in self.values():
            memory.take_back(names)

    def state_dict(self) -> dict[str, Tensor]:
        return {f"{prefix}{name}": x for prefix, memory in self.items() for name, x in memory.items()}

    def load(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Replace everything by what `state_dict` gave; returns what belongs to none of them."""
        rest = dict(state)
        for prefix, memory in self.items():
            own = [key for key in rest if key.startswith(prefix)]
            memory.load({key.removeprefix(prefix): rest.pop(key).clone() for key in own})
        return rest


LATEST = 5
"""Number of gradients whose norms' median is taken: two of them may be spikes."""

MARGIN = 10.0
"""The bound over the largest residual that gradients of equal norms leave: norms change during training."""

PREFIX = "norms/"
"""Begins the keys under which norms are saved; the name of the bucket's first parameter follows."""


def of_contraction(share: float) -> float:
    """The largest residual, in norms of the gradient, of a codec that keeps at least this share of the energy
    that it encodes."""
    return 2 * math.sqrt(1 - share) / share


class LatestNorms(StepMemory[Tensor]):
    """The norms of each bucket's latest gradients, by the name of the bucket's first parameter: (LATEST,)
    float32 each, the newest last, zeros where there were fewer."""

    def median(self, bucket: str, gradient: Tensor) -> Tensor:
        """Take in the norm of `gradient`, (numel,) float32, and return the median, () float32: the lower one
        of two, NaN if there is none yet.

        Norms that are zero, overflow or are not finite say nothing and are left out.
        """
        norm = torch.linalg.vector_norm(gradient)
        norms = self.get(bucket)
        if norms is None:
            norms = torch.zeros(LATEST, device=norm.device)
        norms = norms.to(norm.device)
        taken = torch.cat((norms[1:], norm[None]))
        norms = torch.where(norm.isfinite() & (norm > 0), taken, norms)
        self[bucket] = norms
        return norms.masked_fill(norms == 0, torch.nan).nanmedian()

    def take_back(self, names: Collection[str]) -> None:
        """A gradient has had its norm, whether its mean is applied or not."""


def bounded(residual: Tensor, norm: Tensor, times: float) -> Tensor:
    """`residual`, (numel,) float32 and finite, if its norm is at most `times` the recent gradients' `norm`.

    Otherwise the residual without the coordinates that exceed `norm`, () float32, by themselves; zeros if
    that is still too large. Where the norm is not known (NaN), everything stays.
    """
    if residual.device.type == "cpu" and not _exceeds(residual, norm * times):
        return residual  # elsewhere the host would have to wait for the answer
    return without_excess(residual, norm, times)


def without_excess(residual: Tensor, norm: Tensor, times: float) -> Tensor:
    """The result of `bounded`, without waiting for the device."""
    excess = _exceeds(residual, norm * times) & (residual.abs() > norm)
    rest = residual.masked_fill(excess, 0.0)
    return rest.masked_fill_(_exceeds(rest, norm * times), 0.0)


def _exceeds(residual: Tensor, bound: Tensor) -> Tensor:
    return torch.gt(torch.linalg.vector_norm(residual), bound)
