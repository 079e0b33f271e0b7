"""Observations next to a step: this process's CPU time and switches, and the machine's counters."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from gradwire.harness.timing.measure import machine
from gradwire.harness.timing.measure.machine import MachineWatch, StepWatch, TakenWatch, own_watch
from gradwire.harness.timing.measure.metrics import METRICS, of_ranks
from gradwire.harness.timing.measure.spans import Recorder
from gradwire.harness.trainer.summarize import _of_machine, _spread

TICKS = 100
"""The parts of a second that most systems count."""


class Proc:
    """A made-up /proc, and a clock that goes with it."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.now = root, 100.0
        (root / "pressure").mkdir()
        monkeypatch.setattr(machine.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(machine.os, "sysconf", lambda name: TICKS)
        self.counters = [0.0, 0.0, 0.0]
        self.passes(0.0, 0.0, 0.0, 0.0)

    def passes(self, seconds: float, busy: float, steal: float, waited: float) -> None:
        """So much time, with so many seconds of CPUs in use, stolen, and with tasks waiting."""
        self.now += seconds
        self.counters = [
            before + more for before, more in zip(self.counters, (busy, steal, waited), strict=True)
        ]
        used, stolen, some = self.counters
        user, idle = round(TICKS * used) - 10, 5000
        text = f"cpu  {user} 4 3 {idle} 20 2 1 {round(TICKS * stolen)} 0 0\ncpu0 1 1 1\n"
        (self.root / "stat").write_text(text)
        (self.root / "pressure" / "cpu").write_text(
            f"some avg10=1.00 avg60=2.00 avg300=3.00 total={round(1e6 * some)}\nfull avg10=0.00 total=7\n"
        )


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Proc:
    return Proc(tmp_path, monkeypatch)


def test_a_machine_reports_cpus_in_use_pressure_and_steal(proc: Proc) -> None:
    watch = MachineWatch(proc.root)
    watch.begin()
    proc.passes(2.0, busy=3.0, steal=0.1, waited=0.5)
    assert watch.end() == {"cpu_busy": 1.5, "cpu_steal": 0.05, "cpu_pressure": 0.25}
    watch.close()


def test_short_steps_are_told_together_and_pauses_left_out(proc: Proc) -> None:
    watch = MachineWatch(proc.root)
    watch.begin()
    proc.passes(0.06, busy=0.06, steal=0.0, waited=0.0)
    assert watch.end() == {}, "hundredths of a second tell nothing of so short a time"
    watch.begin()
    proc.passes(0.06, busy=0.06, steal=0.0, waited=0.03)
    assert watch.end() == {"cpu_busy": 1.0, "cpu_steal": 0.0, "cpu_pressure": 0.25}
    proc.passes(5.0, busy=10.0, steal=0.0, waited=5.0)  # an evaluation
    watch.begin()
    proc.passes(1.0, busy=0.5, steal=0.0, waited=0.0)
    assert watch.end() == {"cpu_busy": 0.5, "cpu_steal": 0.0, "cpu_pressure": 0.0}
    watch.close()


def test_what_a_system_does_not_tell_is_left_out(proc: Proc, tmp_path: Path) -> None:
    (tmp_path / "pressure" / "cpu").unlink()
    watch = MachineWatch(tmp_path)
    watch.begin()
    proc.passes(1.0, busy=1.0, steal=0.0, waited=0.0)
    (tmp_path / "pressure" / "cpu").unlink()
    assert watch.end() == {"cpu_busy": 1.0, "cpu_steal": 0.0}
    nothing = MachineWatch(tmp_path / "none")
    nothing.begin()
    proc.passes(1.0, busy=1.0, steal=0.0, waited=0.0)
    assert nothing.end() == {}
    (tmp_path / "stat").write_text("another system's\n")
    assert MachineWatch(tmp_path)._read() == {}


def test_the_share_that_others_take(proc: Proc, monkeypatch: pytest.MonkeyPatch) -> None:
    own = iter([7.0, 8.0])
    monkeypatch.setattr(machine.time, "process_time", lambda: next(own))
    monkeypatch.setattr(machine.os, "cpu_count", lambda: 4)
    watch = TakenWatch(proc.root)
    proc.passes(1.0, busy=2.5, steal=0.5, waited=0.0)
    assert watch.close() == (2.5 - 1.0 + 0.5) / 4


def test_no_share_is_told_where_the_system_has_no_counters(tmp_path: Path) -> None:
    assert TakenWatch(tmp_path).close() is None


def test_cpu_time_is_that_of_the_thread_that_works() -> None:
    recorder = Recorder()
    watch = StepWatch(recorder)
    watch.begin()
    since = recorder.cpu_time()
    other = threading.Thread(target=lambda: sum(range(300_000)))
    other.start()
    other.join()
    recorder.worked("compute", since)
    idle = watch.end()
    watch.begin()
    since = recorder.cpu_time()
    sum(range(300_000))
    recorder.worked("compute", since)
    busy = watch.end()
    assert 0 <= idle["compute_cpu_s"] < busy["compute_cpu_s"] <= busy["worker_cpu_s"] + 1e-3
    assert idle["worker_cpu_s"] > idle["compute_cpu_s"] and "codec_cpu_s" not in idle


def test_without_spans_no_cpu_time_is_counted() -> None:
    recorder = Recorder(enabled=False)
    recorder.worked("codec", recorder.cpu_time())
    assert recorder.cpu_s == {}


def test_one_rank_of_a_machine_watches_it() -> None:
    own = [
        own_watch(Recorder(), rank, environment)
        for rank, environment in (
            (0, {"LOCAL_RANK": "0"}),
            (2, {"LOCAL_RANK": "0"}),
            (1, {"LOCAL_RANK": "1"}),
            (1, {}),
            (0, {}),
        )
    ]
    assert [watch._machine is not None for watch in own] == [True, True, False, False, True]
    for watch in own:
        watch.close()


def test_a_row_has_what_the_ranks_know() -> None:
    """The slowest rank's computation, the sum of the switches, the busiest machine; without any, no key."""
    nan = float("nan")
    ranks = [
        {
            "step_time_s": 1.0,
            "wait_s": 0.0,
            "compute_cpu_s": 0.5,
            "switches": 3.0,
            "cpu_busy": 1.5,
            "cpu_steal": nan,
        },
        {
            "step_time_s": 2.0,
            "wait_s": 0.0,
            "compute_cpu_s": 0.4,
            "switches": 4.0,
            "cpu_busy": nan,
            "cpu_steal": nan,
        },
    ]
    row = of_ranks(ranks)
    assert {key: value for key, value in row.items() if METRICS[key].observed} == {
        "compute_cpu_s": 0.4,
        "switches": 7.0,
        "cpu_busy": 1.5,
    }


def test_others_are_those_that_are_no_workers() -> None:
    """1.5 CPUs in use, of which the workers of a machine have one: 2 s of CPU time in a second on two."""
    rows = [{"step_time_s": 1.0, "cpu_busy": busy, "worker_cpu_s": 2.0} for busy in (1.0, 2.0)]
    assert _of_machine(rows, 2)["others_cpus"] == 0.5
    assert _of_machine(rows, 1)["others_cpus"] == 0.0
    assert _of_machine([{"step_time_s": 1.0, "compute_s": 0.5}], 1) == {}, "an old row tells nothing"


def test_the_share_is_that_of_the_whole_run() -> None:
    rows = [{"compute_s": wall, "compute_cpu_s": 0.1, "step_time_s": 1.0} for wall in (0.1, 0.3)]
    assert _of_machine(rows, 1)["compute_cpu_share"] == pytest.approx(0.5)
    assert _spread(rows)["compute_s"] == pytest.approx({"p10": 0.12, "p90": 0.28})
