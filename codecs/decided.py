"""What a codec's decisions may say: which numbers each name has, checked where another run's are followed.

A codec's own decisions need no check. Those of a file may have been damaged, or changed by hand.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gradwire.codecs.wording import shortened


@dataclass(frozen=True)
class Numbers:
    """A list of numbers from `low` to `high`, or one number."""

    low: float
    high: float
    whole: bool = False
    listed: bool = True
    count: int | None = None
    """How many a list has; None: any number of them."""
    unknown: bool = False
    """Whether −inf may stand for a number that is not known."""

    def refusal(self, value: float | Sequence[float]) -> str | None:
        """What is wrong with a value, to be said behind its name; None if nothing is."""
        if isinstance(value, int | float) is self.listed:
            return f"is {'one number' if self.listed else 'a list'}, not {self.allowed()}"
        numbers = value if isinstance(value, Sequence) else [value]
        if self.count is not None and len(numbers) != self.count:
            return f"has {len(numbers)} numbers, not {self.count}"
        if self._all_allowed(numbers):
            return None
        wrong = next(number for number in numbers if not self._all_allowed([number]))
        return f"has {shortened(str(wrong), 20)}, not {self.allowed()}"

    def _all_allowed(self, numbers: Sequence[float]) -> bool:
        """The functions of the language are quick: decisions of 100,000 steps are many numbers."""
        known = [number for number in numbers if number != -math.inf] if self.unknown else numbers
        if not known:
            return True
        try:
            within = all(map(math.isfinite, known)) and self.low <= min(known) and max(known) <= self.high
        except OverflowError:  # a whole number of hundreds of digits
            return False
        return within and not (self.whole and set(map(type, known)) - {int})

    def allowed(self) -> str:
        kind = "whole number" if self.whole else "number"
        kind = f"a list of {kind}s" if self.listed else f"a {kind}"
        return f"{kind} from {self.low:.9g} to {self.high:.9g}{', or -inf' if self.unknown else ''}"
