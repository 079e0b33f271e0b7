"""The faults that measure the power of tests: what they change, where they are marked, how they are drawn."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from power.measure import PACKAGES, affordable, nearest_first
from power.python_faults import Fault, candidates, draw, mark

SOURCE = '''"""A module."""

LIMIT = 3


def clip(values: list[int], low: int = 0) -> list[int]:
    """Drops what is too small."""
    found = []
    for value in values:
        if value < low:
            continue
        elif not value:
            raise ValueError(f"{value + 1}")
        found.append(value * 2)
    return found if found and low >= 0 else []
'''


@pytest.fixture
def found(tmp_path: Path) -> list[Fault]:
    (tmp_path / "codecs").mkdir()
    (tmp_path / "codecs" / "clip.py").write_text(SOURCE)
    return candidates(tmp_path, ("codecs",))


def test_each_kind_of_mistake(found: list[Fault]) -> None:
    """Faults are neither in defaults and module constants, which run at import, nor in texts."""
    described = {fault.describe(SOURCE.encode()).split(", ", 1)[1] for fault in found}
    assert described == {
        "comparison: value < low  ->  (value <= low)",
        "condition: value < low  ->  (not (value < low))",
        "condition: not value  ->  (not (not value))",
        "not: not value  ->  (value)",
        'left out: raise ValueError(f"{value + 1}")  ->  pass',
        "left out: found.append(value * 2)  ->  pass",
        "arithmetic: value * 2  ->  ((value) // (2))",
        "number: 2  ->  3",
        "result: found if found and low >= 0 else []  ->  None",
        "condition: found and low >= 0  ->  (not (found and low >= 0))",
        "and, or: found and low >= 0  ->  ((found) or (low >= 0))",
        "comparison: low >= 0  ->  (low > 0)",
        "number: 0  ->  1",
    }


def test_marks_report_the_statements_that_run(found: list[Fault]) -> None:
    hits = list[int]()
    scope = {"__gradwire_hit__": hits.append}
    exec(mark(SOURCE.encode(), list(enumerate(found))), scope)
    scope["clip"]([])  # type: ignore[operator]
    in_return = {number for number, fault in enumerate(found) if fault.line == 15}
    assert set(hits) == in_return
    scope["clip"]([3])  # type: ignore[operator]
    assert {found[number].statement for number in hits} == {10, 14, 15}  # elif counts as its if


def test_faults_of_the_project_leave_sources_that_parse() -> None:
    root = Path(__file__).parents[1]
    drawn = draw(candidates(root, PACKAGES), 150, seed=1)
    assert len({(fault.path, fault.function) for fault in drawn}) == 150
    assert draw(candidates(root, PACKAGES), 150, seed=1) == drawn
    for fault in drawn:
        source = (root / fault.path).read_bytes()
        ast.parse(mark(source, [(0, fault)]))
        assert ast.dump(ast.parse(fault.put_into(source))) != ast.dump(ast.parse(source))


def test_a_packages_own_tests_come_first(found: list[Fault]) -> None:
    tests = [
        "tests/harness/test_a.py::test_b",
        "tests/codecs/test_c.py::test_d",
        "tests/codecs/test_c.py::test_e",
    ]
    costs = {"tests/codecs/test_c.py::test_d": 2.0, "tests/harness/test_a.py::test_b": 0.001}
    assert nearest_first(tests, found[0], costs) == [tests[2], tests[1], tests[0]]


def test_the_nearest_tests_are_tried_as_long_as_they_are_affordable() -> None:
    tests = ["tests/a.py::test_x[1]", "tests/a.py::test_y", "tests/b.py::test_z"]
    costs = {"tests/a.py::test_x": 3.0, "tests/a.py::test_y": 2.0, "tests/b.py::test_z": 0.1}
    assert affordable(tests, costs, 5.0) == tests[:2]
    assert affordable(tests, costs, 60.0) == tests
    assert affordable(tests, costs, 2.0) == []
