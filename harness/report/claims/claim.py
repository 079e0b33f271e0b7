"""Claims of a paper: what each says, the predicate that decides it, and what a record has to show for it."""

from __future__ import annotations

import ast
import inspect
import math
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property, partial

from gradwire.harness.report.claims.digest import digest_of
from gradwire.harness.report.claims.effects import MOST_TOLERANCE, Effects
from gradwire.harness.report.claims.evidence import Evidence, Foil
from gradwire.harness.report.evaluation import SeedFigure

SIZES = ("tiny", "small", "gpu", "paper")
"""Sizes of sweeps, the smallest first."""

Predicate = Callable[[Evidence], bool | Effects]
Activity = Callable[[Evidence], bool]
"""Returns whether the mechanism that a claim is about has acted; its docstring says what acting means."""


class Basis(StrEnum):
    """The evidence that decides a claim."""

    RUNS = "runs"
    PAPER = "the paper itself"  # its text against its own tables
    MODEL = "the model itself"  # identities and arithmetic, which no run can refute
    NOTHING = "nothing"  # why is in `why`


@dataclass(frozen=True)
class Chance:
    """The accuracy of guesses, and how many questions were asked."""

    level: float
    questions: int
    score: Callable[[Evidence], SeedFigure]  # of training without compression

    def explains(self, evidence: Evidence) -> bool:
        """Returns whether the score is within two standard errors of guesses."""
        error = math.sqrt(self.level * (1 - self.level) / self.questions)
        return abs(self.score(evidence).mean - self.level) <= 2 * error


@dataclass(frozen=True)
class Claim:
    """One claim of a paper.

    Raises ValueError for a tolerance of more than a fifth of the effect, and for a foil beside a reason why
    there is none.
    """

    id: str
    paper: str
    printed: str  # where: "Section 5.1, Table 3"
    says: str  # in one plain sentence
    value: str = ""  # the paper's own figures
    sweeps: tuple[str, ...] = ()  # the first one is meant where a figure names none
    size: str = "small"  # the smallest one that can tell
    holds: Predicate | None = None
    why: str = ""  # without a predicate: why there is none
    basis: Basis = Basis.RUNS
    tolerance: float = MOST_TOLERANCE  # a share of the effect
    foil: Foil | None = None  # what fails the claim in its own sweep
    unfailed: str = ""  # without a foil: why nothing in its sweep has to fail it
    active: Activity | None = None
    chance: Chance | None = None
    rules: str = ""  # a later change of the rules that its verdict rests on

    def __post_init__(self) -> None:
        if not 0 <= self.tolerance <= MOST_TOLERANCE:
            raise ValueError(
                f"claim {self.id} has a tolerance of {self.tolerance:g} of its effect; it is at most "
                f"{MOST_TOLERANCE:g}"
            )
        if self.foil is not None and self.unfailed:
            raise ValueError(f"claim {self.id} has a foil and says why there is none; leave one of them out")

    @property
    def formula(self) -> str:
        """The source of the predicate, without its name and docstring."""
        if self.holds is None:
            return ""
        source = textwrap.dedent(inspect.getsource(self.holds))
        function = ast.parse(source).body[0]
        assert isinstance(function, ast.FunctionDef)
        return "\n".join(ast.get_source_segment(source, each) or "" for each in function.body[1:])

    @cached_property
    def digest(self) -> str:
        """sha256 of its text, predicate, kind, tolerance and foil, wherever the source stands, and of the
        later rules that it rests on."""
        terms = [self.says, self.basis, self.size, f"{self.tolerance:g}", repr(self.foil), *self.sweeps]
        terms += [self.rules] if self.rules else []
        functions = [self.holds, self.active, self.chance.score if self.chance is not None else None]
        if self.chance is not None:
            terms.append(f"{self.chance.level:g} of {self.chance.questions}")
        return digest_of(terms, [each for each in functions if each is not None])


class Claims:
    """The claims of one paper, in the order in which they are shown."""

    def __init__(self, paper: str) -> None:
        self.paper = paper
        self.found: list[Claim] = []

    def on(self, *sweeps: str) -> Callable[..., Callable[[Predicate], Predicate]]:
        """A decorator for predicates on records of these sweeps, which return effects."""
        return partial(self._claim, sweeps, Basis.RUNS)

    def by_construction(self, *sweeps: str) -> Callable[..., Callable[[Predicate], Predicate]]:
        """A decorator for identities and arithmetic of the model, which hold whatever is recorded."""
        return partial(self._claim, sweeps, Basis.MODEL)

    def of_print(self) -> Callable[..., Callable[[Predicate], Predicate]]:
        """A decorator for predicates on printed figures alone: a paper against itself."""
        return partial(self._claim, (), Basis.PAPER)

    def _claim(
        self,
        sweeps: tuple[str, ...],
        basis: Basis,
        name: str,
        printed: str,
        value: str = "",
        size: str = "small",
        *,
        tolerance: float = MOST_TOLERANCE,
        foil: Foil | None = None,
        unfailed: str = "",
        active: Activity | None = None,
        chance: Chance | None = None,
        rules: str = "",
    ) -> Callable[[Predicate], Predicate]:
        """Makes a predicate a claim; its docstring is the text of the claim."""
        assert size in SIZES, f"{name} has size={size}; use {', '.join(SIZES)}"

        def add(holds: Predicate) -> Predicate:
            says = " ".join((holds.__doc__ or "").split())
            # fmt: off
            self.found.append(Claim(
                name, self.paper, printed, says, value, sweeps, size, holds, basis=basis, tolerance=tolerance,
                foil=foil, unfailed=unfailed, active=active, chance=chance, rules=rules,
            ))
            # fmt: on
            return holds

        return add

    def without_predicate(self, name: str, printed: str, says: str, value: str, why: str) -> None:
        """Adds a claim that no record can decide, with the reason."""
        self.found.append(Claim(name, self.paper, printed, says, value, why=why, basis=Basis.NOTHING))


def rank(size: str) -> int:
    """The rank of a size by its magnitude; a user's own size counts as the smallest."""
    return SIZES.index(size) if size in SIZES else -1


def largest(sizes: Sequence[str]) -> list[int]:
    """The ranks of sizes, the largest first."""
    return sorted({rank(size) for size in sizes}, reverse=True)
