"""`task=simulate`: AQGB's closed forms, figures worked out by hand, how ResNet50 is split, wrong input."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gradwire.harness.config.compose import compose
from gradwire.harness.config.validate import validate_any
from gradwire.harness.network.links import Change, star
from gradwire.harness.record.directory import SUMMARY
from gradwire.harness.report.figures import Plot, render
from gradwire.harness.report.frame import values_in
from gradwire.harness.report.style import PRINT
from gradwire.harness.studies.simulate import figures, plots
from gradwire.harness.studies.simulate.model import TABLE_1, split
from gradwire.harness.studies.simulate.plots import _queue
from gradwire.harness.studies.simulate.study import SPLITS, SimulateSummary, SimulateTask
from gradwire.harness.studies.simulate.study import STUDY as SIMULATE
from gradwire.harness.timing.simulate.rounds import BACKWARD, FORWARD, STAGE_ONE, RoundRows

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EVEN = ("network.jitter=0", "network.latency_s=0")


def config_of(*overrides: str) -> SimulateTask:
    plots = [] if "plots=true" in overrides else ["plots=false"]
    found = validate_any(compose(["task=simulate", *plots, *overrides]))
    assert isinstance(found, SimulateTask)
    return found


def simulated(directory: Path, *overrides: str) -> SimulateSummary:
    assert SIMULATE.run(config_of(*overrides), directory) == 0
    return SimulateSummary.read(directory / SUMMARY)


@pytest.mark.parametrize(
    ("scheme", "round_s", "rounds", "use"),
    [
        ("none", 15 * 25.6e6 * 32 / 2.5e9 + 1.5 * (0.365 * 0.261 + 0.635 * 0.224), {38}, 0.93),
        ("fixed", 1.5 + 15 * 3e6 * 4 / 2.5e9, {127}, 0.39),
        ("aqgb", 1.5 + 15 * 3e6 * 4 / 2.5e9, {126, 127}, 0.77),
    ],
)
def test_rounds_are_those_of_closed_forms(
    tmp_path: Path, scheme: str, round_s: float, rounds: set[int], use: float
) -> None:
    """Without jitter: in full a round takes what all workers send through one link, and the last block's
    passes; 4 bits, and AQGB's floor, all of the computation and the first block's 15 broadcasts."""
    found = simulated(tmp_path, *EVEN, f"simulate.scheme={scheme}")
    assert found.round_s == pytest.approx(round_s, rel=1e-3 if scheme == "aqgb" else 1e-9)
    assert found.rounds in rounds
    assert found.utilization == pytest.approx(use, abs=0.02)


def test_aqgb_has_the_highest_row_and_nearly_as_many_rounds_with_jitter(tmp_path: Path) -> None:
    none, fixed, aqgb = (
        simulated(tmp_path / scheme, f"simulate.scheme={scheme}", "simulate.seconds=60")
        for scheme in ("none", "fixed", "aqgb")
    )
    assert aqgb.rounds >= 0.95 * fixed.rounds > 2 * none.rounds
    assert aqgb.row is not None and fixed.row is not None and none.row is not None
    assert aqgb.row > fixed.row > none.row
    assert aqgb.least_bits == 4 and aqgb.q_ratio_first is not None and aqgb.q_ratio is not None
    assert 0.125 < aqgb.q_ratio_first < aqgb.q_ratio < 1
    again = simulated(tmp_path / "again", "simulate.seconds=60")
    assert (again.series, again.bytes_sent) == (aqgb.series, aqgb.bytes_sent)
    other = simulated(tmp_path / "other", "simulate.seconds=60", "seed=1")
    assert other.series != aqgb.series


def test_without_messages_no_worker_waits_and_fast_links_carry_all_but_the_first_block(
    tmp_path: Path,
) -> None:
    ideal = simulated(tmp_path / "ideal", *EVEN, "simulate.scheme=ideal", "simulate.seconds=20")
    assert (ideal.rounds, ideal.t_wait, ideal.row, ideal.osf) == (13, 0, math.inf, 1)
    assert ideal.utilization is None and ideal.q_ratio is None and ideal.phases == []
    fast = simulated(tmp_path / "fast", *EVEN, "network.rate_mbit=1e8", "simulate.seconds=20")
    # The first block is needed as soon as it is there: it goes at the floor, and nothing refines it.
    assert fast.series["q_ratio"][3] == pytest.approx((22.6 + 3 * 0.125) / 25.6)


def test_a_multicast_to_one_worker_is_a_unicast(tmp_path: Path) -> None:
    two = ("cluster.workers=2", "network.rate_mbit=100", "simulate.seconds=20")
    cast, uni = (simulated(tmp_path / word, *two, f"network.multicast={word}") for word in ("true", "false"))
    assert cast.series == uni.series and cast.utilization == uni.utilization


def test_a_changed_rate_is_followed_within_three_rounds(tmp_path: Path) -> None:
    changes = "network.rate_changes=[[30,2],[60,0.5]]"
    found = simulated(tmp_path, *EVEN, "cluster.workers=8", changes, "simulate.seconds=90")
    first, doubled, halved = found.phases
    assert doubled["q_ratio_first"] > 1.2 * first["q_ratio_first"] > 1.44 * halved["q_ratio_first"]
    assert max(doubled["followed_after"], halved["followed_after"]) <= 3
    values = [value for value in values_in(tmp_path) if value.metric == "q_ratio_first"]
    assert [value.case for value in values] == ["", "1 from 0 s", "2 from 30 s", "0.5 from 60 s"]
    assert {value.kind for value in values} == {"modelled"}


@pytest.mark.parametrize("blocks", SPLITS)
def test_splits_are_of_one_model(blocks: int) -> None:
    rows = split(blocks)
    assert len(rows) == blocks
    for column in range(3):
        whole = sum(row[column] for row in TABLE_1)
        assert sum(row[column] for row in rows) == pytest.approx(whole)
    assert all(min(row) > 0 and row[0] == int(row[0]) for row in rows)


def rows_of(*rows: tuple[Any, ...]) -> RoundRows:
    """(kind, worker, round, block, start, end) for each row."""
    kinds, worker, number, block, start, end = (np.array(column) for column in zip(*rows, strict=True))
    count = len(rows)
    return RoundRows(
        kinds=kinds,
        worker=worker,
        round=number,
        block=block,
        bits_sent=np.full(count, 8),
        values_sent=np.full(count, 100),
        start=start.astype(float),
        end=end.astype(float),
        bytes=np.full(count, 100.0),
        ratio=np.full(count, 0.25),
        rate=np.full(count, np.nan),
    )


def test_figures_of_a_round_worked_out_by_hand() -> None:
    """Two blocks. The last block's gradient travels during the first one's backward pass, the first one's
    while the worker waits, and the rest during the next forward pass:

        0   1   2   3   4   5   6   7   8   9  10  11
        F0  F1  B1  B1  B0  B0  –   F0  F1  B1  B0
                        ======  ==  ======
    """
    computed = [
        *((FORWARD, 0, 0, 0, 0, 1), (FORWARD, 0, 0, 1, 1, 2), (BACKWARD, 0, 0, 1, 2, 4)),
        *((BACKWARD, 0, 0, 0, 4, 6), (FORWARD, 0, 1, 0, 7, 8), (FORWARD, 0, 1, 1, 8, 9)),
        *((BACKWARD, 0, 1, 1, 9, 10), (BACKWARD, 0, 1, 0, 10, 11)),
    ]
    sent = [(STAGE_ONE, 0, 0, 1, 4, 6), (STAGE_ONE, 0, 0, 0, 6, 7), (STAGE_ONE, 0, 0, 1, 7, 9)]
    found = figures.round_figures(rows_of(*computed, *sent), 12.0, 1)
    assert found.end_s.tolist() == [6, 11]
    assert found.wait_s.tolist() == [0, 1] and found.overlap_s.tolist() == [2, 2]
    assert found.compute_s.tolist() == [6, 4] and found.osf.tolist() == pytest.approx([1, 4 / 5])
    assert figures.row(found) == 2
    assert figures.busy(rows_of(*sent), 12.0).tolist() == [[4, 9]]
    unfinished = rows_of((STAGE_ONE, 0, 0, 0, 4, 5), (STAGE_ONE, 0, 0, 0, 6, math.nan))
    assert figures.busy(unfinished, 9.0).tolist() == [[4, 5], [6, 9]]


def test_the_group_waits_as_its_slowest_and_overlaps_as_its_worst() -> None:
    computed = [
        *((FORWARD, 0, 0, 0, 0, 1), (BACKWARD, 0, 0, 0, 1, 2), (FORWARD, 0, 1, 0, 5, 6)),
        *((BACKWARD, 0, 1, 0, 6, 7), (FORWARD, 1, 0, 0, 0, 2), (BACKWARD, 1, 0, 0, 2, 4)),
        *((FORWARD, 1, 1, 0, 5, 7), (BACKWARD, 1, 1, 0, 7, 9), (FORWARD, 1, 2, 0, 9, math.nan)),
    ]
    sent = [(STAGE_ONE, 0, 0, 0, 2, 3), (STAGE_ONE, 1, 0, 0, 4, 5.5)]
    found = figures.round_figures(rows_of(*computed, *sent), 12.0, 2)
    assert found.wait_s.tolist() == [0, 3] and found.mean_wait_s.tolist() == [0, 2]
    assert found.overlap_s.tolist() == [0, 0.5] and found.end_s.tolist() == [4, 9]


def test_ratios_and_use_of_links_worked_out_by_hand() -> None:
    sent = rows_of((STAGE_ONE, 0, 0, 0, 0, 1), (STAGE_ONE, 1, 0, 0, 0, 1), (STAGE_ONE, 0, 1, 0, 2, 3))
    ratio = figures.ratios(sent, coordinates=100, workers=2, rounds=2)
    assert (ratio.first.tolist(), ratio.final.tolist(), ratio.least_bits) == ([0.25], [0.25], 8)
    links = star(2, 50.0, 0.0)
    assert figures.utilization(sent, links, 2, 1, 10.0) == 300 / (2 * 50 * 10)
    changing = figures._weighted((Change(2.0, 0.5), Change(8.0, 2.0)), 10.0)
    assert changing == 2 + 6 * 0.5 + 2 * 2


def test_links_are_busy_while_something_is_under_way() -> None:
    """Intervals that touch are one; what has not ended lasts to the end."""
    computing = (FORWARD, 0, 0, 0, 0.0, 9.0)
    assert figures.busy(rows_of(computing), 10.0).shape == (0, 2)
    sent = [(1.0, 2.0), (4.0, 6.0), (2.0, 3.0), (4.5, 5.0), (8.0, math.nan)]
    rows = rows_of(computing, *((STAGE_ONE, 0, 0, 0, *span) for span in sent))
    assert figures.busy(rows, 10.0).tolist() == [[1, 3], [4, 6], [8, 10]]


def test_what_is_undelivered_grows_at_once_and_shrinks_evenly() -> None:
    times, sums = _queue([(1.0, 100.0, 0.0), (3.0, -50.0, 2.0), (3.0, 20.0, 0.0), (4.0, -70.0, 1.0)])
    line = dict(zip(times, sums, strict=True))  # the last of several points of a moment
    assert line == {0: 0, 1: 100, 3: 70, 4: pytest.approx(0)}


def drawn(found: list[SimulateSummary], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Figure]:
    """The figures of several simulations by name."""
    made: list[Plot] = []
    monkeypatch.setattr(plots, "write_plots", lambda given, folder, **form: made.extend(given))
    plots.plot_sweep(found, tmp_path)
    return {plot.name: render(plot, PRINT) for plot in made}


@pytest.mark.parametrize("over", ["rates", "blocks"])
def test_three_places_make_lines_of_medians_over_seeds(
    over: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing or infinite figure is not drawn."""
    short = ("simulate.scheme=fixed", "simulate.seconds=12", "cluster.workers=4")
    one = simulated(tmp_path, *EVEN, *short)

    def at(place: int, seed: int) -> SimulateSummary:
        where: dict[str, Any] = (
            {"rate_mbit": 1e3 * place} if over == "rates" else {"blocks": place * one.blocks[:1]}
        )
        row = math.inf if place == 1 else float(place)
        return replace(one, **where, rounds=10 * place + seed**2, t_wait=None, row=row, utilization=0.5)

    found = [at(place, seed) for place in (3, 1, 2) for seed in (0, 1, 2)]
    ideal = replace(one, scheme="ideal", rounds=40)
    figure = drawn([*found, ideal], tmp_path, monkeypatch)[over]
    rounds, use, wait, row = (axes.lines[0].get_xydata() for axes in figure.axes)
    assert rounds.tolist() == [[1, 11], [2, 21], [3, 31]]
    assert figure.axes[0].lines[1].get_ydata()[0] == 40
    assert use.tolist() == [[place, 0.5] for place in (1, 2, 3)]
    assert np.isnan(wait[:, 1]).all()
    np.testing.assert_equal(row, [[1, math.nan], [2, 2], [3, 3]])
    assert set(drawn(found[:6], tmp_path, monkeypatch)) == {"schemes-1", "schemes-2"}, "two make no line"


def test_bars_of_schemes_are_medians_over_seeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = simulated(tmp_path, *EVEN, "simulate.scheme=none", "simulate.seconds=12", "cluster.workers=4")
    rows = {"none": (0.5, 1.0, 4.0), "ideal": (math.inf, math.inf, math.inf)}
    found = [
        replace(one, scheme=scheme, seed=seed, row=row, rounds=7 + seed)
        for scheme, several in rows.items()
        for seed, row in enumerate(several)
    ]
    (figure,) = drawn(found, tmp_path, monkeypatch).values()
    heights = [[bar.get_height() for bar in axes.patches] for axes in figure.axes]
    assert heights[0] == [8, 8]
    np.testing.assert_equal(heights[3], [1.0, math.nan])


def test_plots_and_tables_are_written_and_a_finished_simulation_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ("plots=true", "simulate.seconds=12", "cluster.workers=4")
    simulated(tmp_path, *asked)
    assert {path.stem for path in (tmp_path / "plots").glob("*-print.png")} == {
        *("ratio-print", "blocks-print", "queue-print")
    }
    assert "already finished" not in capsys.readouterr().out
    simulated(tmp_path, *asked)
    assert "already finished" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["network=none"], "network=none: task=simulate sets keys that only simulated networks have"),
        (["cluster=local"], "cluster=local runs workers"),
        (["cluster.workers=1"], "cluster.workers=1 has no other worker to broadcast to"),
        (["cluster.ranks_per_node=4"], "cluster.ranks_per_node=4 has no effect"),
        (["simulate.bits=8"], "simulate.bits=8 has no effect with simulate.scheme=aqgb"),
        (["simulate.scheme=none", "simulate.floor=0.5"], "simulate.floor=0.5 has no effect"),
        (["simulate.split=2"], "simulate.split=2 is not one of"),
        (["simulate.split=3", "network.blocks=[[9,1,1]]"], "simulate.split=3 contradicts network.blocks"),
        (["network.compute_s=null"], "network.compute_s=null would be measured"),
        (["network.background_jobs=1"], "network.background_jobs=1 cannot be simulated"),
        (["network.codec_times=measured"], "task=simulate runs no codec"),
        (["cluster.workers=1024", "network.nodes=1024"], "use at most simulate.seconds="),
        (
            ["network.fabric=two_level", "network.ranks_per_node=4", "network.intra_rate_mbit=1e4"],
            "network.fabric=two_level cannot be simulated",
        ),
    ],
)
def test_what_cannot_be_simulated_is_refused_in_one_line(overrides: list[str], said: str) -> None:
    with pytest.raises(ValueError) as refused:
        config_of(*overrides)
    assert said in str(refused.value) and "\n" not in str(refused.value)
