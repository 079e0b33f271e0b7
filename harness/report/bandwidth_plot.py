"""Plots what ranks send over time (DynamiQ Fig. 17), beside when they compute; chooses the steps shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gradwire.harness.network.configured import link_rate
from gradwire.harness.network.settings import recorded_network
from gradwire.harness.record.runs import Run
from gradwire.harness.record.timed_steps import recorded, steps_of
from gradwire.harness.report.figures import Plot
from gradwire.harness.report.style import Form
from gradwire.harness.report.tables import number
from gradwire.harness.timing.trace.bandwidth import bandwidth_over
from gradwire.harness.timing.trace.files import Recorded
from gradwire.harness.timing.trace.writer import sampling

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from gradwire.harness.timing.trace.step import StepTrace

STEPS = 3
"""As many steps follow one another in a view, unless asked for otherwise."""

TIME_UNITS = {"s": 1.0, "ms": 1e3, "µs": 1e6}
RATE_UNITS = {"GB/s": 1e-9, "MB/s": 1e-6, "kB/s": 1e-3}
BITS = 8


def bandwidth_plot(run: Run, heading: str) -> Plot | None:
    """Plots a few steps from the middle of the run; None if nothing was sent or no trace can be read.

    `task=timeline` says what is wrong with a trace; a plot must not end a run.
    """
    try:
        chosen = chosen_steps(run)
        steps = [trace for _, trace in steps_of(run, chosen)]
        return bandwidth_of(run, heading, chosen, steps)
    except (ValueError, LookupError, RuntimeError, OSError):
        return None


def bandwidth_of(run: Run, heading: str, numbers: Sequence[int], steps: Sequence[StepTrace]) -> Plot | None:
    """Timed steps of these numbers, shown one after another; None where nothing was sent."""
    sent = bandwidth_over(steps)
    if not any(sent.mean):
        return None
    link = link_rate(recorded_network(run.config["network"]), len(steps[0]))
    time_unit = _unit(TIME_UNITS, sent.end, at_least=2.0)
    rate_unit = _unit(RATE_UNITS, max([*sent.first, (link or 0.0) / BITS]), at_least=1.0)
    seconds, rate = TIME_UNITS[time_unit], RATE_UNITS[rate_unit]
    edges = [seconds * edge for edge in sent.edges]

    def draw(panels: Sequence[Axes], form: Form) -> None:
        axes, ink = panels[0], form.colors["ink"]
        label = "rank 0 computes"
        for start, end in sent.computing:
            look: dict[str, Any] = {"facecolor": form.colors["sky"], "alpha": 0.3, "lw": 0}
            axes.axvspan(seconds * start, seconds * end, **look, label=label)
            label = "_"
        label = "next step"
        for start in sent.starts[1:]:
            axes.axvline(seconds * start, color=form.colors["grey"], lw=0.7, label=label)
            label = "_"
        mean = [rate * value for value in sent.mean]
        look = {"facecolor": form.colors["orange"], "edgecolor": form.ground, "lw": 0.0, "hatch": ""}
        axes.stairs(mean, edges, fill=True, **look, label=f"mean of {len(steps[0])} ranks")
        axes.stairs([rate * value for value in sent.first], edges, color=ink, lw=0.9, label="rank 0")
        if link is not None:
            style: dict[str, Any] = {"color": form.colors["vermilion"], "lw": 0.9, "ls": "--"}
            axes.axhline(rate * link / BITS, **style, label=f"link, {number(link / 1e6, 3)} Mbit/s")
        axes.grid(visible=False, axis="x")
        axes.set_xlim(0, edges[-1])
        axes.set_ylim(bottom=0)
        axes.set_ylabel(f"sent [{rate_unit}]")
        width = f"{sent.bin_s * 1e3:g} ms"
        axes.set_xlabel(f"time in {steps_in_words(numbers)} [{time_unit}]; bins of {width}")

    return Plot("bandwidth", heading, draw)


def steps_in_words(numbers: Sequence[int]) -> str:
    """`step 5`, `steps 5 to 7`, or, where only some were traced, `steps 3, 7 and 11`."""
    *before, last = numbers
    if not before:
        return f"step {last}"
    if list(numbers) == list(range(numbers[0], last + 1)):
        return f"steps {numbers[0]} to {last}"
    return f"steps {', '.join(map(str, before))} and {last}"


def _unit(units: dict[str, float], largest: float, *, at_least: float) -> str:
    """The first unit in which the largest value is not too small, or the last one."""
    return next((name for name, factor in units.items() if factor * largest >= at_least), list(units)[-1])


def chosen_steps(
    run: Run, count: int = STEPS, first: int | None = None, have: Recorded | None = None
) -> list[int]:
    """At most `count` traced steps from `first` on; without it from the middle of the run, where none was
    measured. `have`: those there are, where that is known already.

    ValueError in one line where there is no trace, or it has no step `first`.
    """
    known, damage = have or recorded(run)
    if first is not None:
        if first not in known:
            every = f", of {every} steps one" if (every := sampling(known)) > 1 else ""
            raise ValueError(
                f"timeline.step={first}: {run.folder} has the steps {known[0]} to {known[-1]}{every}; choose "
                f"one of them, or leave it out{f'; {damage}' if damage else ''}"
            )
        start = known.index(first)
        return known[start : start + count]
    measured = {row["step"] for row in run.steps if row.get("measured")}
    windows = [known[at : at + count] for at in range(max(1, len(known) - count + 1))]
    # A long window may have a measured step in it wherever it is.
    usual = [steps for steps in windows if measured.isdisjoint(steps)]
    usual = usual or [steps for steps in windows if steps[0] not in measured] or windows
    return usual[len(usual) // 2]
