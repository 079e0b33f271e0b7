"""Requests to stop, in the process that owns the run; and Ctrl-C while a command starts."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from training_jobs import tiny_run

from gradwire.harness.launch import launch
from gradwire.harness.launch.stop import SIGNALS, Terminated, stop_requests
from gradwire.harness.runtime.conf import conf_directory
from gradwire.harness.runtime.interrupts import is_interrupt
from gradwire.harness.tasks import train

RUN = conf_directory().parent / "run.py"

LOSES_IT = """
import os, signal, time
try:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(30)
except KeyboardInterrupt:
    raise ImportError("a compiled module could not be initialized")
"""


def test_ctrl_c_is_a_request_and_the_second_one_ends_at_once() -> None:
    told: list[int] = []
    with stop_requests() as stop:
        stop.pass_on = told.append
        signal.raise_signal(signal.SIGINT)
        assert stop() and stop.number == signal.SIGINT and told == [signal.SIGINT]
        with pytest.raises(KeyboardInterrupt) as ended:
            signal.raise_signal(signal.SIGINT)
        assert not isinstance(ended.value, Terminated), "whoever records it says from where the run resumes"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_does_not_wait_where_there_is_nothing_to_save() -> None:
    with stop_requests() as stop:
        stop.saves = lambda: False
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert not stop()


def test_torchrun_may_repeat_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    with stop_requests() as stop:
        for _ in range(3):
            signal.raise_signal(signal.SIGINT)
        assert stop.number == signal.SIGINT


def test_ctrl_c_after_another_request_ends_at_once() -> None:
    with stop_requests() as stop:
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert stop.number == signal.SIGTERM


def test_a_signal_while_data_are_prepared_ends_the_run_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is nothing to save yet, so that the request need not wait for the end of a step."""
    for number in SIGNALS:
        prepared = partial(signal.raise_signal, number)
        monkeypatch.setattr(launch, "prepare", lambda config, prepared=prepared: prepared())
        with pytest.raises(Terminated) as ended:
            launch.run_here(tiny_run("cluster=virtual"), tmp_path / "run")
        assert ended.value.number == number
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_the_first_lines_are_there_before_training_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the output is a pipe, which is not flushed line by line."""
    pipe = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(pipe))

    def begins(*arguments: object) -> None:
        raise RuntimeError(pipe.getvalue().decode())

    monkeypatch.setattr(launch, "run_here", begins)
    with pytest.raises(RuntimeError, match="codec fp32, topology ring, 4 virtual workers"):
        train.run(tiny_run("cluster=virtual", "codec=fp32"), tmp_path / "run")


def test_an_ignored_interrupt_stays_ignored() -> None:
    """`nohup` ignores it, and so does a job that a shell has started in the background."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with stop_requests() as stop:
            signal.raise_signal(signal.SIGINT)
            assert not stop()
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("command", [[str(RUN)], ["-m", "gradwire"]], ids=["run.py", "gradwire"])
def test_ctrl_c_while_importing_is_one_line(command: list[str], tmp_path: Path) -> None:
    """A module may turn it into an error of its own, as compiled ones do."""
    (tmp_path / "hydra").mkdir()
    (tmp_path / "hydra" / "__init__.py").write_text(LOSES_IT)
    ended = subprocess.run(
        [sys.executable, *command, "size=tiny"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (ended.returncode, ended.stderr, ended.stdout) == (
        130,
        "error: interrupted before anything began\n",
        "",
    )


@pytest.mark.parametrize("cause", [KeyboardInterrupt(), OSError("full")], ids=["Ctrl-C", "the disk"])
def test_an_error_that_comes_of_ctrl_c_is_known(cause: BaseException) -> None:
    with pytest.raises(RuntimeError) as raised:
        try:
            raise cause
        except BaseException:
            raise RuntimeError("Error calling __set_name__")  # noqa: B904
    assert is_interrupt(raised.value) == isinstance(cause, KeyboardInterrupt)
