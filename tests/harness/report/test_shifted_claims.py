"""Verdicts on figures near the recorded ones: where a claim begins to hold stays where it was.

`python tests/harness/report/test_shifted_claims.py` writes `shifted_claims.txt` anew, a line for each claim:
its id and a letter for each shift of its figures, T where it holds, F where it does not.
"""

from __future__ import annotations

import math
import random
import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from gradwire.harness.report.claims.claim import Claim, rank
from gradwire.harness.report.claims.evidence import Evidence
from gradwire.harness.report.claims.papers import CLAIMS
from gradwire.harness.report.claims.verdict import holding
from gradwire.harness.report.evaluation import ClaimError, MissingError, SeedFigure
from gradwire.harness.report.reference import Reference
from gradwire.harness.report.sweep_record import SweepRecord, find_sweep_records, read_sweep_record

RESULTS = Path(__file__).resolve().parents[3] / "results"
EXPECTED = Path(__file__).with_name("shifted_claims.txt")
SHIFTS = 42
DEVIATIONS = (0.0003, 0.01, 0.05, 0.2, 0.7, 2.0, 4.0)
"""Standard deviations of the logarithms of factors, in turn."""


@cache
def factor(shift: int, of: str) -> float:
    deviation = DEVIATIONS[shift % len(DEVIATIONS)]
    return math.exp(random.Random(f"{shift} {of}").gauss(0, deviation))


@dataclass
class Shifted(Evidence):
    """Evidence whose figures of runs are multiplied by factors that are drawn from the number of a shift.

    In every other shift the figures of one codec have a factor in common; in every third one all recorded
    figures count as 1, and so do infinite ones in the others.
    """

    shift: int = 0
    recorded: dict[str, SeedFigure] = field(default_factory=dict)
    """Figures that have been looked up."""

    def _take(self, name: str, shown: list[Any], cells: dict[str, Any], *asked: Any) -> SeedFigure:
        text = f"{name} {shown} {sorted((self.fixed | cells).items(), key=str)}"
        if text not in self.recorded:
            self.recorded[text] = super()._take(name, shown, cells, *asked)
        codec = re.search(r"'codec', '\w+'", text) if self.shift % 2 else None
        common = factor(self.shift, f"{name} {codec[0]}" if codec else text)
        shifted = {}
        for seed, value in self.recorded[text].by_seed.items():
            base = value if math.isfinite(value) and self.shift % 3 < 2 else 1.0
            shifted[seed] = base * common * factor(self.shift, f"seed {seed}")
        return SeedFigure(shifted)


def verdict(claim: Claim, evidence: Evidence) -> str:
    """True, False, Missing where the records lack a figure, or Error."""
    assert claim.holds is not None
    try:
        return str(holding(claim.holds(evidence), claim.tolerance))[0]
    except MissingError:
        return "M"
    except (ArithmeticError, ClaimError):
        return "E"


def lines() -> list[str]:
    """The lines of the file: of claims on printed figures alone, which are not shifted, one letter."""
    records: dict[str, list[SweepRecord]] = {}
    for folder in find_sweep_records(RESULTS):
        record = read_sweep_record(folder)
        records.setdefault(record.name, []).append(record)
    reference = Reference(RESULTS / "reference")
    found = []
    for claim in (claim for claims in CLAIMS for claim in claims.found if claim.holds is not None):
        if all(sweep in records for sweep in claim.sweeps):
            own = {sweep: max(records[sweep], key=lambda one: rank(one.size)) for sweep in claim.sweeps}
            known: dict[str, SeedFigure] = {}
            shifts = range(SHIFTS if claim.sweeps else 1)
            letters = [verdict(claim, Shifted(own, reference, shift=at, recorded=known)) for at in shifts]
            found.append(f"{claim.id} {''.join(letters)}")
    return found


@pytest.mark.whole
def test_claims_hold_where_they_held() -> None:
    assert lines() == EXPECTED.read_text().splitlines()


if __name__ == "__main__":
    EXPECTED.write_text("\n".join(lines()) + "\n")
