"""Figures against a numeric axis of a sweep: workers, bit budget, background jobs; a line for each codec.

DynamiQ's Figures 10 and 11 show the error and the final metric against the number of workers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import NamedTuple

from gradwire.harness.report.configs import Settings, covered, differing_keys, labels_in_words
from gradwire.harness.report.evaluation import BASELINE, same_but_codec
from gradwire.harness.report.figures import Plot
from gradwire.harness.report.groups import Group, title
from gradwire.harness.report.series import Panel, Series, series_plot
from gradwire.harness.report.style import line_styles
from gradwire.harness.report.views import log_y, ticks_at
from gradwire.harness.timing.measure.metrics import METRICS

FEWEST = 3
"""The smallest number of values for which an axis is drawn; two are as easily read in a table."""


class Quantity(NamedTuple):
    """A metric against the axis, or its ratio to BF16's at the same place and of the same seed."""

    metric: str
    over_baseline: bool = False
    logarithmic: bool = False

    @property
    def label(self) -> str:
        metric = METRICS[self.metric]
        return f"{metric.words} over BF16's" if self.over_baseline else metric.heading

    def by_seed(self, group: Group, groups: Sequence[Group]) -> list[float]:
        """The finite figures of a group, in the unit that tables show."""
        found = group.by_seed(self.metric)
        if self.over_baseline:
            alike = (other for other in groups if other.codec == BASELINE and same_but_codec(group, other))
            baseline = next((other.by_seed(self.metric) for other in alike), {})
            pairs = ((value, baseline.get(seed)) for seed, value in found.items())
            return [value / other for value, other in pairs if other and math.isfinite(value / other)]
        return [METRICS[self.metric].shown.factor * value for value in found.values() if math.isfinite(value)]


@dataclass(frozen=True)
class NumericAxis:
    """A numeric setting, and the figures that are plotted against it."""

    key: str
    label: str
    panels: tuple[Quantity, ...]
    doubling: bool = False  # 2, 4, 8: equally far apart

    @property
    def name(self) -> str:
        return f"over-{self.key.rpartition('.')[2].replace('_', '-')}"


ERROR, TO_BASELINE = Quantity("vnmse", logarithmic=True), Quantity("final_metric", over_baseline=True)
STEP, EXPOSED = Quantity("step_time_s"), Quantity("exposed_comm_s")

AXES = (
    NumericAxis("cluster.workers", "workers", (ERROR, TO_BASELINE), doubling=True),
    NumericAxis("codec.bits", "bit budget per coordinate", (ERROR, TO_BASELINE, STEP)),
    NumericAxis("network.background_jobs", "background jobs", (STEP, EXPOSED)),
)


def axis_plots(groups: Sequence[Group], suffix: str = "") -> list[Plot]:
    """A plot for each numeric axis along which some series has at least three groups."""
    plots = (axis_plot(axis, groups, suffix) for axis in AXES)
    return [plot for plot in plots if plot is not None]


def axis_plot(axis: NumericAxis, groups: Sequence[Group], suffix: str = "") -> Plot | None:
    """The axis's panels, a line for each series; None where no series has enough groups, or any figure."""
    along = [group for group in groups if group.runs and _is_number(group.settings.get(axis.key))]
    series = {name: own for name, own in _series(along, axis.key).items() if len(own) >= FEWEST}
    if not series:
        return None
    drawn = [group for own in series.values() for group in own.values()]
    values = sorted({value for own in series.values() for value in own})
    looks = line_styles([next(iter(own.values())).codec for own in series.values()])
    ticks = ticks_at(values, doubling=axis.doubling)
    panels = list[Panel]()
    for quantity in axis.panels:
        lines = []
        for (name, own), style in zip(series.items(), looks, strict=True):
            curve = _curve(own, groups, quantity)
            if curve:
                x, low, middle, high = zip(*curve, strict=True)
                line = Series(x, middle, style, name)
                lines.append(replace(line, low=low, high=high) if low != high else line)
        if lines:
            views = [log_y, ticks] if quantity.logarithmic else [ticks]
            panels.append(Panel(lines, quantity.label, views=views))
    if not panels:
        return None
    panels[-1] = replace(panels[-1], x_label=axis.label)
    heading = title(drawn, "median and range")
    return series_plot(f"{axis.name}{suffix}", heading, panels, (1.9,) * len(panels))


def _is_number(value: object) -> bool:
    """Returns whether a group's value is a number; THC's bits may be `auto`."""
    return isinstance(value, int | float) and not isinstance(value, bool)


Line = Mapping[float, Group]
"""Groups by their value of the axis, in order."""


def _series(groups: Sequence[Group], key: str) -> dict[str, Line]:
    """Groups that differ only along the axis, by a label that distinguishes them from the others."""
    kept = _telling_keys([group.settings for group in groups], key)
    own = [{each: group.settings.get(each) for each in (*kept, "codec.name")} for group in groups]
    found = dict[str, dict[float, Group]]()
    for name, group in zip(labels_in_words(own), groups, strict=True):
        found.setdefault(name, {})[float(group.settings[key])] = group
    return {name: dict(sorted(members.items())) for name, members in found.items()}


def _telling_keys(settings: Sequence[Settings], key: str) -> list[str]:
    """The smallest set of settings, apart from the axis, that distinguishes all groups.

    For example, THC's number of bits follows from the number of workers. Names are kept rather than fields.
    """
    kept = [each for each in differing_keys(settings) if not covered(each, (key,))]
    for each in sorted(kept, key=lambda each: each.endswith(".name")):
        fewer = [other for other in kept if other != each]
        places = {repr([own.get(other) for other in (key, *fewer)]) for own in settings}
        if len(places) == len(settings):
            kept = fewer
    return kept


def _curve(own: Line, groups: Sequence[Group], quantity: Quantity) -> list[tuple[float, float, float, float]]:
    """Points (value of the axis, lowest, median, highest) where the figure is known and finite."""
    known = ((value, quantity.by_seed(group, groups)) for value, group in own.items())
    return [(value, min(found), median(found), max(found)) for value, found in known if any(found)]
