"""Plots the bytes that ranks send over time (DynamiQ Fig. 17) next to their computation; chooses the steps
shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gradwire.harness.network.configured import link_rate
from gradwire.harness.network.settings import recorded_network
from gradwire.harness.record.runs import Run
from gradwire.harness.record.timed_steps import recorded, steps_of
from gradwire.harness.report.figures import Plot
from gradwire.harness.report.groups import Group, title
from gradwire.harness.report.series import Drawable, Panel, Rules, Spans, Steps, View, series_plot
from gradwire.harness.report.style import Filling, plain
from gradwire.harness.report.tables import number
from gradwire.harness.report.views import from_zero, no_grid, x_from, y_from
from gradwire.harness.timing.trace.bandwidth import Bandwidth, bandwidth_over
from gradwire.harness.timing.trace.files import RecordedSteps
from gradwire.harness.timing.trace.writer import sampling

if TYPE_CHECKING:
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
    width = f"{shown.sent.bin_s * 1e3:g} ms"
    x_label = f"time in {steps_in_words(numbers)} [{units.time}]; bins of {width}"
    return series_plot("bandwidth", heading, [_panel(shown, units, x_label=x_label)])


def bandwidth_comparison(groups: Sequence[Group], name: str) -> Plot | None:
    """A panel for each group's first run on the same axes; None without two that have limited links."""
    found = {group.words: shown for group in groups if (shown := _shown(group.runs[0])) is not None}
    if not 2 <= len(found) <= MOST_PANELS:
        return None
    units = Units.of(list(found.values()))
    highest = max(units.rate * value for shown in found.values() for value in shown.highest)
    longest = units.seconds * max(shown.sent.end for shown in found.values())
    same = [x_from(0, longest), y_from(0, 1.05 * highest)]
    panels = [_panel(shown, units, label, more=same) for label, shown in found.items()]
    panels[-1] = replace(panels[-1], x_label=f"time in {COMPARED} steps [{units.time}]")
    return series_plot(name, title(groups, "the first seed's run"), panels, (1.1,) * len(panels))


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


def _panel(
    shown: PlottedTraffic, units: Units, title: str = "", x_label: str = "", more: Sequence[View] = ()
) -> Panel:
    """Rank 0's computation, what it and all ranks on average send, steps and a link's rate."""
    seconds, rate, sent = units.seconds, units.rate, shown.sent
    edges = [seconds * edge for edge in sent.edges]
    computing = [(seconds * start, seconds * end) for start, end in sent.computing]
    series: list[Drawable] = [
        Spans(computing, "sky", 0.3, "rank 0 computes"),
        Rules([seconds * start for start in sent.starts[1:]], line="-", width=0.7, label="next step"),
        Steps(
            *(edges, [rate * value for value in sent.mean], Filling("", "orange")),
            *(f"mean of {shown.ranks} ranks", 0.0, 0.0),
        ),
        Steps(edges, [rate * value for value in sent.first], plain("ink"), "rank 0", 0.0, 0.9),
    ]
    if shown.link is not None:
        label = f"link, {number(shown.link * BITS / 1e6, 3)} Mbit/s"
        series.append(Rules([rate * shown.link], "vermilion", "--", 0.9, label, level=True))
    views = [no_grid("x"), x_from(0, edges[-1]), from_zero, *more]
    return Panel(series, f"sent [{units.bytes}]", x_label, title, views)


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
