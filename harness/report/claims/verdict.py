"""Verdicts of records on claims, in words that say what was told and what could not be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from gradwire.harness.files.reading import printable
from gradwire.harness.report.busy_times import busy_cells
from gradwire.harness.report.claims.claim import Basis, Claim, largest, rank
from gradwire.harness.report.claims.effect_words import effect_in_words
from gradwire.harness.report.claims.effects import EXACT_TASKS, Effects
from gradwire.harness.report.claims.evidence import Evidence, Used
from gradwire.harness.report.claims.known_sweeps import Known
from gradwire.harness.report.evaluation import ClaimError, MissingError, SeedFigure, UnfinishedError
from gradwire.harness.report.reference import Reference, alike
from gradwire.harness.report.sweep_record import CellRecord, SweepRecord

MOST_ERROR = 230
"""The largest number of characters that describe what is wrong with a claim."""


class Word(StrEnum):
    """The word for a claim; the first four are informative."""

    REPRODUCED = "reproduced"
    NOT_REPRODUCED = "not reproduced"
    LATE_REPRODUCED = "reproduced, claim written after the record"
    LATE_NOT_REPRODUCED = "not reproduced, claim written after the record"
    NOT_TESTABLE = "not testable here"
    CONSISTENT = "consistent"
    INCONSISTENT = "inconsistent"
    BY_CONSTRUCTION = "by construction"
    NOT_RUN = "not run"

    @property
    def informative(self) -> bool:
        """Returns whether a run has told something about the claim."""
        return self in (*LATE, *LATE.values())


LATE = {
    Word.REPRODUCED: Word.LATE_REPRODUCED,
    Word.NOT_REPRODUCED: Word.LATE_NOT_REPRODUCED,
}
"""The words for claims that were written, or changed, after the record."""


NO_NUMBER = "no number"
"""The words in the paper's value of a claim to which it prints no figure."""

LATE_MARK = "‡"
"""The mark of these words in tables."""

_LATE_TEXT = ", claim written after the record"


class Reason(StrEnum):
    """The reason why a claim cannot be told here."""

    CHANCE = "at chance"
    IDLE = "mechanism idle"
    TIMES = "times taken beside other work"
    SPREAD = "effect below twice the seeds' spread"
    SIZE = "size"
    NO_FOIL = "no codec fails it"
    NO_EFFECT = "no effect declared"
    NO_CELLS = "not recorded"


@dataclass(frozen=True)
class Verdict:
    """The verdict of our records on a claim."""

    claim: Claim
    word: Word
    size: str = ""  # of the record that was looked at
    reason: Reason | None = None  # why there is no informative verdict
    detail: str = ""  # that reason, or the resolution of the decisive effect, in words
    used: tuple[Used, ...] = ()
    busy: str = ""  # that the machine was, where times were used
    sized: bool = False  # whether a size decides it, and not a direction alone

    @property
    def text(self) -> str:
        """The word, and the reason if nothing could be told."""
        return f"{self.word}: {self.reason}" if self.reason is not None else str(self.word)

    @property
    def short(self) -> str:
        """That text with a mark in place of "claim written after the record"."""
        return self.text.replace(_LATE_TEXT, f" {LATE_MARK}")

    @property
    def cells(self) -> list[CellRecord]:
        """The cells whose figures were used."""
        found = [
            cell for each in self.used if isinstance(each.figure, SeedFigure) for cell in each.figure.cells
        ]
        return list({(cell.label, cell.id): cell for cell in found}.values())

    @property
    def predicted(self) -> bool:
        """Returns whether it is on what our models compute from settings alone: nothing was trained or
        timed."""
        return bool(self.cells) and all(cell.task in EXACT_TASKS for cell in self.cells)

    @property
    def by_our_threshold(self) -> bool:
        """Returns whether a size decides it where the paper prints none, so that the size is ours."""
        return self.sized and NO_NUMBER in self.claim.value

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
        judged = self.word not in (Word.NOT_RUN, Word.NOT_TESTABLE)
        return list(dict.fromkeys(kind for kind in found if kind is not None)) or ["arithmetic"] * judged

    @property
    def seeds(self) -> list[int]:
        return sorted({cell.seed for cell in self.cells if cell.seed is not None})


def judge(
    claim: Claim,
    records: Mapping[str, Sequence[SweepRecord]],
    reference: Reference,
    known: Known | None = None,
    disturbed: frozenset[str] = frozenset(),
) -> Verdict:
    """The verdict on a claim from the records of each sweep; `known` lists the axes and metrics of all
    sweeps, `disturbed` those whose times were taken beside other work.

    The records of the largest size that have the claim's cells are used. Raises ClaimError in one line if the
    predicate cannot be computed on them, or uses something that no sweep has at any size.
    """
    if claim.holds is None:
        return Verdict(claim, Word.NOT_RUN, detail=claim.why)
    try:
        for sweep in claim.sweeps:
            if known is not None and sweep not in known:
                raise ClaimError(f"{printable(sweep, 80)} is not a sweep; {alike(sweep, sorted(known))}")
            if not records.get(sweep):
                return Verdict(claim, Word.NOT_RUN, detail=f"{sweep} has no record")
        own = {sweep: sorted(records[sweep], key=lambda each: rank(each.size)) for sweep in claim.sweeps}
        verdicts = []
        for most in largest([each.size for found in own.values() for each in found]) or [0]:
            fitting = {
                sweep: [each for each in found if rank(each.size) <= most] for sweep, found in own.items()
            }
            if not all(fitting.values()):
                break
            chosen = {sweep: found[-1] for sweep, found in fitting.items()}
            verdicts.append(_judged(claim, Evidence(chosen, reference, known or {}, disturbed=disturbed)))
            if verdicts[-1].reason not in (Reason.SIZE, Reason.NO_CELLS):
                return verdicts[-1]
        return verdicts[0]
    except (ArithmeticError, TypeError, ValueError) as error:
        problem = error if isinstance(error, ValueError) else f"it cannot be computed ({error})"
        raise ClaimError(printable(f"claim {claim.id}: {problem}", MOST_ERROR)) from None


def _judged(claim: Claim, evidence: Evidence) -> Verdict:
    size = min((record.size for record in evidence.records.values()), key=rank, default="")
    small = bool(evidence.records) and rank(size) < rank(claim.size)
    blank = Verdict(claim, Word.NOT_TESTABLE, size)
    too_small = replace(blank, reason=Reason.SIZE, detail=f"needs size={claim.size}")
    try:
        found = _decided(claim, evidence, blank)
    except MissingError as error:
        found = too_small if small else replace(blank, reason=Reason.NO_CELLS, detail=str(error))
    except UnfinishedError as error:
        found = replace(blank, word=Word.NOT_RUN, detail=str(error))
    except ClaimError:
        if not small:  # where cells may differ in other axes than at the size that the claim is about
            raise
        found = too_small
    if small and found.word is not Word.NOT_RUN and found.reason is not Reason.CHANCE:
        found = too_small
    found = replace(found, used=tuple(evidence.used))
    return found if found.word is Word.NOT_RUN else replace(found, busy=_busy(evidence))


def _decided(claim: Claim, evidence: Evidence, blank: Verdict) -> Verdict:
    """The verdict where a record has all that the claim asks for."""
    assert claim.holds is not None
    told = claim.holds(evidence)
    if claim.basis is not Basis.RUNS:
        return replace(blank, word=_without_runs(claim, holding(told, claim.tolerance)))
    if isinstance(told, bool):
        return replace(blank, reason=Reason.NO_EFFECT, detail="its predicate compares without an effect")
    if any(effect.of_numbers for effect in told):
        raise ClaimError("an effect is of numbers without seeds: compare figures, not what is left of them")
    if claim.chance is not None and claim.chance.explains(_aside(evidence)):
        detail = f"guesses score {100 * claim.chance.level:.3g} %, over {claim.chance.questions} questions"
        return replace(blank, reason=Reason.CHANCE, detail=detail)
    if any(record.name in evidence.disturbed for record, _ in _timed(evidence)):
        return replace(blank, reason=Reason.TIMES, detail="the record does not say how busy its machine was")
    if claim.active is not None and not claim.active(_aside(evidence)):
        acting = " ".join((claim.active.__doc__ or "").split())
        return replace(blank, reason=Reason.IDLE, detail=f"not so in these runs: {acting.rstrip('.')}")
    if all(effect.vacuous for effect in told):
        return replace(blank, reason=Reason.IDLE, detail="both sides are the same to the last bit")
    sized = any(effect.claimed is not None or effect.harm is not None for effect in told)
    return _resolved(claim, evidence, told, replace(blank, sized=sized))


def _resolved(claim: Claim, evidence: Evidence, told: Effects, blank: Verdict) -> Verdict:
    """The verdict on effects of a mechanism that acted, on scores above chance."""
    failing = [effect for effect in told if not effect.holds(claim.tolerance)]
    decisive = [effect for effect in failing if effect.resolved(claim.tolerance)]
    if decisive:
        return _dated(
            replace(blank, word=Word.NOT_REPRODUCED, detail=effect_in_words(decisive[0], claim.tolerance)),
            evidence,
        )
    harmless = [effect for effect in told if effect.harm is not None and effect.harmed <= 0]
    if harmless:
        return replace(blank, reason=Reason.NO_FOIL, detail="the codec that has to fail it does no harm")
    unresolved = [effect for effect in told if not effect.resolved(claim.tolerance)]
    if unresolved:
        return replace(blank, reason=Reason.SPREAD, detail=effect_in_words(unresolved[0], claim.tolerance))
    passing = _passing_foil(claim, evidence, told)
    if passing:
        return replace(blank, reason=Reason.NO_FOIL, detail=passing)
    weakest = min(told, key=lambda effect: abs(effect.mean) / effect.spread if effect.spread else 1e300)
    return _dated(
        replace(blank, word=Word.REPRODUCED, detail=effect_in_words(weakest, claim.tolerance)), evidence
    )


def _passing_foil(claim: Claim, evidence: Evidence, told: Effects) -> str:
    """The reason why nothing recorded fails the claim; empty if its foil does. One whose figures are equal
    fails it if they are of different cells."""
    if claim.foil is None:  # a figure that is spared names what is not
        none = f"there is no foil: {claim.unfailed}" if claim.unfailed else "no foil is named"
        return "" if all(effect.harm is not None for effect in told) else none
    assert claim.holds is not None
    other = replace(_aside(evidence), foil=claim.foil, replaced=[])
    try:
        found = claim.holds(other)
    except (MissingError, UnfinishedError) as error:
        return f"its foil, {claim.foil.name}, is not recorded: {error}"
    if not other.replaced:
        raise ClaimError(f"its foil, {claim.foil.name}, takes the place of nothing that it asks for")
    assert not isinstance(found, bool)
    fails = any(
        not effect.holds(claim.tolerance)
        and (effect.claimed is not None or not effect.vacuous or not effect.of_itself)
        for effect in found
    )
    return "" if fails else f"its foil, {claim.foil.name}, passes, too, or is compared with itself"


def _aside(evidence: Evidence) -> Evidence:
    """Evidence of the same records, whose figures are not shown with the verdict."""
    return replace(evidence, used=[])


def holding(told: bool | Effects, tolerance: float) -> bool:
    """Returns whether what a predicate returned means yes, whatever its resolution."""
    return told if isinstance(told, bool) else all(effect.holds(tolerance) for effect in told)


def _without_runs(claim: Claim, holds: bool) -> Word:
    if claim.basis is Basis.PAPER:
        return Word.CONSISTENT if holds else Word.INCONSISTENT
    return Word.BY_CONSTRUCTION if holds else Word.NOT_REPRODUCED


def _dated(verdict: Verdict, evidence: Evidence) -> Verdict:
    """The verdict with the word for claims that a record does not know as they are."""
    claim, records = verdict.claim, evidence.records.values()
    known = all(claim.id in each.claims and each.claims[claim.id] == claim.digest for each in records)
    return verdict if known else replace(verdict, word=LATE[verdict.word])


def _busy(evidence: Evidence) -> str:
    return " ".join(filter(None, (busy_cells(record, cells) for record, cells in _timed(evidence))))


def _timed(evidence: Evidence) -> list[tuple[SweepRecord, list[CellRecord]]]:
    """The records whose times were used, with the cells that these are of."""
    figures = [each.figure for each in evidence.used if isinstance(each.figure, SeedFigure)]
    timed = {(cell.label, cell.id) for figure in figures if figure.timed for cell in figure.cells}
    found = (
        (record, [cell for cell in record.cells if (cell.label, cell.id) in timed])
        for record in evidence.records.values()
    )
    return [(record, cells) for record, cells in found if cells]
