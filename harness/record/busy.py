"""Checks of a comparison's times: the computation that cells share takes equally long, and the machine does
little else meanwhile.

Runs on the wall clock alone are looked at. A run's own workers may crowd a machine, and others may use the
time in which they wait for messages, neither of which is noise: what counts is the CPU time that computation
did not get because others took it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from gradwire.harness.record.identity import computation_id
from gradwire.harness.record.runs import Run

MOST_DIFFERENCE = 0.1
"""By how much the same computation may differ between the runs of a comparison."""

LEAST_OTHERS = 0.1
"""The share of a machine's CPUs that other processes, or the hypervisor, take where they press it ..."""

LEAST_SHARE = 0.9
"""... if workers then have less than this of the CPU time that they could have while they compute ..."""

LEAST_PRESSURE = 0.1
"""... or, where that is not known (on GPUs), tasks wait for a CPU for this share of the time."""

MOST_NAMED = 3
"""Most runs of a kind that a line names."""

LEAD = "Busy machine"
"""The beginning of the line."""

BUSY = "busy_machine"
"""The key of the line in wandb's summaries."""

BUSY_TITLE = "busy machine: times disturbed"
"""The words in titles of plots."""


@dataclass(frozen=True)
class Observed:
    """One run, or one cell of a sweep's record, on the wall clock."""

    label: str
    computation: str  # what runs share that compute the same with as many workers
    cores: int | None  # of a machine
    workers: int  # that are on a machine
    figures: Mapping[str, float]  # of the whole run, by the keys of METRICS

    @property
    def pressed(self) -> bool:
        """True if others took a part of the machine that its workers could have used."""
        if not self.cores:
            return False
        share = self.figures.get("compute_cpu_share")
        if share is None:
            lacks = self.figures.get("cpu_pressure", 0.0) >= LEAST_PRESSURE
        else:
            lacks = share * max(1.0, self.workers / self.cores) < LEAST_SHARE
        return lacks and max(self.taken(key) for key in TAKERS) >= LEAST_OTHERS

    def taken(self, key: str) -> float:
        """The share of the machine's CPUs that others, one of `TAKERS`, took."""
        return self.figures.get(key, 0.0) / self.cores if self.cores else 0.0


TAKERS = {"others_cpus": "other processes", "cpu_steal": "the hypervisor"}
"""Those who take CPUs from a run's workers, by metric."""


def same_computation(config: Mapping[str, object], workers: int) -> str:
    """A key that runs share whose workers do the same computation and are as many."""
    return f"{computation_id(config)}-{workers}"


def observed(run: Run, label: str) -> Observed | None:
    """The observations of a finished run; None on a simulated clock."""
    if run.summary is None or run.clock != "wall":
        return None
    cores = run.summary.machine.get("cores")
    together = run.done.workers_per_machine or run.done.workers
    return Observed(
        label, same_computation(run.config, run.done.workers), cores, together, run.summary.values()
    )


def busy_line(runs: Sequence[Observed]) -> str:
    """The caveats about comparing the times of these runs, in one line; empty if there are none."""
    uneven = [_uneven(alike) for alike in by_computation(runs).values()]
    pressed = [run for run in runs if run.pressed]
    said = [line for line in (*uneven, _pressed(pressed)) if line]
    return f"{LEAD}: {'; '.join(said)}." if said else ""


def by_computation(runs: Iterable[Observed]) -> dict[str, list[Observed]]:
    """The runs by what they compute."""
    found: dict[str, list[Observed]] = {}
    for run in runs:
        found.setdefault(run.computation, []).append(run)
    return found


def busy_run(run: Run) -> str:
    """The caveats of a run's own record about its machine, in one line; empty if there are none."""
    own = observed(run, "")
    return "" if own is None else busy_line([own])


def _uneven(runs: Sequence[Observed]) -> str:
    known = sorted((run.figures["compute_s"], run.label) for run in runs if run.figures.get("compute_s"))
    if len(known) < 2 or known[-1][0] <= (1 + MOST_DIFFERENCE) * known[0][0]:
        return ""
    (least, first), (most, last) = known[0], known[-1]
    return f"the same computation took {_ms(least)} ({first}) to {_ms(most)} ms a step ({last})"


def _pressed(runs: Sequence[Observed]) -> str:
    parts = []
    for key, who in TAKERS.items():
        own = [run for run in runs if run.taken(key) >= LEAST_OTHERS]
        if own:
            middle = median(run.figures[key] for run in own)
            parts.append(f"{who} took {middle:.1f} of {own[0].cores} CPUs{_named(own)}")
    return " and ".join(parts)


def _named(runs: Sequence[Observed]) -> str:
    labels = [run.label for run in runs if run.label]
    rest = len(labels) - MOST_NAMED
    shown = ", ".join(labels[:MOST_NAMED]) + (f" and {rest} more" if rest > 0 else "")
    return f" ({shown})" if shown else ""


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g}" if seconds < 1 else f"{1e3 * seconds:.0f}"
