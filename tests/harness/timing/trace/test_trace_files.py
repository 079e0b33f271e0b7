"""Traces on disk: what was written is read back, and later attempts append to it."""

from __future__ import annotations

from pathlib import Path

import pandas
import pyarrow
import pytest

from gradwire.harness.timing.trace import blocks
from gradwire.harness.timing.trace.files import RankFile, read_traces, recorded_steps, trace_file
from gradwire.harness.timing.trace.rows import TraceRow
from gradwire.harness.timing.trace.step import Part, Post, RankTrace, TaskTrace, Wait, Work
from gradwire.harness.timing.trace.writer import TraceWriter, cut_traces


def trace(start: float, num_bytes: int = 100, in_turn: bool = False, peer: int = 1) -> RankTrace:
    """A rank's step, whose messages have `num_bytes` and go to and from `peer`."""
    operations = (
        Work(start, start + 0.001, (Part("encode", 0.5, 0.0004), Part("plan", 1.0, 0.0002))),
        Post(start + 0.001, "reduce_scatter", ((peer, num_bytes),), ((peer, num_bytes),)),
        Work(start + 0.001, start + 0.001),
        Wait(0, start + 0.001, start + 0.004),
        Work(start + 0.004, start + 0.005, (Part("decode", 0.5, 0.0007),)),
    )
    return RankTrace.synchronous(
        (start,), (TaskTrace(0, 1000, start, operations, in_turn),), 0.002, start + 0.01
    )


def close(found: object, expected: object) -> bool:
    """True if both are equal, except for rounding to hundredths of a microsecond."""
    if isinstance(expected, float):
        return isinstance(found, float) and abs(found - expected) <= 1e-8
    if isinstance(expected, tuple):
        same = isinstance(found, tuple) and len(found) == len(expected)
        return same and all(close(a, b) for a, b in zip(found, expected, strict=True))  # type: ignore[arg-type]
    return found == expected


def table(path: Path) -> pandas.DataFrame:
    """A rank's file as users read it."""
    return pyarrow.ipc.open_stream(pyarrow.input_stream(str(path))).read_pandas()


def test_steps_come_back(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path)
    steps = {0: trace(0.1), 1: trace(0.2, 300), 2: trace(0.3, in_turn=True)}
    other = {0: trace(0.1, peer=0), 1: trace(0.2, 300, peer=0), 2: trace(0.3, in_turn=True, peer=0)}
    for rank, own in enumerate([steps, other]):
        writer.add(rank, {0: own[0]})
        writer.add(rank, {1: own[1], 2: own[2]})
    found = dict(read_traces(tmp_path, 2))
    assert list(found) == [0, 1, 2]
    for step, ranks in found.items():
        assert close(ranks[0], steps[step]) and close(ranks[1], other[step])


def test_copies_come_back_as_copies(tmp_path: Path) -> None:
    posts = [Post(0.5, "all_gather", ((1, 7), (2, 7)), (), copies) for copies in (True, False, True)]
    task = TaskTrace(0, 10, 0.0, tuple(posts))
    TraceWriter(tmp_path).add(0, {0: RankTrace.synchronous((0.0,), (task,), 0.0, 1.0)})
    ((_, found),) = RankFile(tmp_path, 0).traces(3)
    assert found.tasks[0].operations == tuple(posts)


def test_pandas_reads_a_file_in_two_lines(tmp_path: Path) -> None:
    """Also one of several blocks and attempts, whose labels differ."""
    TraceWriter(tmp_path, run="mine").add(0, {0: trace(0.1), 1: trace(0.2)})
    TraceWriter(tmp_path, run="mine").add(0, {2: trace(0.3, 300)})
    frame = table(trace_file(tmp_path, 0))
    assert list(frame.columns) == ["step", *TraceRow._fields]
    assert list(frame.step.unique()) == [0, 1, 2]
    sent = frame[frame.kind == "send"]
    assert list(sent.number) == [1, 1, 1] and list(sent.amount) == [100, 100, 300]
    encoded = frame[(frame.kind == "part") & (frame.label == "encode")]
    assert list(encoded.duration) == [40_000] * 3, "ticks of 10 ns"


def test_a_long_step_ends_its_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradwire.harness.timing.trace.writer.MOST_ROWS", 5)
    TraceWriter(tmp_path).add(0, {step: trace(0.1 * step) for step in range(4)})
    with trace_file(tmp_path, 0).open("rb") as file:
        assert len(list(blocks.blocks(file))) == 5, "the header, and a block for each step"
    assert recorded_steps(tmp_path, 1) == ([0, 1, 2, 3], None)


def test_steps_after_a_checkpoint_are_cut(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path)
    for rank in range(2):
        writer.add(rank, {step: trace(0.1, 100 + step, peer=1 - rank) for step in range(5)})
    cut_traces(tmp_path, 3)
    TraceWriter(tmp_path).add(0, {3: trace(0.7)})
    TraceWriter(tmp_path).add(1, {3: trace(0.7, peer=0)})
    found = dict(read_traces(tmp_path, 2))
    assert list(found) == [0, 1, 2, 3]
    assert close(found[3][0], trace(0.7))


@pytest.mark.parametrize("lost", [1, 20, 200])
def test_a_block_cut_off_by_a_crash_is_left_out(lost: int, tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path)
    for step in range(2):
        for rank in range(2):
            writer.add(rank, {step: trace(0.1, 100 + step, peer=1 - rank)})
    path = trace_file(tmp_path, 0)
    path.write_bytes(path.read_bytes()[:-lost])
    assert recorded_steps(tmp_path, 2) == ([0], None)
    (note,) = cut_traces(tmp_path, 5)
    assert note.startswith(f"{path} lacks steps that other ranks have")
    for rank in range(2):
        TraceWriter(tmp_path).add(rank, {1: trace(0.5, peer=1 - rank)})
    assert [step for step, _ in read_traces(tmp_path, 2)] == [0, 1]


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    for read in (recorded_steps, lambda directory, size: list(read_traces(directory, size))):
        with pytest.raises(ValueError, match="trace: holds no steps; train with measure.trace=true, and"):
            read(tmp_path, 2)
    writer = TraceWriter(tmp_path)
    writer.add(0, {0: trace(0.1), 1: trace(0.2)})
    writer.add(1, {0: trace(0.1, peer=0)})
    with pytest.raises(ValueError, match=r"rank1.arrows.zst: lacks step 1, which rank 0 has"):
        list(read_traces(tmp_path, 2))
