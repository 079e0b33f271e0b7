"""Codecs whose settings follow what all ranks have counted, and the numbers that their decisions may hold.

What a rank has counted in step t is known when the step ends. It is reduced over the ranks in one message
with the first metadata of step t+1, so it costs no message of its own. When step t+1 ends, every rank decides
from the same numbers, and step t+2 follows the decision. So decisions come one step late, and in all buckets
of a step alike, however many of them are under way at once.

`wrappers/decisions` carries this out around any codec that `Adapts`.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from gradwire.codecs.interface import Decision, Op, Round
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
        """The fault of a value, to follow its name in a message; None if there is none."""
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


Feedback = Mapping[str, tuple[Tensor, Op]]
"""A rank's numbers by name, one-dimensional, and how ranks combine them. Integers stay exact."""


@dataclass(frozen=True)
class Agreed:
    """Numbers that all ranks share as a step ends.

    `size` is the number of ranks and `decision` what the step followed. `feedback` is that of the last step
    before it that counted, combined over the ranks, on the CPU. Where the ranks hold one of several stages of
    a model, they are those of that stage, and `stages` has the feedback of each stage in their order; a
    decision for all stages is made of these alone. With one stage it has one entry, `feedback`.
    """

    step: int
    size: int
    decision: Decision
    feedback: Mapping[str, Tensor]
    stages: Sequence[Mapping[str, Tensor]]


@runtime_checkable
class Adapts(Protocol):
    """A codec that adapts to what all ranks have seen and follows `Round.decision`.

    The names in `feedback()` and in decisions are those of a new codec in every step, and so are the lengths,
    unless they are zero there. Both are kept in checkpoints with the codec's own state, whose keys differ.
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
        """The reason why a file's decision, whose numbers `decides` allows, does not fit this codec; None
        if it does."""
        return None

    def refuses_in(self, decision: Decision, this_round: Round) -> str | None:
        """The reason why a file's decision cannot be followed in a round, e.g. it lacks this bucket.
        None if it can."""
        return None

    @abstractmethod
    def feedback(self) -> Feedback:
        """This rank's numbers of the step that is about to end, zeros in a new codec.

        Called before `end_step`, which forgets them. Not called for a skipped step: what it has counted says
        nothing, and `skip_step` forgets it.
        """
        ...

    @abstractmethod
    def decide(self, agreed: Agreed) -> Decision:
        """The decision for the next step, the same on all ranks: a function of `agreed` and the settings.

        Called before `end_step` or `skip_step`. The decision of a skipped step is not used.
        """
        ...
