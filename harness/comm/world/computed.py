"""A rank's computation on a virtual cluster, between marks whose times are known when the step has ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class Interval(NamedTuple):
    """Work between two marks of the world's clock."""

    start: Any
    end: Any


class ComputedStretch(NamedTuple):
    """A stretch of a rank's computation: what the rank has done, and what another one did on its behalf."""

    own: Interval
    replicated: tuple[Interval, ...] = ()


class Computed:
    """A rank's computation in one step, stretch after stretch.

    A moment of it is the number of stretches that have ended; `moments` says how long it has computed by
    then.
    """

    def __init__(self) -> None:
        self._stretches: list[ComputedStretch] = []

    @property
    def now(self) -> int:
        """The current moment."""
        return len(self._stretches)

    def add(self, stretch: ComputedStretch) -> None:
        """Adds the next stretch."""
        self._stretches.append(stretch)

    def moments(self, seconds: Callable[[Any], float]) -> list[float]:
        """The seconds of computation at each moment, from 0 on; `seconds` converts marks."""
        found = [0.0]
        for own, replicated in self._stretches:
            began = seconds(own.start)
            for start, end in replicated:
                began -= seconds(end) - seconds(start)
            found.append(found[-1] + (seconds(own.end) - began))
        return found
