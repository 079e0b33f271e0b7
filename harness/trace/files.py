"""Traces on disk: `trace/rank<r>.jsonl` in a run's directory, written by each rank for itself.

Who sends what to whom repeats from step to step and is written once, as a program; a step's row refers to it
and holds the times alone, in microseconds from the step's start, one after another in the order of the
operations. On a simulated clock they are those of the work as it was measured, before the clock.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gradwire.harness.collector import collector_paused
from gradwire.harness.record.rows import append_rows, cut_rows, read_rows
from gradwire.harness.trace.step import Operation, Part, Post, RankTrace, StepTrace, TaskTrace, Wait, Work

FOLDER = "trace"
MICROSECONDS = 1e6

STEP = re.compile(r'\{"step": (\d+),')
"""How the line of a step begins, by which it is found without reading the rest."""

Program = list[Any]
"""Per operation: `["work", [[label, share], …]]`, `["post", phase, sends, receives]`, with a `true` at its
end where what is sent are copies, or `["wait", number]`."""


def trace_file(directory: Path, rank: int) -> Path:
    """Where a rank's trace lies in a run's directory."""
    return directory / FOLDER / f"rank{rank}.jsonl"


class TraceWriter:
    """Appends the steps of the ranks hosted here."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._known: dict[int, dict[bytes, int]] = {}
        (directory / FOLDER).mkdir(exist_ok=True)

    @collector_paused()
    def add(self, rank: int, traces: Mapping[int, RankTrace]) -> None:
        """Write some of a rank's steps: step number → trace."""
        path, rows = trace_file(self._directory, rank), list[dict[str, Any]]()
        known = self._known_of(rank)
        for step, trace in traces.items():
            tasks = []
            for task in trace.tasks:
                program = _program(task)
                key = _digest(program)
                if key not in known:
                    known[key] = len(known)
                    rows.append({"program": known[key], "operations": program})
                tasks.append(_task_row(task, known[key]))
            rows.append(
                {
                    "step": step,
                    "ready": _micro(trace.ready),
                    "update": _micro([trace.update_s])[0],
                    "end": _micro([trace.end])[0],
                    "tasks": tasks,
                }
            )
        append_rows(path, rows)

    def _known_of(self, rank: int) -> dict[bytes, int]:
        """The numbers of the programs that are in a rank's file, which an earlier attempt may have begun."""
        if rank not in self._known:
            self._known[rank] = _programs(trace_file(self._directory, rank))
        return self._known[rank]


def cut_traces(directory: Path, step: int) -> None:
    """Leave the steps before `step` alone, where a run goes on from there."""
    for path in (directory / FOLDER).glob("rank*.jsonl"):
        cut_rows(path, lambda row: row.get("step", -1) < step)


def read_traces(
    directory: Path, size: int, steps: Container[int] | None = None
) -> Iterator[tuple[int, StepTrace]]:
    """The steps of a run in their order, of all `size` ranks, one at a time; only `steps`, if given.

    ValueError where the trace is missing or damaged, or ranks have other steps than rank 0.
    """
    check_recorded(directory)
    first, *others = (_rank_steps(trace_file(directory, rank), steps) for rank in range(size))
    for step, trace in first:
        found = {0: trace}
        for rank, other in enumerate(others, start=1):
            number, own = next(other, (None, None))
            if own is None or number != step:
                raise ValueError(f"{trace_file(directory, rank)} lacks step {step}, which rank 0 has")
            found[rank] = own
        yield step, found


def recorded_steps(directory: Path) -> list[int]:
    """The numbers of the steps that rank 0 has kept; ValueError where there is none."""
    check_recorded(directory)
    with trace_file(directory, 0).open() as lines:
        return [step for line in lines if (step := _step_of(line)) is not None and line.endswith("\n")]


def check_recorded(directory: Path) -> None:
    """ValueError where no step has been kept."""
    path = trace_file(directory, 0)
    if path.is_file():
        with path.open() as lines:
            if any(_step_of(line) is not None for line in lines):
                return
    raise ValueError(f"{directory / FOLDER} holds no steps: was the run made with measure.trace=true?")


def _rank_steps(path: Path, steps: Container[int] | None) -> Iterator[tuple[int, RankTrace]]:
    """A rank's steps in their order; lines of other steps are skipped unread."""
    programs: dict[int, Program] = {}
    for row in _rows(path, steps):
        if "program" in row:
            programs[row["program"]] = row["operations"]
        else:
            yield row["step"], _rank_trace(row, programs)


def _rows(path: Path, steps: Container[int] | None) -> Iterator[dict[str, Any]]:
    """The programs and the steps of a file, none if it is missing; a last line cut off by a crash is left
    out."""
    if not path.is_file():
        return
    with path.open() as lines:
        for number, line in enumerate(lines, start=1):
            step = _step_of(line)
            if not line.endswith("\n") or (steps is not None and step is not None and step not in steps):
                continue
            try:
                yield json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(f"{path}, line {number}: not JSON ({error.msg})") from error


def _step_of(line: str) -> int | None:
    """The number of the step that a line holds; None for a program."""
    found = STEP.match(line)
    return int(found[1]) if found else None


def _digest(program: Program) -> bytes:
    """What tells programs apart, which are long where ranks are many, and of some codecs new at each step."""
    return hashlib.blake2b(repr(program).encode(), digest_size=16).digest()


def _programs(path: Path) -> dict[bytes, int]:
    """The programs that an earlier attempt has written."""
    return {_digest(row["operations"]): row["program"] for row in read_rows(path) if "program" in row}


def _micro(seconds: Sequence[float]) -> list[float]:
    return [round(MICROSECONDS * value, 2) for value in seconds]


def _program(task: TaskTrace) -> Program:
    return [_described(operation) for operation in task.operations]


def _described(operation: Operation) -> list[Any]:
    if isinstance(operation, Work):
        return ["work", [[part.label, part.share] for part in operation.parts]]
    if isinstance(operation, Post):
        sends, receives = [list(m) for m in operation.sends], [list(m) for m in operation.receives]
        return ["post", operation.phase, sends, receives, *([True] if operation.copies else [])]
    return ["wait", operation.number]


def _task_row(task: TaskTrace, program: int) -> list[Any]:
    times: list[float] = []
    for operation in task.operations:
        if isinstance(operation, Work):
            times += [operation.start, operation.end, *(part.seconds for part in operation.parts)]
        elif isinstance(operation, Post):
            times.append(operation.at)
        else:
            times += [operation.start, operation.end]
    return [task.bucket, task.coordinates, int(task.in_turn), *_micro([task.ready]), program, _micro(times)]


def _rank_trace(row: Mapping[str, Any], programs: Mapping[int, Program]) -> RankTrace:
    tasks = tuple(_task(task, programs) for task in row["tasks"])
    ready = tuple(at / MICROSECONDS for at in row["ready"])
    return RankTrace(ready, tasks, row["update"] / MICROSECONDS, row["end"] / MICROSECONDS)


def _task(row: Sequence[Any], programs: Mapping[int, Program]) -> TaskTrace:
    bucket, coordinates, in_turn, ready, program, micro = row
    times = iter(at / MICROSECONDS for at in micro)
    operations = tuple(_operation(described, times) for described in programs[program])
    return TaskTrace(bucket, coordinates, ready / MICROSECONDS, operations, bool(in_turn))


def _operation(described: Sequence[Any], times: Iterator[float]) -> Operation:
    kind, *fields = described
    if kind == "work":
        start, end = next(times), next(times)
        return Work(start, end, tuple(Part(label, share, next(times)) for label, share in fields[0]))
    if kind == "post":
        phase, sends, receives, *copies = fields
        return Post(next(times), phase, tuple(map(_pair, sends)), tuple(map(_pair, receives)), bool(copies))
    return Wait(fields[0], next(times), next(times))


def _pair(message: Sequence[int]) -> tuple[int, int]:
    peer, num_bytes = message
    return peer, num_bytes
