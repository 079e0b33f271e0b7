"""Codecs that adapt to what all ranks have seen: numbers of a step, agreed on by all, decide for a later one.

What a rank has counted in step t is known when the step ends. It is reduced over the ranks in one message
with the first metadata of step t+1, so it costs no message of its own. When step t+1 ends, every rank decides
from the same numbers, and step t+2 follows the decision. So decisions come one step late, and in all buckets
of a step alike, however many of them are under way at once.

`wrappers/decisions` carries this out around any codec that `Adapts`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from gradwire.codecs.decided import Numbers
from gradwire.codecs.interface import Decision, Op, Round

Feedback = Mapping[str, tuple[Tensor, Op]]
"""A rank's numbers by name, one-dimensional, and how ranks combine them. Integers stay exact."""


@dataclass(frozen=True)
class Agreed:
    """What all ranks know alike when a step ends.

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
    """What a codec gives that adapts to what all ranks have seen. It follows `Round.decision`.

    The names in `feedback()` and in decisions are those of a new codec in every step, and so are the lengths,
    unless they are zero there. Both are kept in checkpoints beside the codec's own state, whose keys differ.
    """

    first_decision: Decision = {}
    """What is followed until the first decision is made."""

    hindsight: Mapping[str, int] = {}
    """Names in decisions that tell what was done, and how many steps before. A replay is told in the step
    itself, as `replayed/<name>` in its decision."""

    decides: Mapping[str, Numbers] = {}
    """What decisions may say, by name: a file's are compared with it before a run begins. Names that are not
    here may have any number where `first_decision` has one, and any list where that has a list."""

    def refuses_decision(self, decision: Decision) -> str | None:
        """Why a file's decision, whose numbers `decides` allows, is none that this codec makes; None if it is
        one."""
        return None

    def refuses_in(self, decision: Decision, this_round: Round) -> str | None:
        """Why a file's decision cannot be followed in a round: it says nothing of this bucket, for example.
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
        """What the next step is to follow, the same on all ranks: a function of `agreed` and the settings.

        Called before `end_step` or `skip_step`. The decision of a skipped step is not used.
        """
        ...
