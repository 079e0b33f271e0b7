"""Checks of a comparison's times: computation that cells share should take equally long, and the machine
should do little else meanwhile.

Only runs that measure real time are checked. A run's own workers may overload a machine, and other processes
may use the time in which workers wait for messages; neither is noise. Noise is CPU time that computation did
not get because other processes took it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from gradwire.harness.record.identity import computation_id
from gradwire.harness.record.runs import Run

MOST_DIFFERENCE = 0.1
"""The largest accepted relative difference in the time of the same computation between runs of a
comparison.
"""

LEAST_OTHERS = 0.1
"""A machine is busy if other processes, or the hypervisor, take this share of its CPUs ..."""

LEAST_SHARE = 0.9
"""... and workers then get less than this share of the CPU time that they need while computing ..."""

LEAST_PRESSURE = 0.1
"""... or, if that is not known (on GPUs), if tasks wait for a CPU for this share of the time."""

MOST_NAMED = 3
"""The largest number of runs of a kind that a line names."""

LEAD = "Busy machine"
"""The beginning of the line."""

BUSY = "busy_machine"
"""The key of the line in wandb's summaries."""

BUSY_TITLE = "busy machine: times disturbed"
"""The words in titles of plots."""


@dataclass(frozen=True)
class Observed:
    """The observations of one run, or of one cell of a sweep's record, that measured real time."""

    label: str
    computation: str  # what runs share that compute the same with as many workers
    cores: int | None  # of a machine
    workers: int  # that are on a machine
    figures: Mapping[str, float]  # of the whole run, by the keys of METRICS

    @property
    def pressed(self) -> bool:
        """True if other processes took CPU time that the run's workers needed."""
        if not self.cores:
            return False
        share = self.figures.get("compute_cpu_share")
        if share is None:
            lacks = self.figures.get("cpu_pressure", 0.0) >= LEAST_PRESSURE
        else:
            lacks = share * max(1.0, self.workers / self.cores) < LEAST_SHARE
        return lacks and max(self.taken(key) for key in TAKERS) >= LEAST_OTHERS

    def taken(self, key: str) -> float:
        """The share of the machine's CPUs taken by `key`, one of `TAKERS`."""
        return self.figures.get(key, 0.0) / self.cores if self.cores else 0.0


TAKERS = {"others_cpus": "other processes", "cpu_steal": "the hypervisor"}
"""Sources of load that take CPU time from a run's workers, by metric."""


def same_computation(config: Mapping[str, object], workers: int) -> str:
    """A key shared by runs with the same computation and the same number of workers."""
    return f"{computation_id(config)}-{workers}"


def observed(run: Run, label: str) -> Observed | None:
    """The observations of a finished run; None if it used a simulated clock."""
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
    caveats = [line for line in (*uneven, _pressed(pressed)) if line]
    return f"{LEAD}: {'; '.join(caveats)}." if caveats else ""


def by_computation(runs: Iterable[Observed]) -> dict[str, list[Observed]]:
    """The runs grouped by their computation."""
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
