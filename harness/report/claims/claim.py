"""Claims of a paper, each with a predicate that decides it, and the verdicts on them."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

from gradwire.harness.files.reading import printable
from gradwire.harness.report.busy_times import busy_cells
from gradwire.harness.report.claims.evidence import Evidence, Used
from gradwire.harness.report.claims.figures import Known
from gradwire.harness.report.evaluation import ClaimError, MissingError, SeedFigure, UnfinishedError
from gradwire.harness.report.reference import Reference, alike
from gradwire.harness.report.sweep_record import CellRecord, SweepRecord

MOST_ERROR = 230
"""The largest number of characters that describe what is wrong with a claim."""

SIZES = ("tiny", "small", "gpu", "paper")
"""Sizes of sweeps, the smallest first."""

Ruling = Literal["reproduced", "not reproduced", "not testable at this size", "not run"]
UNTESTABLE: Ruling = "not testable at this size"

Predicate = Callable[[Evidence], bool]


@dataclass(frozen=True)
class Claim:
    """One claim of a paper."""

    id: str
    paper: str
    printed: str  # where: "Section 5.1, Table 3"
    says: str  # in one plain sentence
    value: str = ""  # the paper's own figures
    sweeps: tuple[str, ...] = ()  # the first one is meant where a figure names none
    size: str = "small"  # the smallest one that can tell
    holds: Predicate | None = None
    why: str = ""  # without a predicate: why there is none

    @property
    def of_print(self) -> bool:
        """Returns whether the claim is only about printed figures and arithmetic."""
        return not self.sweeps and self.holds is not None

    @property
    def formula(self) -> str:
        """The source of the predicate, without its name and docstring."""
        if self.holds is None:
            return ""
        source = textwrap.dedent(inspect.getsource(self.holds))
        function = ast.parse(source).body[0]
        assert isinstance(function, ast.FunctionDef)
        return "\n".join(ast.get_source_segment(source, each) or "" for each in function.body[1:])


class Claims:
    """The claims of one paper, in the order in which they are shown."""

    def __init__(self, paper: str) -> None:
        self.paper = paper
        self.found: list[Claim] = []

    def on(self, *sweeps: str) -> Callable[..., Callable[[Predicate], Predicate]]:
        """A decorator for predicates on records of these sweeps, or, without sweeps, on printed figures
        only.
        """
        return partial(self._claim, sweeps)

    def _claim(
        self, sweeps: tuple[str, ...], name: str, printed: str, value: str = "", size: str = "small"
    ) -> Callable[[Predicate], Predicate]:
        """Makes a predicate a claim; its docstring is the text of the claim."""
        assert size in SIZES, f"{name} has size={size}; use {', '.join(SIZES)}"

        def add(holds: Predicate) -> Predicate:
            says = " ".join((holds.__doc__ or "").split())
            self.found.append(Claim(name, self.paper, printed, says, value, sweeps, size, holds))
            return holds

        return add

    def without_predicate(self, name: str, printed: str, says: str, value: str, why: str) -> None:
        """Adds a claim that no record can decide, with the reason."""
        self.found.append(Claim(name, self.paper, printed, says, value, why=why))


@dataclass(frozen=True)
class Verdict:
    """The verdict of our records on a claim."""

    claim: Claim
    ruling: Ruling
    size: str = ""  # of the record that was looked at
    reason: str = ""  # why there is no verdict
    used: tuple[Used, ...] = ()
    busy: str = ""  # that the machine was, where times were used

    @property
    def cells(self) -> list[CellRecord]:
        """The cells whose figures were used."""
        found = [
            cell for each in self.used if isinstance(each.figure, SeedFigure) for cell in each.figure.cells
        ]
        return list({(cell.label, cell.id): cell for cell in found}.values())

    @property
    def commits(self) -> list[str]:
        """The commits that the cells ran, short; `+` where the sources had been changed."""
        found = [
            f"{(cell.commit or 'unknown')[:7]}{'+' if cell.dirty else ''}" for cell in self.cells if cell.done
        ]
        return list(dict.fromkeys(found))

    @property
    def kinds(self) -> list[str]:
        """Kinds of the figures: measured, emulated, modelled, printed; `arithmetic` where there are none."""
        found = [each.figure.kind if isinstance(each.figure, SeedFigure) else "printed" for each in self.used]
        judged = self.ruling in ("reproduced", "not reproduced")
        return list(dict.fromkeys(kind for kind in found if kind is not None)) or ["arithmetic"] * judged

    @property
    def seeds(self) -> list[int]:
        return sorted({cell.seed for cell in self.cells if cell.seed is not None})


def judge(
    claim: Claim,
    records: Mapping[str, Sequence[SweepRecord]],
    reference: Reference,
    known: Known | None = None,
) -> Verdict:
    """The verdict on a claim from the records of each sweep; `known` lists the axes and metrics of all
    sweeps.

    The records of the largest size that have the claim's cells are used. Raises ClaimError in one line if the
    predicate cannot be computed on them, or uses something that no sweep has at any size.
    """
    if claim.holds is None:
        return Verdict(claim, "not run", reason=claim.why)
    try:
        for sweep in claim.sweeps:
            if known is not None and sweep not in known:
                raise ClaimError(f"{printable(sweep, 80)} is not a sweep; {alike(sweep, sorted(known))}")
            if not records.get(sweep):
                return Verdict(claim, "not run", reason=f"{sweep} has no record")
        own = {sweep: sorted(records[sweep], key=lambda each: rank(each.size)) for sweep in claim.sweeps}
        sizes = sorted({rank(each.size) for found in own.values() for each in found}, reverse=True)
        verdicts = []
        for most in sizes or [0]:
            fitting = {
                sweep: [each for each in found if rank(each.size) <= most] for sweep, found in own.items()
            }
            if not all(fitting.values()):
                break
            chosen = {sweep: found[-1] for sweep, found in fitting.items()}
            verdicts.append(_judged(claim, claim.holds, Evidence(chosen, reference, known or {})))
            if verdicts[-1].ruling != UNTESTABLE:
                return verdicts[-1]
        return verdicts[0]
    except (ArithmeticError, TypeError, ValueError) as error:
        problem = error if isinstance(error, ValueError) else f"it cannot be computed ({error})"
        raise ClaimError(printable(f"claim {claim.id}: {problem}", MOST_ERROR)) from None


def _judged(claim: Claim, holds: Predicate, evidence: Evidence) -> Verdict:
    size = min((record.size for record in evidence.records.values()), key=rank, default="")
    small = bool(evidence.records) and rank(size) < rank(claim.size)
    needs = f"needs size={claim.size}"
    try:
        ruling: Ruling = "reproduced" if holds(evidence) else "not reproduced"
    except MissingError as error:
        return Verdict(claim, UNTESTABLE, size, needs if small else str(error), tuple(evidence.used))
    except UnfinishedError as error:
        return Verdict(claim, "not run", size, str(error), tuple(evidence.used))
    except ClaimError:
        if small:  # where cells may differ in other axes than at the size that the claim is about
            return Verdict(claim, UNTESTABLE, size, needs, tuple(evidence.used))
        raise
    if small:
        return Verdict(claim, UNTESTABLE, size, needs, tuple(evidence.used))
    figures = [each.figure for each in evidence.used if isinstance(each.figure, SeedFigure)]
    timed = {(cell.label, cell.id) for figure in figures if figure.timed for cell in figure.cells}
    busy = (
        busy_cells(record, [cell for cell in record.cells if (cell.label, cell.id) in timed])
        for record in evidence.records.values()
    )
    return Verdict(claim, ruling, size, "", tuple(evidence.used), " ".join(filter(None, busy)))


def rank(size: str) -> int:
    """The rank of a size by its magnitude; a user's own size counts as the smallest."""
    return SIZES.index(size) if size in SIZES else -1


def counted(verdicts: Sequence[Verdict]) -> dict[Ruling, int]:
    """The number of verdicts of each kind."""
    rulings: dict[Ruling, int] = dict.fromkeys(get_args(Ruling), 0)
    for verdict in verdicts:
        rulings[verdict.ruling] += 1
    return rulings
