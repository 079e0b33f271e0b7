"""State that lasts from step to step and survives skipped steps, and the bound on residuals.

When a spike, e.g. one coordinate of 1e12 in one step, is encoded, a share of it is lost. The residual would
bring this share back in every step until it has sunk below the gradients.



Residuals of ordinary training are bounded. With a worker's gradients of norm at most G and a codec that keeps
a share δ of the energy it encodes, residuals stay below 2·√(1 − δ)/δ · G (Karimireddy et al., "Error feedback
fixes SignSGD", 2019, Lemma 3). `ReportsLosses.largest_residual` gives a codec's bound in units of G. A
residual that exceeds `MARGIN` times this bound cannot come from such gradients, so its large coordinates are
dropped.

G is estimated by the median norm of the latest gradients, which one or two spikes do not change. Each worker
uses its own gradients, so ranks need not communicate.
"""

from __future__ import annotations

import math
from collections import UserDict
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, TypeVar, cast

import torch
from torch import Tensor

Value = TypeVar("Value")


class Place(NamedTuple):
    """Memory for a tensor that lasts from step to step: its `value`, and its value `before` the step."""

    value: Tensor
    before: Tensor


class StepMemory(UserDict[str, Value]):
    """Values by name, of a parameter or (`Layout.key`) a bucket, that steps set and skipped steps leave
    unchanged.

    From the time when a step first sets a value until the step ends, the previous value is kept, too. The
    owner calls `end_step` or `skip_step` once per step; it may replace values but must not write into them.

    Captured rounds read and write a tensor at one address: `fix` gives it a place, where it stays. Setting it
    then copies the tensor there.
    """

    def __init__(self) -> None:
        super().__init__()
        self._before: dict[str, Value | None] = {}
        self._places: dict[str, Place] = {}

    def __setitem__(self, name: str, value: Value) -> None:
        place = self._places.get(name)
        if place is None:
            self._before.setdefault(name, self.data.get(name))
            self.data[name] = value
            return
        if name not in self._before:
            place.before.copy_(place.value)
            self.set_by_launch([name])
        place.value.copy_(cast(Tensor, value))

    def fix(self, name: str, first: Tensor) -> None:
        """Gives a tensor a place of its own on the device of `first`, which is its value if it has none.
        Called before the step sets it."""
        if name not in self._places:
            value = cast(Tensor, self.data.get(name, first)).to(first.device, copy=True)
            self._places[name] = Place(value, value.clone())
            self.data[name] = cast(Value, value)

    def set_by_launch(self, names: Sequence[str]) -> None:
        """States that a launch sets these values, which have places, in this step."""
        for name in names:
            self._before.setdefault(name, cast(Value, self._places[name].before))

    def end_step(self) -> None:
        """Commit the step: forget the previous values."""
        self._before.clear()

    def skip_step(self) -> None:
        """Discard the step: restore the previous values."""
        self._restore(list(self._before))

    def take_back(self, names: Collection[str]) -> None:
        """Discard the step for these names only: restore their previous values."""
        self._restore(self._before.keys() & set(names))

    def _restore(self, names: Collection[str]) -> None:
        for name in names:
            value, place = self._before.pop(name), self._places.get(name)
            if place is not None:
                place.value.copy_(place.before)
            elif value is None:
                del self.data[name]
            else:
                self.data[name] = value

    def load(self, values: Mapping[str, Value]) -> None:
        """Replace all values; called between two steps. A tensor with a place that has no value is zero."""
        self.data = dict(values)
        self._before.clear()
        for name, place in self._places.items():
            if name in values:
                place.value.copy_(cast(Tensor, values[name]))
            else:
                place.value.zero_()
            self.data[name] = cast(Value, place.value)


class Memories(UserDict[str, StepMemory[Tensor]]):
    """Memories of tensors, by the prefix of their keys in a codec's saved state: `error/`, `norms/`."""

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
        """Replace all memories by a saved state; returns the entries that belong to none of them."""
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
    """The largest residual, relative to the norm of the gradient, of a codec that keeps at least this share
    of the encoded energy."""
    return 2 * math.sqrt(1 - share) / share


class LatestNorms(StepMemory[Tensor]):
    """The norms of each bucket's latest gradients, by the name of the bucket's first parameter: (LATEST,)
    float32 each, the newest last, zeros if there were fewer."""

    def median(self, bucket: str, gradient: Tensor) -> Tensor:
        """Add the norm of `gradient`, (numel,) float32, and return the median of the latest norms, ()
        float32: the lower of the two middle ones, NaN if there is none yet.

        Norms that are zero, overflow or are not finite are ignored.
        """
        norm = torch.linalg.vector_norm(gradient)
        norms = self.get(bucket)
        if norms is None:
            norms = torch.zeros(LATEST, device=norm.device)
        norms = norms.to(norm.device)
        taken = torch.cat((norms[1:], norm[None]))
        norms = torch.where(norm.isfinite() & (norm > 0), taken, norms)
        self[bucket] = norms
        return lower_median(norms.masked_fill(norms == 0, torch.nan))

    def take_back(self, names: Collection[str]) -> None:
        """Does nothing: a gradient's norm is a valid sample whether its mean is applied or not."""


def lower_median(values: Tensor) -> Tensor:
    """`values.nanmedian()`, of (n,) float32, without the host, which PyTorch has read an index."""
    middle = (values.isnan().logical_not().sum() - 1).clamp_(min=0) // 2
    return values.sort().values.index_select(0, middle.view(1)).view(())


def bounded(residual: Tensor, norm: Tensor, times: float) -> Tensor:
    """`residual`, (numel,) float32 and finite, if its norm is at most `times` the recent gradients' `norm`.

    Otherwise the residual with the coordinates set to 0 that alone exceed `norm`, () float32; all zeros if it
    is still too large. If the norm is not known (NaN), the residual is unchanged.
    """
    if residual.device.type == "cpu" and not _exceeds(residual, norm * times):
        return residual  # elsewhere the host would have to wait for the answer
    return without_excess(residual, norm, times)


def without_excess(residual: Tensor, norm: Tensor, times: float) -> Tensor:
    """`bounded`, without asking how large the norm is."""
    excess = _exceeds(residual, norm * times) & (residual.abs() > norm)
    rest = residual.masked_fill(excess, 0.0)
    return rest.masked_fill_(_exceeds(rest, norm * times), 0.0)


def _exceeds(residual: Tensor, bound: Tensor) -> Tensor:
    return torch.gt(torch.linalg.vector_norm(residual), bound)
