"""Codecs that adapt their settings to counts from all ranks, and the numbers that their decisions may hold.

A rank's counts of step t are complete when the step ends. They are reduced over the ranks together with the
first metadata of step t+1, so they cost no message of their own. When step t+1 ends, every rank decides from
the same numbers, and step t+2 follows the decision. So decisions come one step late, and all buckets of a
step follow the same one, however many of them are in flight.

`wrappers/decisions` carries this out around any codec that `Adapts`.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from gradwire.codecs.collectives import Op
from gradwire.codecs.interface import Decision, Round
from gradwire.codecs.wording import shortened


@dataclass(frozen=True)
class Numbers:
    """A list of numbers from `low` to `high`, or one number."""

    low: float
    high: float
    whole: bool = False
    listed: bool = True
    count: int | None = None
    """Length of a list; None: any."""
    unknown: bool = False
    """−inf may stand for a number that is not known."""

    def refusal(self, value: float | Sequence[float]) -> str | None:
        """The reason why `value` is not allowed, worded to follow the field's name in a message; None if it
        is allowed."""
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
        """Checks lists with C-speed builtins: the decisions of 100,000 steps hold many numbers."""
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


Feedback = Mapping[str, tuple[Tensor, Op]]
"""A rank's numbers by name, one-dimensional, and how ranks combine them. Integers stay exact."""


@dataclass(frozen=True)
class Agreed:
    """Numbers that all ranks share as a step ends.

    `size` is the number of ranks, and `decision` is the decision that the step followed. `feedback` is the
    feedback of the last preceding step that was not skipped, combined over the ranks, on the CPU. In a
    pipeline both describe this rank's own stage, and `stages` holds the feedback of every stage in order; a
    decision for all stages must be computed from `stages` alone. Without a pipeline `stages` has the single
    entry `feedback`.
    """

    step: int
    size: int
    decision: Decision
    feedback: Mapping[str, Tensor]
    stages: Sequence[Mapping[str, Tensor]]


@runtime_checkable
class Adapts(Protocol):
    """A codec that adapts to counts from all ranks and follows `Round.decision`.

    Feedback and decisions have the same names and lengths in every step as in a new codec, except that a
    length may be zero in a new codec. Both are saved in checkpoints next to the codec's own state, so that
    state must use other keys.
    """

    first_decision: Decision = {}
    """The decision in force until the first one is made."""

    hindsight: Mapping[str, int] = {}
    """Names in decisions that record what was done, and how many steps before. A run that
    follows them gets them in the step itself, as `followed/<name>` in its decision."""

    decides: Mapping[str, Numbers] = {}
    """The numbers that decisions may hold, by name: a file's are checked before a run begins. Names that are
    not here may have any number where `first_decision` has one, and any list where that has a list."""

    def refuses_decision(self, decision: Decision) -> str | None:
        """The reason why a decision from a file does not fit this codec; None if it fits. Its numbers have
        already been checked against `decides`."""
        return None

    def refuses_in(self, decision: Decision, this_round: Round) -> str | None:
        """The reason why a decision from a file cannot be followed in this round, e.g. because it lacks this
        bucket; None if it can."""
        return None

    @abstractmethod
    def feedback(self) -> Feedback:
        """This rank's numbers of the step that is about to end, zeros in a new codec.

        Called before `end_step`, which resets them. Not called for a skipped step, whose counts mean nothing;
        `skip_step` discards these.
        """
        ...

    @abstractmethod
    def decide(self, agreed: Agreed) -> Decision:
        """The decision for the next step, the same on all ranks: a function of `agreed` and the settings.

        Called before `end_step` or `skip_step`. The decision of a skipped step is not used.
        """
        ...
