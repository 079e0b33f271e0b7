"""`make results`: sweeps within some minutes, one after another, and what they recorded in `results/`."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gradwire.harness.tasks import results


class Commands:
    """Notes the commands, and returns the next of the exit codes."""

    def __init__(self, *codes: int, writes: Callable[[str], object] = lambda sweep: None) -> None:
        self.codes, self.seen, self.writes = list(codes), list[tuple[str, ...]](), writes

    def __call__(self, *overrides: str) -> int:
        self.seen.append(overrides)
        self.writes(overrides[0])
        return self.codes.pop(0)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(results, "ROOT", tmp_path)
    return tmp_path


def record(folder: Path, sweep: str, digest: str = "") -> Path:
    output = folder / "outputs" / "sweeps" / f"{sweep}-small{digest}"
    (output / "replay").mkdir(parents=True)
    plots = [
        f"{name}-{form}"
        for name in ("tta", "bits")
        for form in ("print.svg", "print.png", "print.pdf", "dark.png")
    ]
    tables = ("values.csv.gz", "rows.jsonl.gz", "table.md", "table.json", "replay/table.md")
    (output / "profiles").mkdir()
    for name in ("sweep.json", *tables, "profiles/codec-0.json", "old-print.png", *plots):
        (output / name).write_text(name)
    return output


def test_each_sweep_gets_what_time_is_left(place: Path, monkeypatch: Any) -> None:
    record(place, "a").rename(place / "outputs" / "sweeps" / "a-small-0123456789ab")  # from other overrides
    record(place, "b")  # from an earlier time
    (place / "results" / "papers").mkdir(parents=True)
    paper = 'name: P\ntitle: P\nitems: {Figure 1: {kind: figure, sweep: a, plots: ["t*", old]}}\n'
    (place / "results" / "papers" / "p.yaml").write_text(paper)
    digest = "-ba9876543210"  # of text in a folder
    commands = Commands(0, 75, 0, writes=lambda asked: asked == "sweeps=a" and record(place, "a", digest))
    monkeypatch.setattr(results, "_command", commands)
    assert results.main(["a", "b", "--minutes", "20", "--override", "sweep.data=texts"]) == 75
    first, second, report = commands.seen
    assert first[:2] == ("sweeps=a", "size=small") and first[3] == "sweep.data=texts"
    assert float(first[2].removeprefix("sweep.minutes=")) == pytest.approx(20, abs=0.1)
    assert second[0] == "sweeps=b" and report == ("task=report",)
    folder = place / "results" / "a"
    kept = {str(path.relative_to(folder)) for path in folder.rglob("*.*") if path.is_file()}
    shown = ("tta-print.svg", "old-print.png")  # the last one has no better form
    tables = ("values.csv.gz", "rows.jsonl.gz", "table.md", "table.json.gz", "replay/table.md")
    assert kept == {f"small/{name}" for name in ("sweep.json", *tables, *shown)}
    assert gzip.decompress((folder / "small" / "table.json.gz").read_bytes()) == b"table.json"
    assert not (place / "results" / "b").exists(), "its command has written nothing"


def test_what_was_there_is_replaced_as_a_whole(place: Path) -> None:
    output, target = record(place, "a"), place / "results" / "a" / "small"
    target.mkdir(parents=True)
    (target / "older-print.svg").write_text("")
    assert results.publish(output, target)
    assert (target / "bits-print.svg").is_file()
    assert not (target / "older-print.svg").exists() and (target / "table.md").read_text() == "table.md"
    assert not results.publish(place / "nowhere", target) and (target / "table.md").is_file()


@pytest.mark.parametrize(("codes", "code"), [((1, 0, 0), 1), ((0, 0, 0), 0), ((130,), 130)])
def test_the_exit_code(codes: tuple[int, ...], code: int, place: Path, monkeypatch: Any) -> None:
    commands = Commands(*codes)
    monkeypatch.setattr(results, "_command", commands)
    assert results.main(["a", "b"]) == code
    assert not commands.codes
