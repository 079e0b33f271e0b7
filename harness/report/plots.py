"""Plots of a comparison, with one style for each group throughout; bars of a step's parts and of the bits
sent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median_low

from gradwire.harness.record.busy import BUSY_TITLE
from gradwire.harness.record.summary import Summary
from gradwire.harness.report.axis_plots import axis_plots
from gradwire.harness.report.bandwidth_plot import bandwidth_comparison
from gradwire.harness.report.bar_rows import AXIS_HEIGHT, Stack, group_rows, stacked
from gradwire.harness.report.busy_times import NO_STEPS, CommonSteps, busy_groups, common_steps
from gradwire.harness.report.curve_plots import metric_plots, ratio_plot, vnmse_curve, vnmse_plot
from gradwire.harness.report.evaluation import BASELINE
from gradwire.harness.report.figures import Plot, write_plots
from gradwire.harness.report.groups import Group, title
from gradwire.harness.report.series import Drawable, Whiskers, series_plot
from gradwire.harness.report.style import PARTS, Filling, LineStyle, line_styles, phase_filling
from gradwire.harness.report.tables import number
from gradwire.harness.report.tta_plots import tta_plot
from gradwire.harness.timing.measure.metric import Spread

NOT_SPLIT = Filling("parts not recorded", "grey", "++++")


def plot_groups(groups: Sequence[Group], folder: str | Path) -> list[Path]:
    """Write all plots of groups with finished runs, for print and for a dark page; returns the files."""
    return write_plots(group_plots(groups), Path(folder), pdf=True)


def group_plots(groups: Sequence[Group]) -> list[Plot]:
    """The plots of groups, once for each model, and those of times and metrics once for each clock and
    metric."""
    models = list(dict.fromkeys(group.named("model") for group in groups))
    kinds = list(dict.fromkeys((group.clock, group.metric) for group in groups))
    busy = busy_groups(groups)
    common = common_steps([run for group in groups for run in group.runs]) if busy else NO_STEPS
    plots: list[Plot | None] = []
    for model in models:
        alike = [group for group in groups if group.named("model") == model]
        looks = line_styles([BASELINE if group.is_baseline else group.codec for group in alike], BASELINE)
        styles = {group.label: style for group, style in zip(alike, looks, strict=True)}
        own = f"-{model}" if len(models) > 1 else ""
        for clock, metric in kinds:
            members = [group for group in alike if (group.clock, group.metric) == (clock, metric)]
            suffix = f"-{metric}-{clock}{own}" if len(kinds) > 1 else own
            if members:
                plots += _warned(_timed_plots(members, styles, suffix, common), members)
        if any(vnmse_curve(run) for group in alike for run in group.runs):
            plots.append(vnmse_plot(alike, styles, f"vnmse{own}"))
        plots.append(bits_plot(alike, f"bits{own}"))
    return [plot for plot in plots if plot is not None]


def _warned(plots: Iterable[Plot | None], groups: Sequence[Group]) -> list[Plot | None]:
    """The plots, with a warning in their titles if the groups' times were disturbed."""
    busy = f" · {BUSY_TITLE}" if busy_groups(groups) else ""
    return [plot and replace(plot, title=f"{plot.title}{busy}") for plot in plots]


def _timed_plots(
    members: Sequence[Group], styles: Mapping[str, LineStyle], suffix: str, common: CommonSteps
) -> Iterator[Plot | None]:
    """The plots of groups with the same model, clock and metric."""
    yield from metric_plots(members, styles, suffix)
    yield tta_plot(members, styles, f"tta{suffix}", common)
    yield breakdown_plot(members, f"breakdown{suffix}")
    yield ratio_plot(members, styles, f"ratio{suffix}")
    yield bandwidth_comparison(members, f"bandwidth{suffix}")
    yield from axis_plots(members, suffix)


def breakdown_plot(groups: Sequence[Group], name: str) -> Plot | None:
    """The parts of a step, stacked; None where no group has them."""
    typical = [_typical(group, step_ms) for group in groups]
    if not any(summary.has_breakdown for summary in typical):
        return None
    stack = {filling: [_part_ms(summary, key) for summary in typical] for key, filling in PARTS.items()}
    if not all(summary.has_breakdown for summary in typical):
        stack[NOT_SPLIT] = [0.0 if summary.has_breakdown else step_ms(summary) for summary in typical]
    return _bars(name, f"time of a step [ms], {groups[0].clock} clock", groups, stack, step_ms)


def bits_plot(groups: Sequence[Group], name: str = "bits") -> Plot | None:
    """Bits on the wire per coordinate, stacked by phase; None where no group's bytes were counted."""
    typical = [_typical(group, wire_bits) for group in groups]
    sent = dict.fromkeys(
        phase for summary in typical for phase, count in summary.bytes_by_phase.items() if count
    )
    if not any(wire_bits(summary) for summary in typical):
        return None
    stack = {phase_filling(phase): [_phase_bits(summary, phase) for summary in typical] for phase in sent}
    return _bars(name, "bits on the wire per coordinate", groups, stack, wire_bits)


def step_ms(summary: Summary) -> float:
    return 1e3 / summary.rounds_per_second


def wire_bits(summary: Summary) -> float:
    """Bits per coordinate; 0 where nothing was sent or counted."""
    return summary.wire_bits_per_coordinate or 0.0


def _bars(
    name: str, label: str, groups: Sequence[Group], stack: Stack, figure: Callable[[Summary], float]
) -> Plot:
    """The seed with the median `figure` of each group, split into the parts of `stack`, and the range of all
    seeds."""

    rows = group_rows(groups)
    bars, lengths = stacked(rows, stack)
    spreads = [Spread.of([figure(run.done) for run in group.runs]) for group in groups]
    ranges = [
        (center, each.low, each.high)
        for center, each in zip(rows.centers, spreads, strict=True)
        if each.low < each.high
    ]
    series: list[Drawable] = [*bars]
    if ranges:
        series.append(Whiskers(*zip(*ranges, strict=True)))
    ends = [max(length, each.high) for length, each in zip(lengths, spreads, strict=True)]
    figures = [number(length, 3) if length else "not counted" for length in lengths]
    panel = rows.panel(series, ends, figures, label)
    return series_plot(name, title(groups, "median seed and range"), [panel], (AXIS_HEIGHT + rows.height,))


def _typical(group: Group, figure: Callable[[Summary], float]) -> Summary:
    """The group's seed with the median figure: the parts of one run add up, medians of parts do not."""
    values = [figure(run.done) for run in group.runs]
    return group.runs[values.index(median_low(values))].done


def _part_ms(summary: Summary, key: str) -> float:
    return 1e3 * summary.values().get(key, 0.0)


def _phase_bits(summary: Summary, phase: str) -> float:
    """A phase's share of the bits, which are proportional to the bytes."""
    total = sum(summary.bytes_by_phase.values())
    return wire_bits(summary) * summary.bytes_by_phase.get(phase, 0) / total if total else 0.0
