"""The rank at fault is found from exit codes and reports alone."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import pytest
from launch_jobs import LostPeerError

from gradwire.harness.comm.transport.process import NotConnectedError
from gradwire.harness.launch.launch import _watched
from gradwire.harness.launch.processes import WorkerError
from gradwire.harness.launch.stacks import STATES
from gradwire.harness.launch.verdict import (
    Cause,
    blamed_peer,
    read_reports,
    tracebacks,
    verdict,
    write_report,
)
from gradwire.harness.record.attempts import RankEnd
from gradwire.harness.record.directory import DivergedError

TIMED_OUT = RuntimeError("[gloo] Timed out waiting 5000ms for recv operation to complete")
CAUSE = ValueError("the cause\nand more of it")
BUG = KeyError("bug")


def not_connected(reason: str) -> NotConnectedError:
    return NotConnectedError(timedelta(seconds=15), RuntimeError(reason))


LATE = not_connected("Wait timeout")
GONE = not_connected("[/gloo/pair.cc:500] Connection closed by peer [127.0.0.1]:4711")
NO_NETWORK = not_connected("[enforce fail at device.cc:208] . Unable to find interface for: eth7")

NAMED = "rank 1 failed: ValueError: the cause"

CASES: list[tuple[str, dict[int, int | None], dict[int, Exception], str]] = [
    ("raised", {0: 1, 1: 1, 2: 1}, {0: LostPeerError(1), 1: CAUSE, 2: LostPeerError(1)}, NAMED),
    ("raised, one still cleaning up", {0: 1, 1: 1, 2: None}, {0: LostPeerError(2), 1: CAUSE}, NAMED),
    ("killed", {0: 1, 1: -signal.SIGKILL, 2: 1}, {0: LostPeerError(1)}, "rank 1 was killed by SIGKILL"),
    ("crashed", {0: 1, 1: -signal.SIGSEGV}, {0: CAUSE}, "rank 1 was killed by SIGSEGV"),
    ("killed by a signal without a name", {0: -40}, {}, "rank 0 was killed by signal 40"),
    ("both killed", {0: -15, 1: -6}, {}, "rank 0 was killed by SIGTERM; rank 1 was killed by SIGABRT"),
    ("left without a word", {0: 1, 1: 3}, {0: LostPeerError(1)}, "rank 1 ended with exit code 3"),
    ("hung", {0: 1, 1: None, 2: 1}, {0: LostPeerError(2), 2: LostPeerError(1)}, "rank 1 hung: "),
    ("hung, another one slow to report", {0: 1, 1: None, 2: None}, {0: LostPeerError(1)}, "rank 1 hung: "),
    ("hung while starting", {0: 1, 1: None}, {0: TIMED_OUT}, "rank 1 hung: "),
    ("late while ranks connect", {0: 1, 1: None, 2: 1}, {0: LATE, 2: LATE}, "rank 1 hung: not connected"),
    ("raised while ranks connect", {0: 1, 1: 1}, {0: GONE, 1: BUG}, "rank 1 failed: KeyError"),
    ("has no network", {0: 1, 1: None}, {0: NO_NETWORK}, "rank 0 failed: NotConnectedError: not all ranks"),
    ("two hung", {0: 1, 1: None, 2: None}, {0: TIMED_OUT}, "rank 1, rank 2 hung: "),
    ("all lost each other", {0: 1, 1: 1}, {0: LostPeerError(1), 1: LostPeerError(0)}, "rank 0 failed: "),
]  # fmt: skip


@pytest.mark.parametrize(
    ("codes", "errors", "expected"), [case[1:] for case in CASES], ids=[c[0] for c in CASES]
)
def test_the_cause_is_named(
    codes: Mapping[int, int | None], errors: Mapping[int, Exception], expected: str, tmp_path: Path
) -> None:
    for rank, error in errors.items():
        write_report(tmp_path, rank, error)
    line = verdict(codes, tmp_path).text
    assert line.startswith(expected)
    assert (" hung" in line) == (" hung" in expected)
    assert "\n" not in line


STOPPED, READS = STATES["T"], STATES["D"]


@pytest.mark.parametrize(
    ("errors", "states", "expected", "cause"),
    [
        ({0: LATE, 1: LATE}, {2: STOPPED, 3: ""}, "rank 2 hung: not connected", "OUTSIDE"),
        ({0: LATE, 1: LATE}, {2: STOPPED, 3: STOPPED}, "rank 2, rank 3 hung: not connected", "OUTSIDE"),
        ({0: LostPeerError(3), 1: LATE}, {2: STOPPED, 3: ""}, "rank 2 hung: no answer within", "OUTSIDE"),
        ({0: BUG, 1: LATE}, {2: STOPPED, 3: ""}, "rank 2 hung: not connected within", "OUTSIDE"),
        ({0: BUG}, {1: "", 2: STATES["t"], 3: ""}, "rank 2 hung: no answer when rank 0 failed", "OUTSIDE"),
        ({0: CAUSE, 1: LATE}, {2: STOPPED, 3: ""}, "rank 0 failed: ValueError: the cause", "FINAL"),
        ({0: BUG, 1: LATE}, {2: READS, 3: ""}, "rank 0 failed: KeyError", "OWN"),
        ({0: LATE, 1: LATE}, {2: READS, 3: ""}, "rank 2, rank 3 hung: not connected within", "OUTSIDE"),
    ],
)  # fmt: skip
def test_a_stopped_rank_is_at_fault_whatever_the_others_report(
    errors: Mapping[int, Exception], states: Mapping[int, str], expected: str, cause: str, tmp_path: Path
) -> None:
    """A survivor's timeout names no rank; only what a user has to fix comes first. Any process may be reading
    from a disk."""
    for rank, error in errors.items():
        write_report(tmp_path, rank, error)
    codes = {rank: 1 if rank in errors else None for rank in range(4)}
    found = verdict(codes, tmp_path, states=states)
    assert found.text.startswith(expected) and found.cause is Cause[cause]
    assert "Wait timeout" not in found.text
    assert all(
        f"rank {rank} is {state}" in found.text for rank, state in states.items() if state == STOPPED
    ) or (found.cause is Cause.FINAL)
    named = {rank for rank, state in states.items() if state in (STOPPED, STATES["t"])}
    assert not named or found.cause is Cause.FINAL or {end.rank for end in found.ends} == named


def test_the_ends_of_those_at_fault(tmp_path: Path) -> None:
    """The signal or exit code of each; neither for a rank that hung or whose link is down."""
    assert verdict({0: 1, 1: -9, 2: -40}, tmp_path).ends == (
        RankEnd(1, signal="SIGKILL"),
        RankEnd(2, signal="signal 40"),
    )
    assert verdict({0: None, 1: 3}, tmp_path).ends == (RankEnd(1, exit_code=3),)
    write_report(tmp_path, 0, LostPeerError(1))
    assert verdict({0: 1, 1: None}, tmp_path).ends == (RankEnd(1),)
    assert verdict({0: 1, 1: None}, tmp_path, {1: "its link is down"}).ends == (RankEnd(1),)
    write_report(tmp_path, 1, CAUSE)
    assert verdict({0: 1, 1: 1}, tmp_path).ends == (RankEnd(1, exit_code=1),)


def test_an_error_while_cleaning_up_does_not_hide_the_lost_peer() -> None:
    with pytest.raises(OSError, match="closed") as raised:
        try:
            raise LostPeerError(2)
        finally:
            raise OSError("a socket that is gone cannot be closed")
    assert blamed_peer(raised.value) == 2
    assert blamed_peer(CAUSE) is None


def test_reports_are_read_by_time_and_keep_their_tracebacks(tmp_path: Path) -> None:
    for rank, error in ((2, CAUSE), (0, TIMED_OUT), (1, LostPeerError(0))):
        write_report(tmp_path, rank, error)
    reports = read_reports(tmp_path)
    assert [(report.rank, report.peer, report.waited) for report in reports] == [
        (2, None, False),
        (0, None, True),
        (1, 0, True),
    ]
    text = tracebacks(tmp_path)
    assert "rank2\nValueError: the cause\nand more of it" in text
    assert text.count("\n\n") == 2


def test_ranks_that_diverged_are_no_failed_ranks(tmp_path: Path) -> None:
    """There is no traceback and no other attempt."""
    (run := tmp_path / "run").mkdir()

    def ranks(folder: Path) -> str:
        for rank in (1, 0):
            write_report(folder, rank, DivergedError("diverged after step 3: perplexity nan, loss nan"))
        found = verdict({0: 1, 1: 1}, folder)
        assert found.cause is Cause.FINAL
        raise WorkerError(found, 3)

    with pytest.raises(DivergedError, match=r"^diverged after step 3: perplexity nan, loss nan$"):
        _watched(ranks, run)
    assert not list(run.iterdir())
