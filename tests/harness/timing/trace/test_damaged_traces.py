"""Damaged traces are named with the step and the remedy, cut when a run resumes, and never used."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from damages import DAMAGES, one_line
from test_trace_files import OLD, trace, write_old

from gradwire.harness.timing.trace import blocks
from gradwire.harness.timing.trace.files import (
    Recorded,
    header,
    rank_file,
    read_traces,
    recorded_steps,
    trace_file,
)
from gradwire.harness.timing.trace.writer import TraceWriter, cut_traces

LINES = [json.loads(line) for line in OLD.splitlines()]


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
    content[block_starts(path)[3] + 40] ^= 4
    path.write_bytes(content)


def test_a_flipped_bit_is_named_with_the_step_and_cut(traced: Path) -> None:
    flip(trace_file(traced, 1))
    steps, damage = recorded_steps(traced, 2, run="mine")
    assert steps == [0, 1]
    assert damage is not None and damage.startswith(
        f"{trace_file(traced, 1)}: is damaged after step 1 (Error -3"
    )
    assert damage.endswith(
        "; timeline.step= shows a step before it; a run that is resumed cuts its trace there"
    )
    with pytest.raises(ValueError, match=r"rank1.jsonl.gz: is damaged after step 1"):
        list(read_traces(traced, 2))
    assert [step for step, _ in read_traces(traced, 2, set(steps))] == [0, 1]
    (note,) = cut_traces(traced, 3, "mine")
    assert "is damaged after step 1" in note and note.endswith(
        "all ranks' traces are cut there; the run goes on"
    )
    assert recorded_steps(traced, 2, run="mine") == ([0, 1], None)
    assert cut_traces(traced, 3, "mine") == []


@pytest.mark.parametrize(
    "content",
    [b"\xff" * 500, b"{}\n", blocks.compressed([b"[" * 100_000 + b"\n"]), blocks.compressed([b"5\n"])],
)
def test_a_file_of_nothing_known_is_removed_when_the_run_goes_on(content: bytes, traced: Path) -> None:
    trace_file(traced, 0).write_bytes(content)
    with pytest.raises(ValueError, match=r"rank0.jsonl.gz: is damaged at its beginning .*; remove it"):
        recorded_steps(traced, 2)
    (note,) = cut_traces(traced, 3, "mine")
    assert "rank0.jsonl.gz is damaged at its beginning" in note and "\n" not in note
    with pytest.raises(ValueError, match="holds no steps"):
        recorded_steps(traced, 2)
    TraceWriter(traced, run="mine").add(0, {3: trace(0.1)})


def test_another_run_s_trace_is_removed_when_the_run_goes_on(traced: Path) -> None:
    notes = cut_traces(traced, 3, "other")
    assert len(notes) == 2 and all("is run mine's trace, not this run's: removed" in note for note in notes)


def test_an_emptied_file_has_no_steps(traced: Path) -> None:
    trace_file(traced, 1).write_bytes(b"")
    with pytest.raises(ValueError, match=r"rank1.jsonl.gz: is damaged at its beginning \(it is empty"):
        recorded_steps(traced, 2)
    (note,) = cut_traces(traced, 3, "mine")
    assert "rank1.jsonl.gz is damaged at its beginning" in note and note.endswith("the run goes on")


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
    """Whatever reads it says in one line what is wrong; a run that goes on cuts it, and says so."""
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
            if isinstance(found, Recorded):
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
    monkeypatch.setattr(blocks, "MOST_BYTES", 2**20)
    packer = zlib.compressobj(wbits=31)
    bomb = packer.compress(b"a" * 2**22) + packer.flush()
    many = blocks.compressed([b"a" * 2**19 + b"\n"]) * 20
    for content, problem in ((bomb, "a block holds more than"), (many, "expands to more than 100 times")):
        trace_file(traced, 0).write_bytes(blocks.compressed([header("mine", 0)]) + content)
        with pytest.raises(ValueError, match=problem):
            list(rank_file(traced, 0).lines())


def changed(number: int, *place: Any, to: Any) -> str:
    """The older file's lines, one value of which is another."""
    rows = json.loads(json.dumps(LINES))
    holder = rows[number]
    for key in place[:-1]:
        holder = holder[key]
    holder[place[-1]] = to
    return "".join(json.dumps(row) + "\n" for row in rows)


MALFORMED: dict[str, Callable[[], str]] = {
    "not JSON": lambda: OLD.replace('"ready": [200000.0]', '"ready": [2000'),
    "ready: not a list": lambda: changed(3, "ready", to=5),
    "ready: not numbers only": lambda: changed(3, "ready", to=["a"]),
    "ready: not the times": lambda: changed(3, "ready", to=[1e99]),
    "update and end: not the times": lambda: changed(3, "end", to=float("nan")),
    "tasks: not a list": lambda: changed(3, "tasks", to={}),
    "a task: not a list of 6": lambda: changed(3, "tasks", 0, to=[1]),
    "bucket: -1": lambda: changed(3, "tasks", 0, 0, to=-1),
    "program 7 is missing": lambda: changed(3, "tasks", 0, 4, to=7),
    "a task has 1 times, its program 12": lambda: changed(3, "tasks", 0, 5, to=[1.0]),
    "a program has no operations": lambda: changed(2, "operations", to=[]),
    "an operation is": lambda: changed(2, "operations", 0, to=["run", "rm"]),
    "a part is": lambda: changed(2, "operations", 0, 1, 0, to=[5, 0.5]),
    "a wait is for post 9 of 1": lambda: changed(2, "operations", 3, 1, to=9),
    "has a message with rank 5": lambda: changed(2, "operations", 1, 2, 0, 0, to=5),
    "bytes: 1.5 is not a whole number": lambda: changed(2, "operations", 1, 2, 0, 1, to=1.5),
    "step 0 follows step 0": lambda: changed(3, "step", to=0),
}


@pytest.mark.parametrize("problem", list(MALFORMED))
def test_a_damaged_row_is_named_with_file_and_step(problem: str, tmp_path: Path) -> None:
    write_old(tmp_path, MALFORMED[problem]())
    with pytest.raises(
        ValueError, match=r"rank[01].jsonl: is damaged (after step 0|at its beginning) \("
    ) as no:
        list(read_traces(tmp_path, 2))
    assert problem in str(no.value) and "\n" not in str(no.value)
    assert len(str(no.value)) - len(str(tmp_path)) < 300
