"""Damaged traces are named with the step and the remedy, cut when a run resumes, and never used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow
import pytest
from damages import DAMAGES, one_line
from test_trace_files import trace

from gradwire.harness.timing.trace import blocks
from gradwire.harness.timing.trace.files import (
    RankFile,
    RecordedSteps,
    header,
    read_traces,
    recorded_steps,
    trace_file,
)
from gradwire.harness.timing.trace.rows import BadRowError, TraceRow, rows_of, trace_of
from gradwire.harness.timing.trace.writer import TraceWriter, cut_traces


@pytest.fixture
def traced(tmp_path: Path) -> Path:
    """Steps 0 to 3 of two ranks, a block each."""
    writer = TraceWriter(tmp_path, run="mine")
    for step in range(4):
        for rank in range(2):
            writer.add(rank, {step: trace(0.1, 100 + step, peer=1 - rank)})
    return tmp_path


def block_starts(path: Path) -> list[int]:
    with path.open("rb") as file:
        sizes = [len(block.stored) for block in blocks.blocks(file)]
    return [sum(sizes[:index]) for index in range(len(sizes))]


def flip(path: Path) -> None:
    """A bit in the block of step 2, the fourth of the file."""
    content = bytearray(path.read_bytes())
    content[block_starts(path)[3] + 60] ^= 4
    path.write_bytes(content)


def test_a_flipped_bit_is_named_with_the_step_and_cut(traced: Path) -> None:
    flip(trace_file(traced, 1))
    steps, damage = recorded_steps(traced, 2, run="mine")
    assert steps == [0, 1]
    assert damage is not None and damage.startswith(
        f"{trace_file(traced, 1)}: is damaged after step 1 (a block's checksum"
    )
    assert damage.endswith(
        "; timeline.step= shows a step before it; a run that is resumed cuts its trace there"
    )
    with pytest.raises(ValueError, match=r"rank1.arrows.zst: is damaged after step 1"):
        list(read_traces(traced, 2))
    assert [step for step, _ in read_traces(traced, 2, set(steps))] == [0, 1]
    (note,) = cut_traces(traced, 3, "mine")
    assert "is damaged after step 1" in note and note.endswith(
        "all ranks' traces are cut there; the run continues"
    )
    assert recorded_steps(traced, 2, run="mine") == ([0, 1], None)
    assert cut_traces(traced, 3, "mine") == []


@pytest.mark.parametrize(
    "content",
    [
        b"\xff" * 500,
        b"{}\n" * 20,
        blocks.stored(b"[" * 100_000),
        blocks.step_block([(0, [TraceRow("step")])]),
    ],
)
def test_an_unknown_file_is_removed_on_resume(content: bytes, traced: Path) -> None:
    trace_file(traced, 0).write_bytes(content)
    with pytest.raises(ValueError, match=r"rank0.arrows.zst: is damaged at its beginning .*; remove it"):
        recorded_steps(traced, 2)
    (note,) = cut_traces(traced, 3, "mine")
    assert "rank0.arrows.zst is damaged at its beginning" in note and "\n" not in note
    with pytest.raises(ValueError, match="holds no steps"):
        recorded_steps(traced, 2)
    TraceWriter(traced, run="mine").add(0, {3: trace(0.1)})


def test_another_run_s_trace_is_removed_on_resume(traced: Path) -> None:
    notes = cut_traces(traced, 3, "other")
    assert len(notes) == 2 and all("is run mine's trace, not this run's: removed" in note for note in notes)


def test_an_emptied_file_has_no_steps(traced: Path) -> None:
    trace_file(traced, 1).write_bytes(b"")
    with pytest.raises(ValueError, match=r"rank1.arrows.zst: is damaged at its beginning \(it is empty"):
        recorded_steps(traced, 2)
    (note,) = cut_traces(traced, 3, "mine")
    assert "rank1.arrows.zst is damaged at its beginning" in note and note.endswith("the run continues")


def test_a_file_that_ends_early_is_named(traced: Path) -> None:
    """Between two blocks, or in one: as a crash leaves it, but for steps that a checkpoint has."""
    path = trace_file(traced, 1)
    for length in (block_starts(path)[3], block_starts(path)[3] + 9):
        path.write_bytes(path.read_bytes()[:length])
        assert recorded_steps(traced, 2, run="mine") == ([0, 1], None)
    assert cut_traces(traced, 2, "mine") == []
    TraceWriter(traced, run="mine").add(0, {2: trace(0.1), 3: trace(0.1)})
    (note,) = cut_traces(traced, 3, "mine")
    assert note.startswith(f"{path} lacks steps that other ranks have: all ranks' traces are cut to those")
    assert recorded_steps(traced, 2, run="mine") == ([0, 1], None)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("rank", [0, 1])
def test_what_is_left_of_a_damaged_file_is_what_was_written(
    rank: int, damage: str, traced: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Every reader says in one line what is wrong; a resumed run cuts the file, and says so."""
    whole, path = dict(read_traces(traced, 2)), trace_file(traced, rank)
    other = tmp_path_factory.mktemp("other")
    TraceWriter(other, run="other").add(rank, {step: trace(0.2, 7) for step in range(4)})
    path.write_bytes(DAMAGES[damage](path.read_bytes(), trace_file(other, rank).read_bytes()))
    for read in (lambda: list(read_traces(traced, 2, run="mine")), lambda: recorded_steps(traced, 2)):
        try:
            found = read()
        except ValueError as error:
            one_line(str(error))
            assert str(path) in str(error)
        else:
            if isinstance(found, RecordedSteps):
                assert found.damage is None or str(path) in found.damage
                assert found.steps == list(range(len(found.steps)))
            else:
                assert all(trace == whole[step] for step, trace in found), "those before the damage"
    notes = cut_traces(traced, 4, "mine")
    assert len(notes) == 1 and str(path) in notes[0]
    one_line(notes[0])
    try:
        left = dict(read_traces(traced, 2, run="mine"))
    except ValueError as error:
        assert "holds no steps" in str(error)
    else:
        assert left == {step: whole[step] for step in range(len(left))}


def test_bombs_are_refused_after_a_block(traced: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks that are too large, give a wrong size, or hold a record batch that is itself compressed."""
    sink = pyarrow.BufferOutputStream()
    options = pyarrow.ipc.IpcWriteOptions(compression="zstd")
    writer = pyarrow.ipc.new_stream(sink, blocks.schema(), options=options)
    columns = [["step"] * 1000 if name in ("kind", "label") else [0] * 1000 for name in blocks.schema().names]
    writer.write_batch(
        pyarrow.record_batch(
            [
                pyarrow.array(values, field.type)
                for values, field in zip(columns, blocks.schema(), strict=True)
            ],
            schema=blocks.schema(),
        )
    )
    messages = [each.serialize() for each in pyarrow.ipc.MessageReader.open_stream(sink.getvalue())]
    inner = blocks.stored(b"".join(message.to_pybytes() for message in messages[2:]))
    large = blocks.stored(b"a" * 2**22)
    magic, size, checksum, num_stored, _ = blocks.FRAME.unpack(large[: blocks.FRAME.size])
    lie = blocks.FRAME.pack(magic, size, checksum, num_stored, 2**10) + large[blocks.FRAME.size :]
    monkeypatch.setattr(blocks, "MOST_BYTES", 2**20)
    for content, problem in ((large, "holds more than"), (lie, "checksum"), (inner, "itself compressed")):
        trace_file(traced, 0).write_bytes(header("mine", 0) + content)
        with pytest.raises(ValueError, match=problem):
            list(RankFile(traced, 0).steps())


ROWS = rows_of(trace(0.1))


def changed(which: str, /, **values: Any) -> list[TraceRow]:
    """A step's rows, the first of a kind with other values."""
    index = [row.kind for row in ROWS].index(which)
    return [*ROWS[:index], ROWS[index]._replace(**values), *ROWS[index + 1 :]]


MALFORMED: dict[str, list[TraceRow]] = {
    "a row start is out of place": ROWS[1:],
    "a step does not begin with its row": [ROWS[0], *ROWS],
    "a synchronous step has other computation": [ROWS[0], *ROWS[3:]],
    "ticks are not the time of a step": changed("update", duration=10**17),
    "bucket: -1": changed("task", number=-1),
    "coordinates: -1": changed("task", amount=-1),
    "a row run is out of place": changed("work", kind="run"),
    "a row part follows one of wait": [*ROWS, TraceRow("wait"), TraceRow("part")],
    "a part has the share nan": changed("part", share=float("nan")),
    "the post of a wait: 9": changed("wait", number=9),
    "has a message with rank 5": changed("send", number=5),
    "bytes: -1 is not a whole number": changed("send", amount=-1),
    "urgency: -1": [*ROWS, TraceRow("post"), TraceRow("urgency", number=-1)],
    "an awaited collective: 1": [TraceRow("step"), TraceRow("await", task=1), *ROWS[3:]],
    "a start's collective: -1": [TraceRow("step"), TraceRow("start"), *ROWS[3:]],
    "a row update follows one of compute": [
        TraceRow("step"),
        TraceRow("compute"),
        TraceRow("update"),
        *ROWS[3:],
    ],
}


@pytest.mark.parametrize("problem", list(MALFORMED))
def test_a_damaged_row_is_named(problem: str) -> None:
    with pytest.raises(BadRowError) as no:
        trace_of(MALFORMED[problem], 0, 2)
    assert problem in str(no.value)
    one_line(str(no.value))


def test_a_damaged_row_is_named_with_file_and_step(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path)
    for rank in range(2):
        writer.add(rank, {0: trace(0.1, peer=1 - rank)})
    for step, problem in ((1, "has a message with rank 5"), (0, "step 0 follows step 0")):
        path = trace_file(tmp_path, 0)
        whole = path.read_bytes()
        path.write_bytes(whole + blocks.step_block([(step, changed("send", number=5))]))
        with pytest.raises(ValueError, match=rf"rank0.arrows.zst: is damaged after step 0 \(.*{problem}"):
            list(read_traces(tmp_path, 2))
        path.write_bytes(whole)
