"""Traces on disk: what was written comes back, programs are written once, attempts go on from each other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gradwire.harness.trace import files
from gradwire.harness.trace.files import TraceWriter, cut_traces, read_traces, trace_file
from gradwire.harness.trace.step import Part, Post, RankTrace, TaskTrace, Wait, Work


def trace(start: float, num_bytes: int = 100, in_turn: bool = False) -> RankTrace:
    """One rank's step whose messages have `num_bytes`."""
    operations = (
        Work(start, start + 0.001, (Part("encode", 0.5, 0.0004), Part("plan", 1.0, 0.0002))),
        Post(start + 0.001, "reduce_scatter", ((1, num_bytes),), ((1, num_bytes),)),
        Work(start + 0.001, start + 0.001),
        Wait(0, start + 0.001, start + 0.004),
        Work(start + 0.004, start + 0.005, (Part("decode", 0.5, 0.0007),)),
    )
    return RankTrace((start,), (TaskTrace(0, 1000, start, operations, in_turn),), 0.002, start + 0.01)


def close(found: object, expected: object) -> bool:
    """Equal but for a rounding to hundredths of a microsecond."""
    if isinstance(expected, float):
        return isinstance(found, float) and abs(found - expected) <= 1e-8
    if isinstance(expected, tuple):
        same = isinstance(found, tuple) and len(found) == len(expected)
        return same and all(close(a, b) for a, b in zip(found, expected, strict=True))  # type: ignore[arg-type]
    return found == expected


def test_steps_come_back(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path)
    steps = {0: trace(0.1), 1: trace(0.2, 300), 2: trace(0.3, in_turn=True)}
    for rank in range(2):
        writer.add(rank, {0: steps[0]})
        writer.add(rank, {1: steps[1], 2: steps[2]})
    found = dict(read_traces(tmp_path, 2))
    assert list(found) == [0, 1, 2]
    for step, ranks in found.items():
        assert close(ranks[0], steps[step]) and close(ranks[1], steps[step])


def test_copies_come_back_as_copies(tmp_path: Path) -> None:
    posts = [Post(0.5, "all_gather", ((1, 7), (2, 7)), (), copies) for copies in (True, False, True)]
    task = TaskTrace(0, 10, 0.0, tuple(posts))
    TraceWriter(tmp_path).add(0, {0: RankTrace((0.0,), (task,), 0.0, 1.0)})
    ((_, found),) = read_traces(tmp_path, 1)
    assert found[0].tasks[0].operations == tuple(posts)


def test_a_program_is_written_once_also_by_a_later_attempt(tmp_path: Path) -> None:
    TraceWriter(tmp_path).add(0, {0: trace(0.1), 1: trace(0.2)})
    TraceWriter(tmp_path).add(0, {2: trace(0.3), 3: trace(0.4, 300)})
    rows = [json.loads(line) for line in trace_file(tmp_path, 0).read_text().splitlines()]
    assert [row["program"] for row in rows if "program" in row] == [0, 1]
    assert [row["step"] for row in rows if "step" in row] == [0, 1, 2, 3]


def test_a_file_is_looked_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often steps are added: else a long run would read more and more."""
    read = []
    monkeypatch.setattr(files, "read_rows", lambda path: read.append(path) or [])
    writer = TraceWriter(tmp_path)
    for step in range(5):
        writer.add(0, {step: trace(0.1)})
    assert len(read) == 1


def test_steps_after_a_checkpoint_are_cut(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path)
    for rank in range(2):
        writer.add(rank, {step: trace(0.1, 100 + step) for step in range(5)})
    cut_traces(tmp_path, 3)
    TraceWriter(tmp_path).add(0, {3: trace(0.7)})
    TraceWriter(tmp_path).add(1, {3: trace(0.7)})
    found = dict(read_traces(tmp_path, 2))
    assert list(found) == [0, 1, 2, 3]
    assert close(found[3][0], trace(0.7))


def test_a_line_cut_off_by_a_crash_is_left_out(tmp_path: Path) -> None:
    TraceWriter(tmp_path).add(0, {0: trace(0.1), 1: trace(0.2)})
    path = trace_file(tmp_path, 0)
    path.write_text(path.read_text()[:-20])
    assert [step for step, _ in read_traces(tmp_path, 1)] == [0]


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no steps: was the run made with measure.trace=true"):
        next(iter(read_traces(tmp_path, 2)))
    writer = TraceWriter(tmp_path)
    writer.add(0, {0: trace(0.1), 1: trace(0.2)})
    writer.add(1, {0: trace(0.1)})
    with pytest.raises(ValueError, match=r"rank1.jsonl lacks step 1, which rank 0 has"):
        list(read_traces(tmp_path, 2))
