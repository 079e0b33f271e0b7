"""Results in the repository: little enough to clone, and each thing once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

RESULTS = Path(__file__).resolve().parents[3] / "results"
MADE = ("report.html",)
"""Made on demand, and ignored by git."""

MOST_BYTES = 20_000_000
PICTURES = (".svg", ".png", ".pdf")
FORMS = ("-print", "-dark")


def kept() -> list[Path]:
    return [path for path in RESULTS.rglob("*") if path.is_file() and path.name not in MADE]


def plot(path: Path) -> Path:
    """The picture that a file is a form of."""
    name = path.stem
    for form in FORMS:
        name = name.removesuffix(form)
    return path.with_name(name)


def test_results_are_small_enough_to_clone() -> None:
    files = kept()
    assert len(files) > 200
    largest = sorted(files, key=lambda path: -path.stat().st_size)[:5]
    total = sum(path.stat().st_size for path in files)
    assert total <= MOST_BYTES, f"{total / 1e6:.1f} MB; the largest: {[path.name for path in largest]}"


def test_no_picture_is_kept_in_two_forms() -> None:
    forms = Counter(plot(path) for path in kept() if path.suffix in PICTURES)
    assert [str(path) for path, number in forms.items() if number > 1] == []
    assert [path.name for path in kept() if path.stem.endswith("-dark")] == []


def test_tables_of_records_are_kept_compressed() -> None:
    assert [path for path in kept() if path.name in ("values.csv", "table.json")] == []
    assert sum(path.name == "values.csv.gz" for path in kept()) >= 40
