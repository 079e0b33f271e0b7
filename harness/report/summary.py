"""The report's first screen: of each paper what holds, what does not and what could not be told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from gradwire.harness.report.claims.claim import Basis
from gradwire.harness.report.claims.verdict import LATE, Reason, Verdict, Word

HELD = (Word.REPRODUCED, Word.LATE_REPRODUCED)
FAILED = (Word.NOT_REPRODUCED, Word.LATE_NOT_REPRODUCED)
OTHERS = "other claims"
LEAST_DECIDED = 1 / 3
"""The share of a topic's claims that were tried above which it counts as decided."""

HOLDS, IN_PART, FAILS = "Holds", "Holds in part", "Does not hold"
UNTOLD, WHY, NOT_RUN = "Undecided here", "Why some are undecided", "Has not run"
PARTS = (HOLDS, IN_PART, FAILS, UNTOLD, WHY, NOT_RUN)


@dataclass(frozen=True)
class Topic:
    """The claims on one subject, counted, and the part of the summary that they belong to."""

    name: str
    part: str
    held: int
    failed: int
    untold: int
    not_run: int

    @classmethod
    def of(cls, name: str, verdicts: Sequence[Verdict]) -> Topic:
        """The topic in the part that says most of it: a decided one if more than a third of what was tried
        is, which holds in part if some claims do and some do not."""
        held, failed, untold, not_run = (
            _number(verdicts, kind) for kind in (_held, _failed, _untold, _not_run)
        )
        if held + failed + untold == 0:
            part = NOT_RUN
        elif held + failed <= LEAST_DECIDED * (held + failed + untold):
            part = UNTOLD
        elif held == 0:
            part = FAILS
        else:
            part = IN_PART if failed else HOLDS
        return cls(name, part, held, failed, untold, not_run)

    @property
    def size(self) -> int:
        return self.held + self.failed + self.untold + self.not_run

    @property
    def text(self) -> str:
        """`simulated rounds (2 hold, 1 does not, 1 undecided)`; of a topic that has not run its number."""
        if self.part == NOT_RUN:
            return f"{self.name} ({self.size})"
        counts = (
            (self.held, "holds" if self.held == 1 else "hold"),
            (self.failed, "does not" if self.failed == 1 else "do not"),
            (self.untold, "undecided"),
            (self.not_run, "not run"),
        )
        return f"{self.name} ({', '.join(f'{number} {word}' for number, word in counts if number)})"


@dataclass(frozen=True)
class Outcome:
    """The verdicts on one paper, counted and in words; `topics` are names with patterns of claims' ids."""

    verdicts: Sequence[Verdict]
    topics: Mapping[str, Sequence[str]]

    @property
    def tried(self) -> list[Verdict]:
        """Those about runs, which alone tell something."""
        return [each for each in self.verdicts if each.claim.basis in (Basis.RUNS, Basis.NOTHING)]

    @property
    def held(self) -> int:
        return _number(self.tried, _held)

    @property
    def failed(self) -> int:
        return _number(self.tried, _failed)

    @property
    def predicted(self) -> tuple[int, int]:
        """Counts the verdicts on predictions: those that hold, and those that do not."""
        found = [each for each in self.tried if each.predicted]
        return _number(found, _held), _number(found, _failed)

    @property
    def measured(self) -> tuple[int, int]:
        """Counts the verdicts on what was trained or timed: those that hold, and those that do not."""
        held, failed = self.predicted
        return self.held - held, self.failed - failed

    @property
    def claimed_first(self) -> tuple[int, int]:
        """Counts the verdicts on what was trained or timed after the claim was written: those that hold, and
        those that do not."""
        found = [each for each in self.tried if not each.predicted and each.word not in LATE.values()]
        return _number(found, _held), _number(found, _failed)

    @property
    def by_our_threshold(self) -> int:
        """The informative verdicts that rest on a threshold of ours, as the paper prints no figure."""
        return _number(self.tried, lambda each: each.word.informative and each.by_our_threshold)

    @property
    def untold(self) -> int:
        return _number(self.tried, _untold)

    @property
    def not_run(self) -> int:
        return _number(self.tried, _not_run)

    @property
    def late(self) -> int:
        """The informative verdicts of claims that were written, or changed, after their records."""
        return _number(self.tried, lambda each: each.word in LATE.values())

    @property
    def itself(self) -> tuple[int, int]:
        """Counts how often the paper's figures agree with one another, and how often not."""
        words = Counter(each.word for each in self.verdicts)
        return words[Word.CONSISTENT], words[Word.INCONSISTENT]

    @property
    def identities(self) -> int:
        """The claims that hold by construction of the model, which tell nothing."""
        return _number(self.verdicts, lambda each: each.claim.basis is Basis.MODEL)

    @property
    def counts(self) -> str:
        """The verdicts in one sentence: "Of 48 claims about runs 4 hold, 13 do not, and 31 have not run."."""
        said = (
            (self.held, "holds", "hold"),
            (self.failed, "does not", "do not"),
            (self.untold, "is undecided", "are undecided"),
            (self.not_run, "has not run", "have not run"),
        )
        shown = [f"{number} {one if number == 1 else many}" for number, one, many in said if number]
        return f"Of {len(self.tried)} claims about runs {listed(shown) or 'none is decided'}."

    @property
    def parts(self) -> list[tuple[str, str]]:
        """(what, topics): what holds, in whole or in part, what does not, what could not be told, and why
        not, and what has not run.

        Each topic stands in one of them, with its claims counted. The reasons are those of all claims that
        could not be told.
        """
        topics = sorted(self._topics(), key=lambda each: -each.size)
        found = {what: ", ".join(each.text for each in topics if each.part == what) for what in PARTS}
        found[WHY] = _why(self.tried)
        return [(what, text) for what, text in found.items() if text]

    def _topics(self) -> list[Topic]:
        found: dict[str, list[Verdict]] = {}
        for verdict in self.tried:
            found.setdefault(self._topic(verdict), []).append(verdict)
        return [Topic.of(name, verdicts) for name, verdicts in found.items()]

    def _topic(self, verdict: Verdict) -> str:
        for name, patterns in self.topics.items():
            if any(fnmatchcase(verdict.claim.id, pattern) for pattern in patterns):
                return name
        return OTHERS


def listed(parts: Sequence[str]) -> str:
    """`a, b, and c`; `a and b`."""
    if len(parts) < 3:
        return " and ".join(parts)
    return f"{', '.join(parts[:-1])}, and {parts[-1]}"


def _why(verdicts: Sequence[Verdict]) -> str:
    """The reasons why something could not be told, with how often each is given, the most frequent first."""
    words = {Reason.SIZE: "size too small", Reason.NO_FOIL: "nothing recorded fails the claim"}
    reasons = Counter(
        words.get(each.reason, str(each.reason))
        for each in verdicts
        if _untold(each) and each.reason is not None
    )
    return ", ".join(f"{reason} ({number})" for reason, number in reasons.most_common())


def _held(verdict: Verdict) -> bool:
    return verdict.word in HELD


def _failed(verdict: Verdict) -> bool:
    return verdict.word in FAILED


def _untold(verdict: Verdict) -> bool:
    return verdict.word is Word.NOT_TESTABLE


def _not_run(verdict: Verdict) -> bool:
    return verdict.word is Word.NOT_RUN


def _number(verdicts: Sequence[Verdict], kind: Callable[[Verdict], bool]) -> int:
    return sum(map(kind, verdicts))


def counted(verdicts: Sequence[Verdict]) -> dict[Word, int]:
    """The number of verdicts of each word, in the order of the words, those that occur."""
    return {word: number for word in Word if (number := sum(each.word is word for each in verdicts))}


def informative(verdicts: Sequence[Verdict]) -> str:
    """The count of informative verdicts in words: "12 informative verdicts: 9 reproduced, 3 not"."""
    told = [each for each in verdicts if each.word.informative]
    held = _number(told, _held)
    about = (
        (_number(told, lambda each: each.predicted), "on predictions of our models"),
        (_number(told, lambda each: each.by_our_threshold), "by thresholds of ours"),
        (_number(told, lambda each: each.word in LATE.values()), "by claims written after their records"),
    )
    of_these = [f"{'all' if number == len(told) else number} {what}" for number, what in about if number]
    after = f"; {', '.join(of_these)}" if of_these else ""
    return f"{len(told)} informative verdicts: {held} reproduced, {len(told) - held} not{after}"
