"""Traces stay small and never end a run: sampled, thinned out at a bound, stopped when the disk is full."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from test_trace_files import trace

from gradwire.harness.timing.trace import blocks
from gradwire.harness.timing.trace.files import header, read_traces, recorded_steps, trace_file
from gradwire.harness.timing.trace.writer import TraceWriter, sampling


def write(writer: TraceWriter, first: int, stop: int, flush: int = 4) -> list[str]:
    """Steps of two ranks, as a run writes them; returns what it said."""
    notes = []
    for start in range(first, stop, flush):
        for rank in range(2):
            steps = [step for step in range(start, min(start + flush, stop)) if writer.takes(step)]
            writer.add(rank, {step: trace(0.1, 100 + step, peer=1 - rank) for step in steps})
        notes.append(writer.agree([writer.report(rank) for rank in range(2)]))
    return [note for note in notes if note is not None]


def test_of_every_few_steps_the_last_is_kept(tmp_path: Path) -> None:
    assert write(TraceWriter(tmp_path, every=3), 0, 10) == []
    assert recorded_steps(tmp_path, 2) == ([2, 5, 8], None)
    assert [step for step, _ in read_traces(tmp_path, 2)] == [2, 5, 8]


@pytest.mark.parametrize(
    ("steps", "every"), [([0, 1, 2], 1), ([3, 7, 11], 4), ([7], 8), ([], 1), ([1, 5], 2)]
)
def test_how_a_trace_was_sampled_shows_in_its_steps(steps: list[int], every: int) -> None:
    assert sampling(steps) == every


def test_at_its_bound_a_trace_is_thinned_out_evenly_and_says_so_once(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path, most_bytes=16_000)
    (note,) = write(writer, 0, 400)
    assert note == "note: the trace has reached measure.trace_mb=0.016 and is thinned: of 2 steps it has one"
    assert sum(path.stat().st_size for path in (tmp_path / "trace").iterdir()) < 20_000
    steps, damage = recorded_steps(tmp_path, 2)
    every = sampling(steps)
    assert damage is None and every > 2 and steps == list(range(every - 1, 400, every)), "over the whole run"
    assert [step for step, _ in read_traces(tmp_path, 2)] == steps


def test_a_resumed_attempt_keeps_the_steps_of_both(tmp_path: Path) -> None:
    write(TraceWriter(tmp_path, every=2), 0, 12)
    assert write(TraceWriter(tmp_path, every=3), 12, 36) == []
    assert recorded_steps(tmp_path, 2).steps == [5, 11, 17, 23, 29, 35]


def test_a_step_that_is_larger_than_the_bound_is_the_last(tmp_path: Path) -> None:
    (note,) = write(TraceWriter(tmp_path, most_bytes=10), 0, 20, flush=1)
    assert note == "note: no trace from here on, one step's is larger than measure.trace_mb=1e-05"
    assert recorded_steps(tmp_path, 2).steps == [0]


def test_a_full_disk_ends_the_trace_of_all_ranks_and_is_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, real = TraceWriter(tmp_path), os.write
    write(writer, 0, 8)

    def full(descriptor: int, content: bytes) -> int:
        if len(content) > 10:
            return real(descriptor, content[:10])
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(blocks.os, "write", full)
    (note,) = write(writer, 8, 40)
    assert note == (
        f"note: no trace from here on, {trace_file(tmp_path, 0)} cannot be written "
        "(No space left on device); the run continues"
    )
    assert not writer.takes(40)
    assert recorded_steps(tmp_path, 2) == (list(range(8)), None), "what was half written is gone"


def test_a_run_continues_if_no_trace_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").mkdir()
    (tmp_path / "file" / "trace").write_text("no folder")
    (note,) = write(TraceWriter(tmp_path / "file"), 0, 8)
    assert "cannot be written (File exists)" in note
    (tmp_path / "elsewhere").mkdir()
    for name in ("folder", "link"):
        (tmp_path / name).mkdir()
    (tmp_path / "folder" / "trace").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "link" / "trace").mkdir()
    trace_file(tmp_path / "link", 1).symlink_to(tmp_path / "elsewhere" / "file")
    for name in ("folder", "link"):
        (note,) = write(TraceWriter(tmp_path / name), 0, 8)
        assert "cannot be written (it is a link, which is not followed)" in note
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_file_says_whose_trace_it_is(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path, run="mine")
    for rank in range(2):
        writer.add(rank, {0: trace(0.1, peer=1 - rank)})
    assert recorded_steps(tmp_path, 2, run="mine").steps == [0]
    with pytest.raises(ValueError, match=r"rank0.arrows.zst: is run mine's trace, not this run's; remove it"):
        recorded_steps(tmp_path, 2, run="other")
    trace_file(tmp_path, 1).write_bytes(header("mine", 0))
    with pytest.raises(ValueError, match="is rank 0's trace, not this run's"):
        list(read_traces(tmp_path, 2, run="mine"))
