"""Failures that another attempt may survive, and what the attempts of a run have in common."""

from __future__ import annotations

from dataclasses import replace

import pytest
from training_jobs import tiny_run

from gradwire.harness.launch import launch
from gradwire.harness.launch.launch import Restarts, continued
from gradwire.harness.launch.processes import WorkerError
from gradwire.harness.launch.verdict import Cause, FailureVerdict

KILLED = WorkerError(FailureVerdict("rank 1 was killed by SIGKILL (out of memory?)", Cause.OUTSIDE), 12)
RAISED = WorkerError(FailureVerdict("rank 0 failed: RuntimeError: a bug", Cause.OWN), 12)
REFUSED = WorkerError(FailureVerdict("rank 0 failed: ValueError: no such file", Cause.FINAL), -1)


def later(error: WorkerError, step: int) -> WorkerError:
    return WorkerError(error.found, step)


def test_a_rank_that_is_killed_again_and_again_uses_up_the_restarts() -> None:
    attempts = Restarts(2)
    assert attempts.another_after(KILLED) == (
        "restart 1 of 2: rank 1 was killed by SIGKILL (out of memory?), after step 12"
    )
    assert attempts.another_after(KILLED).startswith("restart 2 of 2: ")
    with pytest.raises(WorkerError, match=r"^rank 1 was killed .* \(not restarted: cluster.restarts=2\)$"):
        attempts.another_after(KILLED)


def test_the_same_error_after_the_same_step_ends_a_run() -> None:
    attempts = Restarts(9)
    for error in (RAISED, later(RAISED, 13), KILLED, later(RAISED, 13), RAISED):
        attempts.another_after(error)
    with pytest.raises(
        WorkerError, match=r"\(not restarted: the attempt before ended so, too, after step 12\)$"
    ):
        attempts.another_after(RAISED)


def test_what_every_attempt_would_end_with_ends_a_run_at_once() -> None:
    with pytest.raises(WorkerError, match=r"no such file \(not restarted: every attempt would end so\)$"):
        Restarts(9).another_after(REFUSED)


def test_without_restarts_the_error_is_as_it_is() -> None:
    with pytest.raises(WorkerError) as raised:
        Restarts(0).another_after(KILLED)
    assert raised.value is KILLED


def test_sources_that_have_changed_are_not_mixed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "code_unchanged", lambda: False)
    with pytest.raises(
        WorkerError, match=r"\(not restarted: the sources have changed since the run began\)$"
    ):
        Restarts(1).another_after(KILLED)


def test_starting_over_is_for_the_first_attempt_alone() -> None:
    never = tiny_run("resume=never")
    assert continued(never) == replace(never, resume="auto")
    force = replace(never, resume="force")
    assert continued(force) is force
