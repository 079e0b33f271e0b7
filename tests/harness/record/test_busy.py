"""The line of a comparison that says that the machine was busy."""

from __future__ import annotations

from typing import Any

import pytest

from gradwire.harness.record.busy import Observed, busy_line


def run(
    label: str = "bf16", compute_s: float = 0.1, *, workers: int = 2, cores: int = 2, **figures: Any
) -> Observed:
    """A quiet run, unless `figures` say otherwise."""
    quiet = {"compute_cpu_share": 0.97, "others_cpus": 0.02, "cpu_steal": 0.0, "cpu_pressure": 0.05}
    return Observed(label, "same", cores, workers, {**quiet, "compute_s": compute_s, **figures})


def test_quiet_runs_say_nothing() -> None:
    assert busy_line([run("bf16", 0.1), run("topk", 0.109)]) == ""
    assert busy_line([]) == busy_line([run()]) == ""


def test_the_same_computation_that_differs_is_named_with_both_ends() -> None:
    line = busy_line([run("bf16", 0.165), run("dynamiq", 0.466), run("topk", 0.17)])
    assert line == "Busy machine: the same computation took 165 (bf16) to 466 ms a step (dynamiq)."


def test_other_computations_are_not_held_against_one_another() -> None:
    other = Observed("resnet", "another", 2, 2, run(compute_s=5.0).figures)
    assert busy_line([run(), other]) == ""


def test_others_that_take_what_computation_lacks_press_a_machine() -> None:
    pressed: dict[str, Any] = {"compute_cpu_share": 0.5, "others_cpus": 1.2, "cpu_pressure": 1.0}
    line = busy_line([run("bf16", **pressed), run("topk")])
    assert line == "Busy machine: other processes took 1.2 of 2 CPUs (bf16)."
    assert busy_line([run("bf16", compute_cpu_share=0.5, cpu_steal=0.4)]).endswith(
        "hypervisor took 0.4 of 2 CPUs (bf16)."
    )


@pytest.mark.parametrize(
    "calm",
    [
        {"compute_cpu_share": 0.97, "others_cpus": 0.9, "cpu_pressure": 0.9},  # while it waits for messages
        {"compute_cpu_share": 0.5, "others_cpus": 0.1, "cpu_pressure": 1.0},  # its own threads
        {"compute_cpu_share": 0.47, "workers": 4, "others_cpus": 0.3, "cpu_pressure": 1.0},  # its own workers
    ],
)
def test_what_a_runs_own_workers_explain_is_no_noise(calm: dict[str, Any]) -> None:
    assert busy_line([run(**calm)]) == ""


def test_crowded_workers_can_be_pressed_too() -> None:
    assert busy_line([run(workers=4, compute_cpu_share=0.3, others_cpus=0.9)]) != ""


def test_on_a_gpu_pressure_decides() -> None:
    """CPU time of the host says nothing of what the device computes."""
    figures = {"compute_s": 0.1, "others_cpus": 4.0}
    assert busy_line([Observed("a", "same", 16, 1, {**figures, "cpu_pressure": 0.5})]) != ""
    assert busy_line([Observed("a", "same", 16, 1, {**figures, "cpu_pressure": 0.05})]) == ""
    assert busy_line([Observed("a", "same", 16, 1, figures)]) == "", "an old record does not tell"


def test_many_runs_are_counted() -> None:
    pressed: dict[str, Any] = {"compute_cpu_share": 0.5, "others_cpus": 1.0}
    line = busy_line([run(f"run {number}", **pressed) for number in range(5)])
    assert line.endswith("CPUs (run 0, run 1, run 2 and 2 more).") and "\n" not in line
