"""Tensors of which each rank has values of its own, where ranks share a process and so a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor


class RankTensors:
    """`tensors`, parts of a model or of its optimizer, hold the values of one of `ranks` at a time.

    At the beginning all ranks have the values that are there.
    """

    def __init__(self, tensors: Mapping[str, Tensor], ranks: Sequence[int]) -> None:
        self._tensors, self._ranks = dict(tensors), ranks
        self._kept: dict[int, dict[str, Tensor]] = {}
        self._loaded: int | None = ranks[0]
        self._common = self._current() if len(ranks) > 1 else {}

    def load(self, rank: int) -> None:
        """Puts the values of `rank` in their places."""
        if rank == self._loaded:
            return
        self.park()
        with torch.no_grad():
            for name, value in self._kept.get(rank, self._common).items():
                self._tensors[name].copy_(value)
        self._loaded = rank

    def park(self) -> None:
        """Keeps the values that are in place; what is written there from now on belongs to no rank."""
        if self._loaded is not None:
            self._kept[self._loaded] = self._current()
            self._loaded = None

    def _current(self) -> dict[str, Tensor]:
        return {name: tensor.detach().clone() for name, tensor in self._tensors.items()}
