"""Plots the bytes that ranks send over time (DynamiQ Fig. 17) next to their computation; chooses the steps
shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gradwire.harness.network.configured import link_rate
from gradwire.harness.network.settings import recorded_network
from gradwire.harness.record.runs import Run
from gradwire.harness.record.timed_steps import recorded, steps_of
from gradwire.harness.report.figures import Plot
from gradwire.harness.report.groups import Group, title
from gradwire.harness.report.style import Form
from gradwire.harness.report.tables import number
from gradwire.harness.timing.trace.bandwidth import Bandwidth, bandwidth_over
from gradwire.harness.timing.trace.files import RecordedSteps
from gradwire.harness.timing.trace.writer import sampling

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from gradwire.harness.timing.trace.step import StepTrace

STEPS = 3
"""The default number of consecutive steps in a view."""

COMPARED, MOST_PANELS = 2, 8
"""Steps of each run in a comparison, and the most groups that are shown below one another."""

TIME_UNITS = {"s": 1.0, "ms": 1e3, "µs": 1e6}
RATE_UNITS = {"GB/s": 1e-9, "MB/s": 1e-6, "kB/s": 1e-3}
BITS = 8


def bandwidth_plot(run: Run, heading: str) -> Plot | None:
    """Plots a few steps from the middle of the run; None if nothing was sent or no trace can be read.

    `task=timeline` reports what is wrong with a trace; a plot must not end a run.
    """
    try:
        chosen = chosen_steps(run)
        steps = [trace for _, trace in steps_of(run, chosen)]
        return bandwidth_of(run, heading, chosen, steps)
    except (ValueError, LookupError, RuntimeError, OSError):
        return None


def bandwidth_of(run: Run, heading: str, numbers: Sequence[int], steps: Sequence[StepTrace]) -> Plot | None:
    """Timed steps of these numbers, shown one after another; None where nothing was sent."""
    shown = PlottedTraffic.of(run, steps)
    if shown is None:
        return None
    units = Units.of([shown])

    def draw(panels: Sequence[Axes], form: Form) -> None:
        _draw(panels[0], shown, units, form)
        width = f"{shown.sent.bin_s * 1e3:g} ms"
        panels[0].set_xlabel(f"time in {steps_in_words(numbers)} [{units.time}]; bins of {width}")

    return Plot("bandwidth", heading, draw)


def bandwidth_comparison(groups: Sequence[Group], name: str) -> Plot | None:
    """A panel for each group's first run on the same axes; None without two that have limited links."""
    found = {group.label: shown for group in groups if (shown := _shown(group.runs[0])) is not None}
    if not 2 <= len(found) <= MOST_PANELS:
        return None
    units = Units.of(list(found.values()))

    def draw(panels: Sequence[Axes], form: Form) -> None:
        highest = max(units.rate * value for shown in found.values() for value in shown.highest)
        for axes, (label, shown) in zip(panels, found.items(), strict=True):
            _draw(axes, shown, units, form)
            axes.set_title(label)
            axes.set_xlim(0, units.seconds * max(each.sent.end for each in found.values()))
            axes.set_ylim(top=1.05 * highest)
        panels[-1].set_xlabel(f"time in {COMPARED} steps [{units.time}]")

    heading = title(groups, "the first seed's run")
    return Plot(name, heading, draw, (1.1,) * len(found))


def _shown(run: Run) -> PlottedTraffic | None:
    """The traffic of a run in a comparison; None if its links are not limited or no trace can be read."""
    try:
        steps = [trace for _, trace in steps_of(run, chosen_steps(run, COMPARED))]
        shown = PlottedTraffic.of(run, steps)
    except (ValueError, LookupError, RuntimeError, OSError):
        return None
    return None if shown is None or shown.link is None else shown


@dataclass(frozen=True)
class PlottedTraffic:
    """Bytes that the ranks of a run sent in some steps, and a link's bytes per second, if limited."""

    sent: Bandwidth
    link: float | None
    ranks: int

    @classmethod
    def of(cls, run: Run, steps: Sequence[StepTrace]) -> PlottedTraffic | None:
        """The traffic of these steps; None if nothing was sent."""
        sent = bandwidth_over(steps)
        if not any(sent.mean):
            return None
        rate = link_rate(recorded_network(run.config["network"]), len(steps[0]))
        return cls(sent, None if rate is None else rate / BITS, len(steps[0]))

    @property
    def highest(self) -> tuple[float, ...]:
        """The largest rates in bytes per second that are drawn."""
        return max(self.sent.first), self.link or 0.0


@dataclass(frozen=True)
class Units:
    """Units in which the largest values are neither very small nor very large."""

    time: str
    bytes: str

    @classmethod
    def of(cls, all_shown: Sequence[PlottedTraffic]) -> Units:
        longest = max(shown.sent.end for shown in all_shown)
        highest = max(value for shown in all_shown for value in shown.highest)
        return cls(unit_for(TIME_UNITS, longest, at_least=2.0), unit_for(RATE_UNITS, highest, at_least=1.0))

    @property
    def seconds(self) -> float:
        return TIME_UNITS[self.time]

    @property
    def rate(self) -> float:
        return RATE_UNITS[self.bytes]


def _draw(axes: Axes, shown: PlottedTraffic, units: Units, form: Form) -> None:
    """Draws rank 0's computation, the rates of rank 0 and of the average rank, steps, and a link's rate."""
    seconds, rate, sent = units.seconds, units.rate, shown.sent
    label = "rank 0 computes"
    for start, end in sent.computing:
        look: dict[str, Any] = {"facecolor": form.colors["sky"], "alpha": 0.3, "lw": 0}
        axes.axvspan(seconds * start, seconds * end, **look, label=label)
        label = "_"
    label = "next step"
    for start in sent.starts[1:]:
        axes.axvline(seconds * start, color=form.colors["grey"], lw=0.7, label=label)
        label = "_"
    edges, mean = [seconds * edge for edge in sent.edges], [rate * value for value in sent.mean]
    look = {"facecolor": form.colors["orange"], "edgecolor": form.ground, "lw": 0.0, "hatch": ""}
    axes.stairs(mean, edges, fill=True, **look, label=f"mean of {shown.ranks} ranks")
    first = [rate * value for value in sent.first]
    axes.stairs(first, edges, color=form.colors["ink"], lw=0.9, label="rank 0")
    if shown.link is not None:
        style: dict[str, Any] = {"color": form.colors["vermilion"], "lw": 0.9, "ls": "--"}
        axes.axhline(rate * shown.link, **style, label=f"link, {number(shown.link * BITS / 1e6, 3)} Mbit/s")
    axes.grid(visible=False, axis="x")
    axes.set_xlim(0, edges[-1])
    axes.set_ylim(bottom=0)
    axes.set_ylabel(f"sent [{units.bytes}]")


def steps_in_words(numbers: Sequence[int]) -> str:
    """`step 5`, `steps 5 to 7`, or, where only some were traced, `steps 3, 7 and 11`."""
    *before, last = numbers
    if not before:
        return f"step {last}"
    if list(numbers) == list(range(numbers[0], last + 1)):
        return f"steps {numbers[0]} to {last}"
    return f"steps {', '.join(map(str, before))} and {last}"


def unit_for(units: dict[str, float], largest: float, *, at_least: float) -> str:
    """The first unit in which the largest value is not too small, or the last one."""
    return next((name for name, factor in units.items() if factor * largest >= at_least), list(units)[-1])


def chosen_steps(
    run: Run, count: int = STEPS, first: int | None = None, have: RecordedSteps | None = None
) -> list[int]:
    """At most `count` traced steps from `first` on, or, without `first`, from the middle of the run without
    measured ones. `have` gives the traced steps if they are already known.

    Raises ValueError in one line if there is no trace, or if it has no step `first`.
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
    # Any long window may contain a measured step.
    usual = [steps for steps in windows if measured.isdisjoint(steps)]
    usual = usual or [steps for steps in windows if steps[0] not in measured] or windows
    return usual[len(usual) // 2]
