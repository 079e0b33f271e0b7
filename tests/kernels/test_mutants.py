"""The list of faults fits the sources: make mutants can put in each of them."""

from __future__ import annotations

import pytest
from mutant_list import MUTANTS, ROOT, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.source)
def test_a_fault_has_one_place(mutant: Mutant) -> None:
    text = (ROOT / "csrc" / mutant.source).read_text()
    assert mutant.put_into(text) != text
    assert (ROOT / f"tests/kernels/test_{mutant.tests}_kernels.py").exists()


def test_there_are_faults_of_every_family() -> None:
    sources = {path.name for path in (ROOT / "csrc" / "cuda").glob("*.cu")} - {"library.cu"}
    assert len(MUTANTS) >= 30
    assert {mutant.source.removeprefix("cuda/") for mutant in MUTANTS} >= sources - {"walsh.cu"}
