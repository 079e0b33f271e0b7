"""Notes of tables on the computation that simulated times count."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gradwire.harness.record.runs import load_run
from gradwire.harness.report.notes import computation_notes

if TYPE_CHECKING:
    from conftest import SyntheticRuns

VIRTUAL = {"name": "virtual", "workers": 4, "device": "cpu"}


def notes(runs: SyntheticRuns, *profiles: dict[str, Any] | None, **network: Any) -> list[str]:
    """Those of runs of as many seeds, each with its profile, on this network."""
    folders = []
    for seed, profile in enumerate(profiles):
        config = {"cluster": VIRTUAL, "network": {"name": "simulated", **network}}
        folder = runs.write("bf16", seed, **config)
        runs.change_summary(folder, clock="simulated", profile=profile)
        folders.append(folder)
    return computation_notes([load_run(folder) for folder in folders])


def profile(digest: str, taken: float | None = None) -> dict[str, Any]:
    spread = {"p10": 0.09, "median": 0.1, "p90": 0.12}
    return {"computation": digest, "processor": "AMD EPYC", "compute_s": spread, "taken": taken}


def test_a_shared_profile_is_noted_with_its_spread(runs: SyntheticRuns) -> None:
    (line,) = notes(runs, profile("a"), profile("a"))
    assert "once for all runs that compute the same" in line
    assert "90, 100, 120 ms" in line and "AMD EPYC" in line


def test_unlimited_links_are_noted(runs: SyntheticRuns) -> None:
    line, *_ = notes(runs, profile("a"), name="none")
    assert line.startswith("Links are unlimited, so that compression can only cost time")


def test_a_busy_machine_is_noted_for_a_shared_profile(runs: SyntheticRuns) -> None:
    quiet, busy = notes(runs, profile("a", 0.02), profile("b", 0.45))[:2]
    assert "Others took" not in quiet
    assert "Others took 45% of its CPUs meanwhile" in busy


def test_runs_with_their_own_measurements_are_noted(runs: SyntheticRuns) -> None:
    (line,) = notes(runs, None, None, None)
    assert line.startswith("Each of 3 runs that compute the same measured its computation for itself")


def test_several_profiles_are_noted(runs: SyntheticRuns) -> None:
    *_, line = notes(runs, profile("a"), profile("b"), None)
    assert "3 runs that compute the same count 3 different profiles of it (1 what each step took)" in line


def test_a_testbed_says_whose_computation_it_takes(runs: SyntheticRuns) -> None:
    (line,) = notes(runs, None, preset="edgc_h100")
    assert line.startswith(
        "Links of a paper's testbed (edgc_h100); computation: this machine's CPU, measured"
    )
    assert line.endswith("not the testbed's.")


def test_given_computation_is_no_noise(runs: SyntheticRuns) -> None:
    (line,) = notes(runs, None, None, preset="aqgb", compute_s=0.5)
    assert line == (
        "Links of a paper's testbed (aqgb); computation: given, 0.5 s a step (network.compute_s)."
    )


def test_what_a_paper_prints_is_the_papers(runs: SyntheticRuns) -> None:
    (line,) = notes(runs, None, preset="aqgb", compute_s=1.5)
    assert line == "Links of a paper's testbed (aqgb); computation: the paper's, 1.5 s a step."


def test_real_runs_have_no_such_notes(runs: SyntheticRuns) -> None:
    assert computation_notes([load_run(runs.write("bf16", seed)) for seed in (0, 1)]) == []
