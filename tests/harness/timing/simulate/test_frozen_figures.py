"""Recorded steps keep every figure to the last bit: read back, timed on a clock, broken down and drawn."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path
from typing import NamedTuple

import pytest
from random_steps import make_steps
from random_traces import synchronous_steps, timed_at_random

from gradwire.harness.timing.measure.step_figures import rank_figures
from gradwire.harness.timing.simulate.clock import SimulatedClock
from gradwire.harness.timing.simulate.window import StepWindow
from gradwire.harness.timing.trace.chrome import chrome_text
from gradwire.harness.timing.trace.files import read_traces
from gradwire.harness.timing.trace.observations import observations
from gradwire.harness.timing.trace.step import StepTrace, spans, step_end
from gradwire.harness.timing.trace.writer import TraceWriter


class Figures(NamedTuple):
    """The sum of the steps' simulated seconds, and digests of all that is read, timed and drawn."""

    seconds: float
    read: str
    timed: str
    drawn: str


def digest(found: object) -> str:
    return hashlib.sha256(repr(found).encode()).hexdigest()[:12]


def figures(clock: SimulatedClock, steps: list[StepTrace], folder: Path) -> Figures:
    writer, size = TraceWriter(folder), len(steps[0])
    for rank in range(size):
        writer.add(rank, {number: step[rank] for number, step in enumerate(steps)})
    read = [(number, dict(step)) for number, step in read_traces(folder, size)]
    window, now, timed = StepWindow(clock), 0.0, list[StepTrace]()
    for number, step in read:
        timed.append(window.step(number, step, now))
        now += step_end(timed[-1])
    broken_down = [
        (rank_figures(spans(own), *(own.window or (0.0, step_end(step)))), observations(own))
        for step in timed
        for own in step.values()
    ]
    drawn = [chrome_text(step) for _, step in read] + [chrome_text(step) for step in timed]
    return Figures(now, digest(read), digest((timed, broken_down)), digest(drawn))


EXPECTED = {
    ("lanes", 0): Figures(194.54398976000002, "2cbb57302e61", "bdda717f3ab2", "e69d1560e17b"),
    ("lanes", 1): Figures(238.4247910186869, "9ed4eacbd4c5", "008b3ecbfd63", "7b3a8533f13e"),
    ("lanes", 2): Figures(138.08416298, "70df417a55b4", "5e49fe365b85", "fc3c70612b80"),
    ("lanes", 3): Figures(225.41211245599627, "cd39c01a770b", "b595076f8b2b", "bce609d8490d"),
    ("lanes", 4): Figures(107.32851409, "4f1e5b32b069", "40f51b9f31a9", "6453f6cc9880"),
    ("lanes", 5): Figures(113.7119098692033, "01091ac5f276", "5eb3b5296d1c", "14b02e92356e"),
    ("synchronous", 0): Figures(81.713697785, "ef99ed3e903d", "00b5abf1a12c", "6926fd8ba3ee"),
    ("synchronous", 1): Figures(300.38222443858456, "cf626a0ef8cc", "837fc02ea995", "92dcfd9880bc"),
    ("synchronous", 2): Figures(113.61681938999999, "0026e7afdcf6", "b058f3de0223", "f7b57de880bb"),
    ("synchronous", 3): Figures(248.99044741775282, "9af5121df4f2", "278670a1c5cf", "81d68f364e0e"),
    ("synchronous", 4): Figures(30.09237026, "6a1d0c36b022", "48cd8e9d8950", "cc22eca7c1c9"),
    ("synchronous", 5): Figures(46.11113382715159, "fb4f195b538f", "b9187c121f41", "92dbd3724f11"),
}


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("kind", ["lanes", "synchronous"])
def test_figures_of_recorded_steps_stay(kind: str, seed: int, tmp_path: Path) -> None:
    clock, steps = make_steps(seed, 3)
    drawn = random.Random(seed)
    steps = timed_at_random(drawn, steps) if kind == "lanes" else synchronous_steps(drawn, steps)
    assert figures(clock, steps, tmp_path) == EXPECTED[kind, seed]
