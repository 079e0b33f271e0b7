"""A step's timeline as a Chrome trace, of real, simulated and pipelined runs, and made by hand."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
from chrome_checks import check_chrome
from pool import Workers
from traced_runs import SIMULATED, real_run, virtual_run

from gradwire.harness.record.row_file import read_rows
from gradwire.harness.record.timed_steps import timed_steps
from gradwire.harness.timing.trace.chrome import chrome_text
from gradwire.harness.timing.trace.messages import messages, offsets
from gradwire.harness.timing.trace.step import Part, Post, RankTrace, StepTrace, TaskTrace, Wait, Work


def ring_of_two(late: float = 0.0, begun: float = 0.0) -> StepTrace:
    """Both ranks encode, send each other 100 B, and decode; rank 0 after `begun` seconds, rank 1, by its own
    clock, `late` seconds earlier."""

    def own(rank: int, at: float) -> RankTrace:
        operations = (
            Work(at + 1.0, at + 2.0, (Part("encode", 1.0, 0.75),)),
            Post(at + 2.0, "reduce_scatter", ((1 - rank, 100),), ((1 - rank, 100),)),
            Wait(0, at + 2.0, at + 3.0),
            Work(at + 3.0, at + 4.0, (Part("decode", 0.5, 1.0),)),
        )
        return RankTrace.synchronous((at + 1.0,), (TaskTrace(0, 8, at + 1.0, operations),), 0.5, at + 5.0)

    return {0: own(0, begun), 1: own(1, begun - late)}


def check_steps(directory: Path) -> None:
    """Every step of a run is well formed, inside its step, and holds all that was sent."""
    rows = {row["step"]: row for row in read_rows(directory / "steps.jsonl")}
    steps = dict(timed_steps(directory))
    assert steps.keys() == rows.keys()
    for number, trace in steps.items():
        events = check_chrome(chrome_text(trace, step=number))
        bars = [event for event in events if event["ph"] == "X"]
        length = 1e6 * (max(own.end for own in trace.values()) + max(offsets(messages(trace), len(trace))))
        assert all(bar["ts"] + bar["dur"] <= length + 0.01 for bar in bars)
        sent = sum(bar["args"]["bytes"] for bar in bars if bar["cat"] == "network out")
        assert sent == rows[number]["bytes_sent"]
        assert {bar["pid"] for bar in bars} == {rank + 1 for rank in trace}
        assert {"forward, backward until bucket 0", "update", "encode"} <= {bar["name"] for bar in bars}


def test_a_real_run(paced: Path) -> None:
    check_steps(paced)


def test_a_simulated_run(simulated: Path) -> None:
    check_steps(simulated)


@pytest.mark.parametrize("topology", ["ring", "butterfly", "broadcast"])
def test_a_pipelined_simulated_run(topology: str, tmp_path: Path) -> None:
    """Messages of the same two ranks are in flight together: they need rows of their own."""
    codec = "omnireduce" if topology == "broadcast" else "dynamiq"
    given = (*SIMULATED, f"topology={topology}", f"codec={codec}", "overlap.segments=3", "network.jitter=0.2")
    check_steps(virtual_run(tmp_path / "run", 4, *given, "measure.check_hashes=true"))


def test_a_pipelined_real_run(tmp_path: Path, workers: Workers) -> None:
    check_steps(real_run(tmp_path / "run", 2, workers, "overlap.segments=2", "measure.check_hashes=true"))


def test_a_step_by_hand() -> None:
    events = check_chrome(chrome_text(ring_of_two(), run="by hand"))
    bars: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X" and event["pid"] == 1:
            bars[event["cat"]].append((event["name"], event["ts"], event["dur"]))
    assert bars == {
        "compute": [("forward, backward until bucket 0", 0, 1e6), ("update", 4.5e6, 0.5e6)],
        "wait": [("result of task 0", 1e6, 3e6), ("all ranks", 4e6, 0.5e6)],
        "codec": [("encode", 1e6, 0.75e6), ("python", 1.75e6, 0.25e6), ("decode", 3e6, 1e6)],
        "network out": [("reduce_scatter 0→1 100 B", 2e6, 1e6)],
        "network in": [("reduce_scatter 1→0 100 B", 2e6, 1e6)],
    }
    out = next(event for event in events if event.get("cat") == "network out")
    assert out["args"] == {"bytes": 100, "peer": 1, "phase": "reduce_scatter", "bucket": 0}
    encode = next(event for event in events if event["name"] == "encode")
    assert encode["args"] == {"bucket": 0, "coordinates": 8, "share": 1.0}
    names = [event["args"]["name"] for event in events if event["name"] == "thread_name"]
    assert names == ["compute", "wait", "codec", "network out", "network in"] * 2


@pytest.mark.parametrize("late", [1.5, -1.5])
def test_no_message_arrives_before_it_is_sent(late: float) -> None:
    """Ranks measure from their own step's start: how far these are apart is seen from the messages."""
    trace = ring_of_two(late, begun=3.0)
    delays = offsets(messages(trace), 2)
    assert delays == ([0.0, 0.5] if late > 0 else [0.5, 0.0])  # the least that is possible
    check_chrome(chrome_text(trace))


def test_what_outlasts_the_step_is_cut() -> None:
    trace = {rank: own._replace(end=3.75) for rank, own in ring_of_two().items()}
    bars = [event for event in check_chrome(chrome_text(trace)) if event["ph"] == "X"]
    assert max(bar["ts"] + bar["dur"] for bar in bars) == 3.75e6


def test_a_delay_passes_from_rank_to_rank() -> None:
    def own(rank: int) -> RankTrace:
        sends = ((rank + 1, 1),) if rank < 2 else ()
        receives = ((rank - 1, 1),) if rank else ()
        operations = (Post(2.0, "metadata", sends, receives), Wait(0, 2.0, 2.0 - 1e-3 * rank))
        return RankTrace.synchronous((), (TaskTrace(0, 1, 0.0, operations),), 0.0, 3.0)

    assert offsets(messages({rank: own(rank) for rank in range(3)}), 3) == pytest.approx([0.0, 1e-3, 3e-3])


def test_a_message_with_one_end_is_refused() -> None:
    trace = dict(ring_of_two())
    trace[1] = trace[1]._replace(tasks=())
    with pytest.raises(ValueError, match="between ranks 0 and 1 has one end|between ranks 1 and 0"):
        chrome_text(trace)


def test_messages_in_flight_together_have_rows_of_their_own() -> None:
    operations = (
        Post(0.0, "metadata", ((1, 1),), ()),
        Post(0.0, "metadata", ((1, 2),), ()),
        Wait(0, 0.0, 1.0),
        Wait(1, 1.0, 2.0),
        Post(2.0, "metadata", ((1, 3),), ()),
        Wait(2, 2.0, 2.0),
        Post(2.0, "metadata", ((1, 4),), ()),
        Wait(3, 2.0, 2.0),
    )
    other = tuple(
        operation._replace(sends=(), receives=((0, operation.sends[0][1]),))
        if isinstance(operation, Post)
        else operation
        for operation in operations
    )
    trace = {
        rank: RankTrace.synchronous((), (TaskTrace(0, 1, 0.0, own),), 0.0, 2.0)
        for rank, own in enumerate((operations, other))
    }
    events = check_chrome(chrome_text(trace))
    rows = Counter(event["args"]["name"] for event in events if event["name"] == "thread_name")
    assert rows == {"wait": 2, "network out": 1, "network out 2": 1, "network in": 1, "network in 2": 1}


def test_the_backends_own_messages_have_no_arrows(tmp_path: Path, workers: Workers) -> None:
    directory = real_run(tmp_path / "run", 2, workers, "codec=backend")
    _, trace = next(timed_steps(directory))
    events = json.loads(chrome_text(trace))["traceEvents"]
    assert "all-reduce of the backend" in {event["name"] for event in events}
    assert {event["ph"] for event in events} == {"M", "X"}
