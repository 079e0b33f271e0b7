"""Claims: what a paper says, as data, and the verdict that our records give on it."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal, get_args

from gradwire.harness.files.reading import printable
from gradwire.harness.files.structured import read_yaml
from gradwire.harness.files.typed import made
from gradwire.harness.report.busy_times import busy_cells
from gradwire.harness.report.claims.check import Known, check_predicate
from gradwire.harness.report.claims.evaluate import Evaluation, Used
from gradwire.harness.report.claims.figures import Figure, MissingError, UnfinishedError
from gradwire.harness.report.claims.grammar import ClaimError, parse
from gradwire.harness.report.reference import Reference, alike
from gradwire.harness.report.sweep_record import CellRecord, SweepRecord

FILE = "claims.yaml"
REMEDY = "correct it there; docs/report.md says what a claim may say"
MOST_ERROR = 230
"""Most characters of what is wrong with a claim."""

SIZES = ("tiny", "small", "gpu", "paper")
"""Sizes of sweeps, the smallest first."""

Ruling = Literal["reproduced", "not reproduced", "not testable at this size", "not run"]
UNTESTABLE: Ruling = "not testable at this size"


@dataclass(frozen=True)
class Claim:
    """One claim, an entry of `claims.yaml`."""

    id: str
    paper: str
    printed: str  # where: "Section 5.1, Table 3"
    says: str  # in one plain sentence
    value: str = ""  # the paper's own figures
    sweep: str | list[str] = field(default_factory=list)  # the first one is meant where a figure names none
    size: str = "small"  # the smallest one that can tell
    holds: str = ""  # the predicate
    why: str = ""  # without a predicate: why there is none

    @property
    def sweeps(self) -> list[str]:
        return [self.sweep] if isinstance(self.sweep, str) else self.sweep

    @property
    def of_print(self) -> bool:
        """Whether it is about printed figures and arithmetic alone."""
        return not self.sweeps and bool(self.holds)


@dataclass(frozen=True)
class Verdict:
    """What our records say to a claim."""

    claim: Claim
    ruling: Ruling
    size: str = ""  # of the record that was looked at
    reason: str = ""  # why there is no verdict
    used: tuple[Used, ...] = ()
    busy: str = ""  # that the machine was, where times were used

    @property
    def cells(self) -> list[CellRecord]:
        """Those whose figures were used."""
        found = [cell for each in self.used if isinstance(each.figure, Figure) for cell in each.figure.cells]
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
        """What the figures are: measured, emulated, modelled, printed; `arithmetic` where there are none."""
        found = [each.figure.kind if isinstance(each.figure, Figure) else "printed" for each in self.used]
        judged = self.ruling in ("reproduced", "not reproduced")
        return list(dict.fromkeys(kind for kind in found if kind is not None)) or ["arithmetic"] * judged

    @property
    def seeds(self) -> list[int]:
        return sorted({cell.seed for cell in self.cells if cell.seed is not None})


def read_claims(path: Path) -> list[Claim]:
    """The claims in a file, in its order; raises ValueError in one line for an entry of another form."""
    claims = []
    for name, entry in read_yaml(path, remedy=REMEDY, inside=path.parent).items():
        if not isinstance(entry, Mapping):
            raise ClaimError(f"{path}: {name} is no claim; it needs {', '.join(_NEEDED)}; {REMEDY}")
        strange = sorted(entry.keys() - {each.name for each in fields(Claim)})
        if strange:
            raise ClaimError(f"{path}: {name} has {strange[0]}, which no claim has; {REMEDY}")
        claim = made(Claim, {"id": name, **entry}, f"{path}: {name}", remedy=REMEDY)
        if claim.size not in SIZES:
            raise ClaimError(f"{path}: {name} has size={claim.size}; use {', '.join(SIZES)}")
        if bool(claim.holds) == bool(claim.why):
            raise ClaimError(f"{path}: {name} needs either `holds`, a predicate, or `why` there is none")
        claims.append(claim)
    return claims


_NEEDED = ("paper", "printed", "says", "holds")


def check_claims(claims: Sequence[Claim], known: Known, reference: Reference) -> dict[str, ast.expr]:
    """The predicates by the claims' ids.

    Raises ClaimError in one line for the first one that is malformed or speaks of a sweep, metric, axis,
    value or printed figure that does not exist.
    """
    trees = {}
    for claim in claims:
        try:
            for sweep in claim.sweeps:
                if sweep not in known:
                    raise ClaimError(f"{printable(sweep, 80)} is no sweep; {alike(sweep, sorted(known))}")
            if claim.holds:
                trees[claim.id] = parse(claim.holds)
                check_predicate(trees[claim.id], claim.sweeps, known, reference)
        except ValueError as error:
            raise _refusal(claim, error) from None
    return trees


def judge(
    claim: Claim, tree: ast.expr | None, records: Mapping[str, Sequence[SweepRecord]], reference: Reference
) -> Verdict:
    """The verdict on a claim that `check_claims` has passed, from the records of each sweep.

    The records of the largest size count that have the claim's cells. Raises ClaimError if the predicate
    cannot be computed on them.
    """
    if tree is None:
        return Verdict(claim, "not run", reason=claim.why)
    found = {
        sweep: sorted(records.get(sweep, ()), key=lambda each: rank(each.size)) for sweep in claim.sweeps
    }
    for sweep, own in found.items():
        if not own:
            return Verdict(claim, "not run", reason=f"{sweep} has no record")
    sizes = sorted({rank(each.size) for own in found.values() for each in own}, reverse=True)
    verdicts = []
    for most in sizes or [0]:
        fitting = {sweep: [each for each in own if rank(each.size) <= most] for sweep, own in found.items()}
        if not all(fitting.values()):
            break
        chosen = {sweep: own[-1] for sweep, own in fitting.items()}
        verdicts.append(_judged(claim, tree, chosen, reference))
        if verdicts[-1].ruling != UNTESTABLE:
            return verdicts[-1]
    return verdicts[0]


def _judged(claim: Claim, tree: ast.expr, chosen: Mapping[str, SweepRecord], reference: Reference) -> Verdict:
    size = min((record.size for record in chosen.values()), key=rank, default="")
    evaluation, small = Evaluation(chosen, reference), bool(chosen) and rank(size) < rank(claim.size)
    try:
        holds = evaluation.holds(tree)
    except MissingError as error:
        reason = _needs(claim) if small else str(error)
        return Verdict(claim, UNTESTABLE, size, reason, tuple(evaluation.used))
    except UnfinishedError as error:
        return Verdict(claim, "not run", size, str(error), tuple(evaluation.used))
    except ClaimError as error:
        if small:  # where cells may differ in other axes than at the size that the claim is about
            return Verdict(claim, UNTESTABLE, size, _needs(claim), tuple(evaluation.used))
        raise _refusal(claim, error) from None
    if small:
        return Verdict(claim, UNTESTABLE, size, _needs(claim), tuple(evaluation.used))
    ruling: Ruling = "reproduced" if holds else "not reproduced"
    return Verdict(claim, ruling, size, "", tuple(evaluation.used), _busy(evaluation))


def _busy(evaluation: Evaluation) -> str:
    """What is to be known of the machine where a verdict rests on times."""
    figures = [each.figure for each in evaluation.used if isinstance(each.figure, Figure)]
    timed = {(cell.label, cell.id) for figure in figures if figure.timed for cell in figure.cells}
    lines = (
        busy_cells(record, [cell for cell in record.cells if (cell.label, cell.id) in timed])
        for record in evaluation.records.values()
    )
    return " ".join(filter(None, lines))


def _refusal(claim: Claim, error: ValueError) -> ClaimError:
    about = printable(f"claim {claim.id}: {error}", MOST_ERROR)
    return ClaimError(f"{about}; {REMEDY}")


def _needs(claim: Claim) -> str:
    return f"needs size={claim.size}"


def rank(size: str) -> int:
    """How large a size is; one of the user's own counts as the smallest."""
    return SIZES.index(size) if size in SIZES else -1


def counted(verdicts: Sequence[Verdict]) -> dict[Ruling, int]:
    """How many verdicts there are of each kind."""
    rulings: dict[Ruling, int] = dict.fromkeys(get_args(Ruling), 0)
    for verdict in verdicts:
        rulings[verdict.ruling] += 1
    return rulings
