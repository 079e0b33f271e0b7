"""The papers' own claims: distinct, about what exists, and with the verdicts of the results page."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from sweep_records import record

from gradwire.harness.report.claims.evidence import Evidence
from gradwire.harness.report.claims.known_sweeps import KnownSweep
from gradwire.harness.report.claims.papers import CLAIMS
from gradwire.harness.report.evaluation import SeedFigure
from gradwire.harness.report.evaluations import collect
from gradwire.harness.report.page import markdown, with_evaluations
from gradwire.harness.report.reference import Reference
from gradwire.harness.sweeps.known import known_sweeps

RESULTS = Path(__file__).resolve().parents[3] / "results"


def test_the_papers_claims_are_distinct_and_have_texts() -> None:
    found = [claim for claims in CLAIMS for claim in claims.found]
    assert len({claim.id for claim in found}) == len(found) == 255
    assert all(claim.says and claim.printed and (claim.formula or claim.why) for claim in found)
    digests = [claim.digest for claim in found if claim.holds is not None]
    assert len(set(digests)) == len(digests), "no two claims are the same"


class Unlimited(Evidence):
    """Evidence that checks each request and has a figure for all of them."""

    def _take(self, name: str, shown: list[Any], cells: dict[str, Any], read: Any, *asked: Any) -> SeedFigure:
        named, _ = self._with_foil(name, {**self.fixed, **cells}, asked)
        self._selected(named)
        return SeedFigure({0: 1.0, 1: 1.0})

    def axis(self, *keys: str, **cells: Any) -> tuple[Any, ...]:
        sweep = self.known[str(cells.get("sweep", next(iter(self.records))))]
        found = list(itertools.product(*(sweep.axes[sweep.key(key)] for key in keys)))
        return tuple(found) if len(found[0]) > 1 else tuple(value for (value,) in found)


@pytest.fixture(scope="module")
def known_now() -> dict[str, KnownSweep]:
    return known_sweeps()


def test_claims_ask_for_axes_and_printed_figures_that_exist(known_now: dict[str, KnownSweep]) -> None:
    """This holds for claims on sweeps, or sizes, without a record, and for their foils, too."""
    known, reference = known_now, Reference(RESULTS / "reference")
    for claim in (claim for claims in CLAIMS for claim in claims.found if claim.holds is not None):
        records = {sweep: record((), [], name=sweep) for sweep in claim.sweeps}
        assert claim.sweeps == tuple(sweep for sweep in claim.sweeps if sweep in known), claim.id
        try:
            claim.holds(Unlimited(records, reference, known))
            if claim.foil is not None:
                other = Unlimited(records, reference, known, foil=claim.foil)
                claim.holds(other)
                assert other.replaced, f"{claim.id}: its foil takes the place of nothing"
        except ValueError as error:
            raise AssertionError(f"{claim.id}: {error}") from error


def test_results_have_the_verdicts_and_tables_of_their_records(known_now: dict[str, KnownSweep]) -> None:
    """If this is meant to change, run `python run.py task=report`, and look at what has changed."""
    found = collect(RESULTS, known_now)
    readme = RESULTS / "README.md"
    assert with_evaluations(readme, markdown(found)).splitlines() == readme.read_text().splitlines()
