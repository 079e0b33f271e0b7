"""The page of verdicts before and after is that of the records, and no claim is lost."""

from __future__ import annotations

import pytest
from verdict_changes import PAGE, ROOT, claims_without_verdict, earlier, page

from gradwire.harness.report.evaluations import collect
from gradwire.harness.sweeps.known import known_sweeps


def test_every_earlier_claim_has_a_verdict() -> None:
    assert claims_without_verdict() == [] and len(earlier()) == 209


@pytest.mark.whole
def test_the_page_is_that_of_the_records() -> None:
    """If this is meant to change, run `python tests/harness/report/verdict_changes.py`."""
    assert page(collect(ROOT / "results", known_sweeps())) == PAGE.read_text()
