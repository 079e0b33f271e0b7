"""Windows of steps: leaving out steps and resuming after an interruption change no time, to the last bit."""

from __future__ import annotations

import pytest
from lanes import rank, starts
from random_steps import make_steps
from simulated_steps import all_reduce

from gradwire.harness.files.reading import UnusableFileError
from gradwire.harness.network.links import star
from gradwire.harness.timing.simulate import window as window_module
from gradwire.harness.timing.simulate.background import BackgroundLoad
from gradwire.harness.timing.simulate.clock import SimulatedClock
from gradwire.harness.timing.simulate.window import STATE, StepWindow, load_window, window_tensors
from gradwire.harness.timing.trace.step import StepTrace, step_end

STEPS = 7


def timed(clock: SimulatedClock, steps: list[StepTrace]) -> tuple[list[StepTrace], int]:
    """The steps on the clock, and how many were left out of a simulation."""
    window, found, left_out = StepWindow(clock), list[StepTrace](), 0
    for number, step in enumerate(steps):
        before = 0 if window.in_flight is None else len(window.in_flight.steps)
        found.append(window.step(number, step, 0.0))
        if window.in_flight is not None:
            left_out += before + 1 - len(window.in_flight.steps)
    return found, left_out


def test_steps_that_have_ended_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [make_steps(seed, STEPS) for seed in range(1, 49, 2)]  # in which nothing happens at once
    found = [timed(*case) for case in cases]
    with monkeypatch.context() as patch:
        patch.setattr(window_module, "drop_ended", lambda window, timed: None)
        whole = [timed(*case) for case in cases]
    assert [steps for steps, _ in found] == [steps for steps, _ in whole]
    assert sum(left_out > 0 for _, left_out in found) > 10 and sum(left_out for _, left_out in whole) == 0


def overlapping(size: int, computed_s: float) -> StepTrace:
    """Each step awaits what the one before has started, then computes and starts its own."""
    tasks = all_reduce("ring", size, 100)
    return {one: rank([0.1 + 0.01 * one, (0, 1), computed_s, starts(0)], *tasks[one]) for one in range(size)}


def test_a_window_that_is_never_quiet_stays_small() -> None:
    window, step = StepWindow(SimulatedClock(star(4, 1e3, 0.01))), overlapping(4, 1.0)
    for number in range(30):
        window.step(number, step)
        assert window.in_flight is not None and len(window.in_flight.steps) <= 2
    assert len(window.clock._plans) <= 3


def test_with_background_jobs_nothing_is_left_out() -> None:
    """Background jobs continue from their last state, which only the whole window knows."""
    clock = SimulatedClock(star(4, 1e3, 0.01), background=BackgroundLoad(1, 4000.0))
    window, step = StepWindow(clock), overlapping(4, 1.0)
    lengths = [step_end(window.step(number, step)) for number in range(4)]
    together = clock.run([(number, step) for number in range(4)])
    assert sum(lengths) == pytest.approx(step_end(together[-1]), abs=1e-12, rel=0)


def test_a_window_continues_from_a_checkpoint() -> None:
    for seed in range(8):
        clock, steps = make_steps(seed, STEPS)
        undisturbed, window, found = timed(clock, steps)[0], StepWindow(clock), list[StepTrace]()
        for number, step in enumerate(steps):
            found.append(window.step(number, step, 0.0))
            saved, window = window_tensors(window), StepWindow(clock)
            load_window(window, saved)
        assert found == undisturbed


def test_a_quiet_window_is_nothing() -> None:
    window = StepWindow(SimulatedClock(star(4, 1e3, 0.01)))
    assert window_tensors(window) == {}
    window.step(0, overlapping(4, 1.0))
    saved = window_tensors(window)
    load_window(window, {})
    assert window.in_flight is None
    with pytest.raises(UnusableFileError, match="a checkpoint's clock: is not JSON"):
        load_window(window, {STATE: saved[STATE][:-1]})
