"""The cost of marks, and how often they are therefore taken.

A mark is a node of the graph, and a round has hundreds of short kernels: on a GPU marks can take a noticeable
share of it. So a bucket's round is captured twice, with marks and without. At first every second step takes
them. Once both kinds of launches have been timed, marks are taken in as few steps as needed to cost at most
`LARGEST_SHARE` of the rounds' time. All ranks take them in the same steps.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from statistics import median

LARGEST_SHARE = 0.02
"""The share of the time of all rounds that marks may take."""

FEWEST = 3
"""Launches of each kind before a bucket's count."""

MOST_STEPS = 100
"""Marks are taken in one step of these at least."""

TRIES = 20
"""The number of times that ranks ask one another before they keep to every second step."""

UNKNOWN = -1.0
"""The share of a rank that has not timed enough launches."""


class MarkCost:
    """Times of launches with and without marks, in seconds, and the decision made from them."""

    def __init__(self) -> None:
        self.every = 2
        """Marks are taken in one of so many steps."""
        self.share: float | None = None
        """The share that marks add to a round's time, the largest of all ranks; None before the decision."""
        self._seconds: dict[Hashable, tuple[list[float], list[float]]] = {}
        self._tries = 0

    @property
    def is_open(self) -> bool:
        """True while launches are to be timed; the same on all ranks between the same two steps."""
        return self.share is None and self._tries < TRIES

    def takes(self, step: int) -> bool:
        """True if the step numbered `step` takes marks: steps that `measure.trace_every` keeps, if it is a
        multiple of `every`."""
        return (step + 1) % self.every == 0

    def add(self, bucket: Hashable, marked: bool, seconds: float) -> None:
        """Adds the time of one launch of a bucket."""
        self._seconds.setdefault(bucket, ([], []))[marked].append(seconds)

    def own_share(self) -> float:
        """The share by which medians with marks exceed those without, over all buckets with enough launches
        of both kinds; `UNKNOWN` without any."""
        known = [both for both in self._seconds.values() if min(map(len, both)) >= FEWEST]
        if not known:
            return UNKNOWN
        plain, marked = (sum(median(both[kind]) for both in known) for kind in (False, True))
        return max(0.0, marked / plain - 1)

    def agree(self, shares: Sequence[float]) -> None:
        """Takes the shares of all ranks; decides if all of them are known."""
        self._tries += 1
        if min(shares) >= 0:
            self.share = max(shares)
            self.every = min(MOST_STEPS, max(1, math.ceil(self.share / LARGEST_SHARE)))
            self._seconds.clear()
