"""The line through the times of all-reduces over their rank."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradwire.codecs.arithmetic.line_fit import fit_line
from gradwire.harness.studies.allreduce.compare import plot_ranks, rank_lines, rank_remarks
from gradwire.harness.studies.allreduce.study import AllReduceSummary
from gradwire.harness.timing.measure.metric import Spread


def run(modelled: float, measured: float | None = None, network: str = "none") -> AllReduceSummary:
    spread = Spread(modelled, modelled, modelled)
    return AllReduceSummary(
        codec="powersgd",
        topology="ring",
        workers=4,
        coordinates=1000,
        pieces=1,
        network=network,
        network_settings={"name": network, "rate_mbit": 100.0} if network != "none" else {"name": "none"},
        rate_mbit=100.0,
        goodput_mbit=None,
        background_jobs=0,
        repeats=1,
        measured=None if measured is None else Spread(measured, measured, measured),
        measured_codec_s=None,
        modelled=spread,
        modelled_codec_s=spread,
        bytes_sent=1,
        wire_bits_per_coordinate=1.0,
        kernel_backend="default",
        rounds_s=[],
        provenance={},
    )


def test_a_line_is_fitted_for_each_network_and_kind_of_time() -> None:
    runs = [run(0.002 * rank + 0.01, measured=0.01 * rank) for rank in (1, 2, 4)]
    others = [run(rank, network="paced") for rank in (1.0, 2.0)]
    told = list(rank_remarks(rank_lines([*runs, *others, run(1.0)], [1, 2, 4, 1, 2, None])))
    assert len(told) == 2  # two ranks are always on a line
    assert "measured (network as it is): the time at rank r is 10 ms · r + " in told[0]
    assert "modelled beside measured (network as it is): the time at rank r is 2 ms · r + 10 ms, " in told[1]
    assert "with a mean error of 0.00%" in told[1]
    assert told[1].endswith("at ranks 1, 2, 4.")


def test_measured_times_need_all_ranks() -> None:
    (told,) = rank_remarks(rank_lines([run(1.0, 1.0), run(2.0), run(3.5, 3.0)], [1, 2, 3]))
    assert "modelled" in told


@pytest.mark.parametrize("points", [[(1.0, 2.0)], [(1.0, 2.0), (1.0, 3.0)], [(1.0, 0.0), (2.0, 1.0)]])
def test_a_line_takes_two_places_and_no_zero(points: list[tuple[float, float]]) -> None:
    with pytest.raises(ValueError, match="needs (points|values)"):
        fit_line(points)


def test_the_times_and_their_lines_are_drawn(tmp_path: Path) -> None:
    runs = [run(0.002 * rank, measured=0.01 * rank + 0.001 * (rank % 2)) for rank in (1, 2, 4)]
    others = [run(0.1 * rank, network="shaped") for rank in (1, 2, 3)]
    written = plot_ranks(rank_lines([*runs, *others], [1, 2, 4, 1, 2, 3]), tmp_path)
    assert {path.name for path in written} >= {"ranks-print.svg", "ranks-dark.png"}
    assert plot_ranks([], tmp_path / "none") == [] and not (tmp_path / "none").exists()
