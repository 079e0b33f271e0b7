"""attach() under difficult conditions: modes, threads, timeouts, destroyed groups."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import attach_limits_jobs as jobs
import pytest
from attach_jobs import Net
from pool import Workers
from torch import nn
from warm import python

from gradwire.harness.runtime.threads import NoAnswerError, within

EXITS = Path(__file__).resolve().parent / "exits.py"


@pytest.mark.parametrize(
    "options", [{"codec": "topk", "fraction": 0.1, "ef": True}, {"codec": "mxfp8"}, {"codec": "powersgd"}]
)
def test_the_modes_of_the_caller_leave_no_trace(options: dict[str, Any], workers: Workers) -> None:
    """An evaluation that saves runs under inference_mode(); what is made there must still be trained with."""
    for found in workers(2)(jobs.in_modes, options):
        for mode, gradients in found.items():
            assert gradients == found["none"], mode


@pytest.mark.parametrize("models", [[nn.Linear(4, 1), nn.Linear(5, 1)], [Net(), Net()]])
def test_threads_that_attach_at_once_are_refused_on_all_ranks(
    models: list[nn.Module], workers: Workers
) -> None:
    """Models that are alike would be connected crosswise."""
    for texts, plain, afterwards in workers(2)(jobs.together, models):
        for text in texts:
            assert text.startswith("ValueError: attach(): ")
            assert "two threads of the process attach" in text or "ranks disagree" in text
            assert "\n" not in text
        assert plain == [True, True]
        assert afterwards


def test_threads_may_attach_one_after_another(workers: Workers) -> None:
    assert workers(2)(jobs.in_turn) == [["nothing", "nothing"]] * 2


def test_shares_of_parameters_are_refused(workers: Workers) -> None:
    for before, after, frozen in workers(2)(jobs.tensor_parallel):
        assert before == after
        assert before.startswith(
            "ValueError: attach(): tensor parallelism has divided this model's parameters"
        )
        assert "no parameter of this model has a gradient; freeze fewer of them" in frozen


def test_what_cannot_be_copied_or_reached_is_told(workers: Workers) -> None:
    for found in workers(2)(jobs.cannot_be_copied):
        for text in found[:2]:
            assert text.startswith(
                "TypeError: a Synchronizer cannot be pickled or copied, it holds connections"
            )
        for text in found[2:4]:
            assert text.startswith("TypeError: a ShardSynchronizer cannot be pickled or copied")
        for text, what in zip(found[4:], ["attach()", "shard_hooks()"] * 2, strict=True):
            assert text == (
                f"ValueError: {what}: the model's process group has been destroyed; call "
                "init_process_group() and wrap the model anew"
            )


def test_ranks_are_as_patient_as_their_group(workers: Workers) -> None:
    """The pool's has 30 s."""
    (own, first, _, _), (other, late, cause, waited) = workers(2)(jobs.patience)
    assert own == other == 30
    assert "rank 1 had failed: rank 1 lost rank 0: Timed out" in first
    assert "if a rank was only busy" not in cause
    assert "rank 1 lost rank 0: Timed out" in late
    assert late.endswith("; if a rank was only busy, give timeout_s= more than 1 s")
    assert waited >= 1


def test_all_ranks_have_the_same_outcome_whenever_the_last_one_comes(workers: Workers) -> None:
    first, *others = workers(3)(jobs.late_by_little)
    assert all(each == first for each in others)
    assert set(first) <= {"nothing", "TimeoutError"}


def test_a_group_outlives_the_limit_of_connecting(workers: Workers) -> None:
    assert workers(2)(jobs.connected_for_longer) == [[2.0, 2.0]] * 2


def test_a_call_without_a_limit_gets_one() -> None:
    assert within(5, lambda: 3) == 3
    with pytest.raises(ZeroDivisionError):
        within(5, lambda: 1 // 0)
    ended = threading.Event()
    with pytest.raises(NoAnswerError, match=r"no answer within 0\.01 s"):
        within(0.01, ended.wait)
    ended.set()


@pytest.mark.parametrize(("how", "code"), [("end", 0), ("error", 1), ("exit", 3)])
def test_threads_end_before_the_interpreter(how: str, code: int, tmp_path: Path) -> None:
    """One that came back from C++ later would end the process in SIGABRT."""
    ended = python(tmp_path, str(EXITS), how)
    assert ended.returncode == code, ended.stderr
    assert "terminate called" not in ended.stderr
    assert ("the script's own words" in ended.stderr) == (how == "error")


def test_float64_is_carried_as_it_is(workers: Workers) -> None:
    for differences in workers(2)(jobs.in_float64):
        assert max(differences) < 1e-14
