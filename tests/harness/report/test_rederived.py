"""The numbers of the results' tables follow from the kept rows, derived by a script of its own."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest
import rederived
import yaml
from rederived import RESULTS, Checked, Record, agrees, change_problem, checked, spread_problem

SCRIPT = Path(rederived.__file__)
LEAST = 0.95
"""The least share of the printed numbers that must be derived."""


@pytest.fixture(scope="module")
def found() -> list[Checked]:
    return list(checked())


def test_every_number_that_is_derived_is_the_printed_one(found: list[Checked]) -> None:
    assert [f"{each.where}: {each.printed}: {each.problem}" for each in found if each.problem] == []


def test_nearly_all_numbers_are_derived(found: list[Checked]) -> None:
    total = sum(each.numbers for each in found)
    derived = sum(each.numbers for each in found if each.problem == "")
    missing = [each.where for each in found if each.problem is None]
    assert total > 1000 and derived >= LEAST * total, f"{derived} of {total}; not derived: {missing}"


def test_every_table_with_numbers_of_ours_is_looked_at(found: list[Checked]) -> None:
    """A table whose heading or sweep the script no longer finds would be left out without a word."""
    titles = re.findall(r"\n#### ([^\n:]+): ", (RESULTS / "README.md").read_text())
    unread = [title for title in titles if not any(one.where.startswith(f"{title}, ") for one in found)]
    unrecorded = [
        f"{paper['name']} {name}"
        for paper in (yaml.safe_load(path.read_text()) for path in (RESULTS / "papers").glob("*.yaml"))
        for name, item in paper["items"].items()
        if not [*(RESULTS / str(item.get("sweep"))).glob("*/sweep.json")]
    ]
    assert len(titles) > 20 and set(unread) <= set(unrecorded), unread


def test_the_script_is_short_and_knows_nothing_of_the_reports_code() -> None:
    text = SCRIPT.read_text()
    assert len(text.splitlines()) <= 200
    imported = {
        alias.name if isinstance(node, ast.Import) else str(node.module)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    assert not [
        name for name in imported if name.split(".")[0] in ("gradwire", "harness", "codecs", "pandas")
    ]


def test_accuracies_of_claims_are_medians_and_ranges_of_recorded_runs() -> None:
    """Those of several seeds, which the page has in percent."""
    spreads = []
    for path in RESULTS.glob("*/*/sweep.json"):
        about = json.loads(path.read_text())
        if any(cell["metric"] == "accuracy" for cell in about["cells"]):
            own = Record(path.parent)
            groups: dict[str, dict[Any, float]] = {}
            for cell in own.cells:
                if scores := own.points(cell, "accuracy"):
                    groups.setdefault(json.dumps(cell["axes"]), {})[cell["seed"]] = scores[-1][1]
            spreads += groups.values()
    printed = [
        text
        for line in re.findall(
            r"(?<=accuracy \()[^|;]*|(?<=accuracy: )[^|;]*", (RESULTS / "README.md").read_text()
        )
        for text in re.findall(r"[\d.]+ % \([\d.]+–[\d.]+\)", line)
    ]
    assert len(printed) > 20
    wrong = [text for text in printed if all(spread_problem(text, each, 100.0) for each in spreads)]
    assert wrong == []


@pytest.mark.parametrize(
    ("printed", "value", "good"),
    [
        ("0.0330", 0.03304, True),
        ("0.0330", 0.03306, False),
        ("3.23e-04", 3.2349e-4, True),
        ("3.23e-04", 3.2351e-4, False),
        ("∞", float("inf"), True),
        ("12", float("inf"), False),
        ("26.17", 26.1749, True),
    ],
)
def test_a_printed_number_agrees_to_its_last_digit(printed: str, value: float, good: bool) -> None:
    assert agrees(printed, value) is good


def test_wrong_medians_ranges_and_changes_are_found() -> None:
    values = {0: 1.0, 1: 2.0, 2: 4.0}
    assert not spread_problem("2 (1–4)", values, 1.0) and not spread_problem(
        "2000 (1000–4000) ms", values, 1e3
    )
    assert spread_problem("2.1 (1–4)", values, 1.0) and spread_problem("2 (1–3.9)", values, 1.0)
    assert spread_problem("2", values, 1.0) and spread_problem("not reached", values, 1.0)
    assert not spread_problem("not reached", dict.fromkeys(range(3), float("inf")), 1.0)
    base = {0: 1.0, 1: 2.0, 2: 3.9}
    assert not change_problem("+0.85 ± 3.68 %", values, base)
    assert change_problem("+0.95 ± 3.68 %", values, base) and change_problem("+0.85 ± 3.58 %", values, base)
