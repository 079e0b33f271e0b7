"""The report's first screen: of each paper what holds, what does not and what could not be told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from gradwire.harness.report.claims.claim import Basis
from gradwire.harness.report.claims.verdict import LATE, Verdict, Word

HELD = (Word.REPRODUCED, Word.LATE_REPRODUCED)
FAILED = (Word.NOT_REPRODUCED, Word.LATE_NOT_REPRODUCED)
OTHERS = "other claims"
MOST_TOPICS = 3
"""The topics that a part names; the others are counted."""


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
    def parts(self) -> list[tuple[str, str]]:
        """(what, sentence): what holds, what does not, what could not be told, and what has not run."""
        about = (
            ("What holds", self.held, _held),
            ("What does not", self.failed, _failed),
            ("What could not be told here", self.untold, _untold),
            ("What has not run", self.not_run, _not_run),
        )
        return [(what, f"{number}: {self._topics(kind)}") for what, number, kind in about if number] or [
            ("Nothing", "no claim about runs is declared")
        ]

    @property
    def sentence(self) -> str:
        """All of it in one sentence: "Of 48 claims about runs 4 hold: …; 13 do not: …; 30 could not be told
        here: …."."""
        said = (
            (self.held, "holds", "hold", _held),
            (self.failed, "does not", "do not", _failed),
            (self.untold, "could not be told here", "could not be told here", _untold),
            (self.not_run, "has not run", "have not run", _not_run),
        )
        parts = [
            f"{number} {one if number == 1 else many}: {self._topics(kind)}"
            for number, one, many, kind in said
            if number
        ]
        return f"Of {len(self.tried)} claims about runs {'; '.join(parts) or 'none is decided'}."

    def _topics(self, kind: Callable[[Verdict], bool]) -> str:
        """The topics of such verdicts, those with the most first: `time to accuracy (14 of 15)`; and why, if
        they have reasons."""
        found: dict[str, list[Verdict]] = {}
        for verdict in self.tried:
            found.setdefault(self._topic(verdict), []).append(verdict)
        numbers = [(name, sum(map(kind, own)), len(own)) for name, own in found.items()]
        numbers = sorted((each for each in numbers if each[1]), key=lambda each: -each[1])
        shown = [f"{name} ({number} of {of})" for name, number, of in numbers[:MOST_TOPICS]]
        rest = sum(number for _, number, _ in numbers[MOST_TOPICS:])
        text = ", ".join([*shown, *([f"and {rest} more"] if rest else [])])
        return f"{text}{_why([each for each in self.tried if kind(each)])}"

    def _topic(self, verdict: Verdict) -> str:
        for name, patterns in self.topics.items():
            if any(fnmatchcase(verdict.claim.id, pattern) for pattern in patterns):
                return name
        return OTHERS


def _why(verdicts: Sequence[Verdict]) -> str:
    """The reasons with how often each is given, the most frequent first."""
    reasons = Counter(str(each.reason) for each in verdicts if each.reason is not None)
    listed = ", ".join(f"{reason} {number}" for reason, number in reasons.most_common())
    return f" (why: {listed})" if listed else ""


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
