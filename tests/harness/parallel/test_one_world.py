"""Parallelisms and the trainer know `World` alone; only what makes a world names its kind."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gradwire.harness.runtime.conf import conf_directory

HARNESS = conf_directory().parent / "harness"
KINDS = re.compile(r"\b(ProcessWorld|VirtualWorld)\b")


@pytest.mark.parametrize("file", sorted((HARNESS / "parallel").rglob("*.py")), ids=lambda file: file.name)
def test_a_parallelism_knows_no_kind_of_world(file: Path) -> None:
    assert not KINDS.search(file.read_text())


def test_no_code_asks_for_the_kind_of_a_world() -> None:
    asks = re.compile(r"isinstance\([^)]*World\b")
    assert [file.name for file in HARNESS.rglob("*.py") if asks.search(file.read_text())] == []


def test_the_example_knows_none_either() -> None:
    text = (HARNESS.parent / "examples" / "plugins" / "local_sgd.py").read_text()
    assert not KINDS.search(text) and "isinstance" not in text
