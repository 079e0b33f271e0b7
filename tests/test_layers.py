"""Folders are layers: imports point one way, in the order of docs/architecture.md."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest
from layers import circle, imports, layers, upward

ROOT = Path(__file__).resolve().parent.parent
ORDER = layers((ROOT / "docs" / "architecture.md").read_text())


def test_every_package_has_its_place() -> None:
    holding = {path.parent.relative_to(ROOT).as_posix() for path in (ROOT / "harness").rglob("*.py")}
    outside = [
        folder for folder in sorted(holding) if folder != "harness" and not folder.startswith(tuple(ORDER))
    ]
    assert outside == [] and len(ORDER) == len(set(ORDER))
    assert [name for name in ORDER if not (ROOT / name).is_dir()] == []


@pytest.mark.whole
def test_nothing_imports_upwards() -> None:
    assert upward(ROOT, ORDER) == []


@pytest.mark.whole
def test_no_circle_among_codecs() -> None:
    assert circle(ROOT, "codecs") == []


def test_codecs_know_nothing_of_the_harness() -> None:
    assert [str(path) for path, module in imports(ROOT, "codecs") if module.startswith("harness")] == []


@pytest.mark.parametrize(
    "line",
    [
        "from gradwire.harness.upper.task import run",
        "import gradwire.harness.upper.task",
        "from gradwire.harness.upper import task",
        "def later() -> None:\n    from gradwire.harness.upper.task import run",
    ],
)
def test_a_planted_import_is_found(tmp_path: Path, line: str) -> None:
    for name, text in {"lower/base": line, "upper/task": "from gradwire.harness.lower import base"}.items():
        path = tmp_path / "harness" / f"{name}.py"
        path.parent.mkdir(parents=True)
        path.write_text(text)
    (found,) = upward(tmp_path, ["harness/lower", "harness/upper"])
    assert found == "harness/lower/base.py imports harness/upper, which is above harness/lower"
    assert sorted(set(circle(tmp_path, "harness"))) == ["lower", "upper"]
    (tmp_path / "harness" / "lower" / "base.py").write_text("")
    assert upward(tmp_path, ["harness/lower", "harness/upper"]) == circle(tmp_path, "harness") == []


def test_a_class_has_its_name_to_itself() -> None:
    """A search for the name finds one class."""
    found = Counter(
        node.name
        for folder in ("codecs", "harness")
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    )
    assert [name for name, number in found.items() if number > 1] == []
