"""EDGC's use of times: communication by rank, its linear model, and the largest rank that saves time."""

from __future__ import annotations

import pytest

from gradwire.codecs.edgc.communication import (
    FIRST_PROBE,
    NO_TIMES,
    MatrixShape,
    StageTimes,
    StepTimes,
    growing_line,
    highest_rank,
    largest_saving_rank,
    mean_rank,
    probed_ranks,
    rank_of_step,
    step_times,
    time_model,
)
from gradwire.codecs.interface import Observation
from gradwire.codecs.powersgd import effective_rank

SHAPES = [MatrixShape(64, 64, 2), MatrixShape(64, 256, 3)]


def test_a_bucket_counts_from_when_it_is_ready_and_overlaps_once() -> None:
    told = [
        Observation(0, "compute", 0, 0.0, 1.0),
        Observation(0, "metadata", 8, 1.5, 2.0),
        Observation(0, "all_gather", 8, 2.0, 4.0),
        Observation(0, "probe", 8, 4.5, 5.0),
        Observation(1, "compute", 0, 1.0, 3.0),
        Observation(1, "reduce_scatter", 8, 3.5, 6.0),
        Observation(1, "probe", 8, 6.0, 7.5),
        Observation(2, "backward", 0, 0.0, 0.5),
        Observation(3, "backward", 0, 2.0, 2.75),
        Observation(1 << 20, "activations", 64, 0.0, 100.0),
    ]
    assert step_times(told) == StepTimes(communication=6.5, backward=0.625, has_probe=True)
    assert step_times(told[:3]) == StepTimes(3.0, 0.0, False)
    assert step_times([]) == NO_TIMES


def test_the_highest_rank_is_the_last_that_saves_bytes() -> None:
    highest = highest_rank(SHAPES, 1.0)
    assert effective_rank((64, 256), highest, 1.0) == highest
    assert effective_rank((64, 256), highest + 1, 1.0) == 0
    assert probed_ranks(SHAPES, 1.0) == [1, 3, 6, 12, 25, 51] and highest == 51
    assert probed_ranks([], 1.0) == []
    assert [rank_of_step(step, SHAPES, 1.0) for step in (0, FIRST_PROBE, FIRST_PROBE + 3, 13, 14)] == [
        *(0, 1, 3, 51, 0),
    ]


def test_a_mean_rank_counts_what_is_sent() -> None:
    width = 2 * 128 + 3 * 320
    assert mean_rank(SHAPES, 10, 1.0) == 10
    assert mean_rank(SHAPES, 40, 1.0) == (2 * 64 * 64 + 3 * 40 * 320) / width  # 64 × 64 would be larger
    assert mean_rank(SHAPES, 0, 1.0) == (2 * 64 * 64 + 3 * 64 * 256) / width


def test_the_model_is_the_line_and_its_error() -> None:
    model = growing_line([(rank, 0.5 + 0.25 * rank) for rank in (2, 4, 16)])
    assert model is not None
    assert (model.slope, model.constant) == pytest.approx((0.25, 0.5))
    assert model.error < 1e-12 and model.at(8) == pytest.approx(2.5)
    bent = growing_line([(1, 1.0), (2, 2.5), (3, 3.0)])  # T(r) = r + 1/6
    assert bent is not None
    assert bent.error == pytest.approx((1 / 6 + 1 / 3 / 2.5 + 1 / 6 / 3) / 3)
    assert growing_line([(4, 1.0), (4, 2.0)]) is None
    assert growing_line([(4, 2.0), (8, 1.0)]) is None


def test_the_largest_rank_is_that_which_saves_time() -> None:
    times, ranks = StageTimes(), probed_ranks(SHAPES, 1.0)
    for step in range(FIRST_PROBE + 2 * len(ranks) + 4):
        rank = rank_of_step(step, SHAPES, 1.0)
        probe = 0.1 + 0.01 * mean_rank(SHAPES, rank, 1.0) if rank else 0.0
        times.values = times.with_step(step, StepTimes(0.3 + probe, 0.05, rank > 0), uncompressed=True)
    model = time_model(SHAPES, times.values, 1.0)
    assert model is not None and model.error < 1e-9
    assert (model.slope, model.constant) == pytest.approx((0.01, 0.1))
    assert largest_saving_rank(model, SHAPES, 0.295, 1.0) == 19
    assert largest_saving_rank(model, SHAPES, 0.1, 1.0) == 0
    assert times.values[0].tolist() == pytest.approx([6 * 0.3, 6])
    times.begin_window()
    assert times.values[1].tolist() == [0, 0] and times.values[2, 1] == 2
