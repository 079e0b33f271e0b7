"""What each parameter puts into a bucket's two all-reduces."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class Exchange(Protocol):
    """One parameter's part in one round of one worker, in the order of the calls; everything is float32."""

    def first(self) -> Tensor:
        """What goes into the first all-reduce, of any shape."""
        ...

    def second(self, mean: Tensor) -> Tensor:
        """What goes into the second one, given the first one's mean over the workers."""
        ...

    def result(self, mean: Tensor) -> Tensor:
        """The parameter's gradient, (numel,), given the second one's mean: the same on all workers."""
        ...

    def lost(self, delivered: Tensor) -> Tensor:
        """(numel,): what error feedback sends next time; `delivered` is the result in the caller's dtype."""
        ...


class Uncompressed:
    """A parameter that travels as it is, in the first all-reduce."""

    def __init__(self, values: Tensor) -> None:
        """`values` (numel,) float32, with what was lost of them before."""
        self._values = self._mean = values

    def first(self) -> Tensor:
        return self._values

    def second(self, mean: Tensor) -> Tensor:
        self._mean = mean
        return mean[:0]

    def result(self, mean: Tensor) -> Tensor:
        return self._mean

    def lost(self, delivered: Tensor) -> Tensor:
        return torch.zeros_like(self._values)
