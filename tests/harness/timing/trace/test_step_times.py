"""The times of a step in the record: its parts sum to it, and the trace gives the same times again."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from pool import Workers
from traced_runs import SIMULATED, real_run, virtual_run

from gradwire.harness.network.links import star
from gradwire.harness.record.row_file import read_rows
from gradwire.harness.record.runs import load_run
from gradwire.harness.record.summary import Summary
from gradwire.harness.record.timed_steps import timed_steps
from gradwire.harness.timing.measure.breakdown import breakdown
from gradwire.harness.timing.measure.metrics import METRICS, PARTS, of_ranks
from gradwire.harness.timing.measure.step_figures import rank_figures
from gradwire.harness.timing.simulate.clock import SimulatedClock
from gradwire.harness.timing.trace.files import read_traces, recorded_steps, trace_file
from gradwire.harness.timing.trace.step import StepTrace, spans

OVERLAP = ("comm_s", "overlap_s", "wait_s", "osf")


def rows_of(directory: Path) -> list[dict[str, Any]]:
    return read_rows(directory / "steps.jsonl")


def summary_of(directory: Path) -> Summary:
    return load_run(directory).done


def check_sums(trace: StepTrace) -> None:
    for own in trace.values():
        found = breakdown(spans(own), 0.0, own.end)
        parts = [getattr(found, name) for name in PARTS]
        assert min(parts) >= 0
        assert math.fsum(parts) == pytest.approx(own.end, rel=1e-9, abs=0)


@pytest.fixture(params=["paced", "simulated"])
def run(request: pytest.FixtureRequest) -> Path:
    directory: Path = request.getfixturevalue(request.param)
    return directory


def test_the_parts_of_every_row_sum_to_the_step(run: Path) -> None:
    rows = rows_of(run)
    assert len(rows) == 5
    for row in rows:
        assert math.fsum(row[part] for part in PARTS) == pytest.approx(row["step_time_s"], rel=1e-9, abs=0)
        assert min(row[part] for part in PARTS) >= 0
    summary = summary_of(run)
    parts = [summary.values()[part] for part in PARTS]
    assert math.fsum(parts) == pytest.approx(1 / summary.rounds_per_second, rel=1e-9, abs=0)


def test_the_parts_of_every_traced_and_retimed_step_sum_to_it(run: Path) -> None:
    for _, trace in timed_steps(run):
        check_sums(trace)
    size = summary_of(run).workers
    clock = SimulatedClock(star(size, 1e6, 1e-4), in_flight=2)
    for number, trace in read_traces(run, size):
        check_sums(clock.step(number, trace))


def test_the_overlap_of_every_row_fits_the_step(run: Path) -> None:
    for row in rows_of(run):
        assert 0 <= row["overlap_s"] <= row["comm_s"] <= row["step_time_s"] * (1 + 1e-9)
        assert 0 < row["wait_s"] < row["step_time_s"]
        assert 0 < row["osf"] < 1


def test_a_simulated_row_comes_again_from_the_trace(simulated: Path) -> None:
    """The trace holds measured work, to a hundredth of a microsecond; the clock is the configuration's."""
    rows = rows_of(simulated)
    for (number, trace), row in zip(timed_steps(simulated), rows, strict=True):
        assert number == row["step"]
        slowest = max(trace.values(), key=lambda own: own.end)
        assert slowest.end == pytest.approx(row["step_time_s"], abs=2e-6)
        ranks = [{"step_time_s": own.end} | rank_figures(spans(own), 0.0, own.end) for own in trace.values()]
        found = of_ranks(ranks)
        assert [found[name] for name in OVERLAP] == pytest.approx([row[name] for name in OVERLAP], abs=1e-4)


def test_a_real_trace_has_the_step_as_it_was(paced: Path) -> None:
    for (_, trace), row in zip(timed_steps(paced), rows_of(paced), strict=True):
        assert max(own.end for own in trace.values()) == pytest.approx(row["step_time_s"], abs=1e-6)


def test_the_summary_gives_the_overlap(run: Path) -> None:
    summary, rows = summary_of(run), [row for row in rows_of(run) if not row["measured"]]
    means = {name: sum(row[name] for row in rows) / len(rows) for name in ("overlap_s", "wait_s", "osf")}
    for name, mean in means.items():
        assert summary.figures[name] == pytest.approx(mean)
    assert summary.figures["row"] == pytest.approx(means["overlap_s"] / means["wait_s"])


def test_tokens_per_second_are_those_of_all_ranks(run: Path) -> None:
    found = load_run(run)
    tokens = 1.0 * found.workers
    for key in ("train.micro_batch", "dataset.sequence_length"):
        tokens *= found.setting(key, int)
    for row in found.steps:
        assert row["tokens_per_s"] == pytest.approx(tokens / row["step_time_s"])
    assert found.done.tokens_per_s == pytest.approx(tokens * found.done.rounds_per_second)


def test_utilization_is_the_share_of_the_busiest_link(simulated: Path) -> None:
    summary = summary_of(simulated)
    per_step = max(summary.bytes_sent_per_rank) / summary.steps
    used = summary.values()["utilization"]
    assert used == pytest.approx(8 * per_step * summary.rounds_per_second / 50e6)
    assert 0 < used < 1


def test_a_lone_rank_has_nothing_to_hide(tmp_path: Path) -> None:
    summary = summary_of(virtual_run(tmp_path / "run", 1))
    hiding = [key for key, metric in METRICS.items() if metric.section == "overlap"]
    assert {summary.figures[key] for key in hiding} == {None}


def test_given_computation_and_hidden_communication(tmp_path: Path) -> None:
    """The update takes no time of its own, and on unlimited links ranks hardly wait."""
    given = ("network=simulated", "network.rate_mbit=1e9", "network.compute_s=2", "network.codec_times=none")
    directory = virtual_run(tmp_path / "run", 2, *given)
    for row in rows_of(directory):
        assert row["compute_s"] == pytest.approx(2.0)
        assert 0 <= row["wait_s"] < 1e-4
        assert row["osf"] == pytest.approx(1.0, abs=1e-4)
    assert summary_of(directory).values()["utilization"] < 1e-4


def test_records_without_spans_have_no_overlap(tmp_path: Path) -> None:
    directory = virtual_run(tmp_path / "run", 2, *SIMULATED, "measure.spans=false")
    assert {row[name] for row in rows_of(directory) for name in (*PARTS, *OVERLAP)} == {None}
    assert summary_of(directory).figures["row"] is None


def test_only_the_steps_asked_for_are_read(simulated: Path, tmp_path: Path) -> None:
    assert recorded_steps(simulated, 4) == ([0, 1, 2, 3, 4], None)
    assert [number for number, _ in timed_steps(simulated, {1, 3, 9})] == [1, 3]
    wanted = dict(timed_steps(simulated, {3}))[3]
    assert wanted == dict(timed_steps(simulated))[3]


def test_a_rank_without_a_step_is_named(tmp_path: Path) -> None:
    directory = virtual_run(tmp_path / "run", 2, *SIMULATED)
    path = trace_file(directory, 1)
    content = path.read_bytes()
    path.write_bytes(content[:-30])  # cut off by a crash
    with pytest.raises(ValueError, match=r"rank1.arrows.zst: lacks step [34], which rank 0 has"):
        list(timed_steps(directory))
    path.unlink()
    with pytest.raises(ValueError, match="lacks step 0"):
        list(timed_steps(directory))


def test_a_run_without_trace_is_refused(tmp_path: Path, workers: Workers) -> None:
    directory = real_run(tmp_path / "run", 2, workers, "measure.trace=false")
    with pytest.raises(ValueError, match="holds no steps; train with measure.trace=true"):
        list(timed_steps(directory))
