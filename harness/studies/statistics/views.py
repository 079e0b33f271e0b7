"""Statistics as tables for a terminal, and as plots."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from statistics import median

from gradwire.harness.report.configs import flatten
from gradwire.harness.report.figures import Plot
from gradwire.harness.report.names import name_of
from gradwire.harness.report.series import Drawable, Panel, Rules, Series, Spans, histogram, series_plot
from gradwire.harness.report.style import Hue, LineStyle, plain
from gradwire.harness.report.tables import Page, Table, figure, number
from gradwire.harness.report.views import log_x, log_y, x_from, y_from
from gradwire.harness.studies.distribution import PERCENT
from gradwire.harness.studies.statistics.collect import Statistics
from gradwire.harness.studies.statistics.measures import SIZES, GroupNorms
from gradwire.harness.studies.statistics.smoothing import GROUP, GROUP_LIMIT, LIMIT, POINTS, Coordinates
from gradwire.harness.studies.statistics.widths import Allocation
from gradwire.harness.timing.measure.metrics import METRICS, keys

GRADIENTS = keys(lambda metric: metric.section == "gradients")
PERCENTS = (1, 10, 50, 90, 99)
MAX_MATRICES = 10

NOTES = (
    "Norms: ℓ₂ norms of groups of all workers; shuffled: after a random permutation of all coordinates.",
    "Widths: what codec=dynamiq allocates on a ring; Fⱼ is the squared norm of a super-group of 256, summed "
    "over the workers, and a threshold the least Fⱼ with that many bits (median over chunks). The bound "
    "on vNMSE is what reverse water-filling over the super-groups' variances allows for one encoding of the "
    "mean.",
    f"Smoothing: peaks are max |x| over root mean square in groups of {GROUP}; code entropies are those of "
    "integers scaled by each group's maximum, rounded to nearest.",
    "Entropies: of each worker's own gradient, exact zeros left out, averaged.",
)


def text(statistics: Statistics, heading: str) -> str:
    """All tables under `heading`, at most 140 columns wide."""
    tables = [
        summary_table(statistics),
        norms_table(statistics.norms),
        widths_table(statistics),
        smoothing_table(statistics),
    ]
    matrices = [matrices_table(statistics)] if statistics.entropy.matrices else []
    return f"{heading}\n\n{Page([*tables, *matrices], list(NOTES)).text}"


def summary_table(statistics: Statistics) -> Table:
    norms, cosines = statistics.workers.norms, statistics.workers.cosines or (None, None, None)
    known = flatten(asdict(statistics))
    rows = [
        ["norm of a worker's gradient", number(median(norms)), number(min(norms)), number(max(norms))],
        ["cosine between two workers", number(cosines[1]), number(cosines[0]), number(cosines[2])],
        *([METRICS[key].heading, figure(known.get(key), METRICS[key].shown), "", ""] for key in GRADIENTS),
    ]
    return Table("Gradients", ["figure", "median or mean", "lowest", "highest"], rows)


def norms_table(norms: Sequence[GroupNorms]) -> Table:
    rows = [
        [
            f"groups of {found.size}, {'shuffled' if found.shuffled else 'as they are'}",
            *(number(found.quantiles[percent], 3) for percent in PERCENTS),
            *(percentage(part) for part in (found.below_10th, found.below_100th, found.zeros)),
        ]
        for found in norms
    ]
    small = ["below median/10 [%]", "below median/100 [%]", "zero [%]"]
    return Table("Norms of groups", ["", *(f"{percent} %" for percent in PERCENTS), *small], rows)


def widths_table(statistics: Statistics) -> Table:
    allocations = statistics.widths.allocations
    given = list(allocations[0].shares) if allocations else []
    bounds: Sequence[float | None] = statistics.bound or [None] * len(allocations)
    rows = [
        [
            f"{found.bits:g}",
            *(percentage(found.shares[width]) for width in given),
            number(found.code_bits, 3),
            *(_threshold(found, width) for width in given[1:]),
            number(bound, 3),
        ]
        for found, bound in zip(allocations, bounds, strict=True)
    ]
    shares = [f"at {width} bits [%]" for width in given]
    thresholds = [f"Fⱼ from which {width} bits" for width in given[1:]]
    header = ["codec.bits", *shares, "code bits, mean", *thresholds, "bound on vNMSE"]
    return Table("Widths of super-groups", header, rows)


def smoothing_table(statistics: Statistics) -> Table:
    smoothing = statistics.smoothing
    sides = {"as they are": smoothing.before, f"{POINTS}-point Hadamard transform": smoothing.after}
    codes = [
        text
        for code in smoothing.before.codes
        for text in (f"entropy of {code.bits}-bit codes [bits]", f"{code.bits}-bit codes 0 [%]")
    ]
    header = ["coordinates", "kurtosis", "kurtosis of groups, median", "peak, median", "peak, 99 %", *codes]
    return Table("Smoothing", header, [[name, *_figures(side)] for name, side in sides.items()])


def matrices_table(statistics: Statistics) -> Table:
    """The matrices with the most coordinates."""
    matrices = sorted(statistics.entropy.matrices, key=lambda matrix: -math.prod(matrix.shape))[:MAX_MATRICES]
    rows = [[matrix.name, " x ".join(map(str, matrix.shape)), number(matrix.nats)] for matrix in matrices]
    return Table("Differential entropy of the largest matrices", ["parameter", "shape", "nats"], rows)


def percentage(part: float) -> str:
    """A share in percent, with two digits after the point, or more if it is small."""
    return f"{100 * part:.2f}" if not part or part >= 0.0005 else number(100 * part, 2)


def _threshold(allocation: Allocation, width: int) -> str:
    known = {threshold.width: threshold.median for threshold in allocation.thresholds}
    return number(known.get(width), 3)


def _figures(side: Coordinates) -> list[str]:
    group_kurtosis = side.group_kurtosis[50] if side.group_kurtosis else None
    peaks = (side.peaks[50], side.peaks[99]) if side.peaks else (None, None)
    codes = [text for code in side.codes for text in (number(code.entropy, 3), percentage(code.zeros))]
    return [number(side.kurtosis), number(group_kurtosis, 3), *(number(peak, 3) for peak in peaks), *codes]


LOOKS = (plain("blue"), plain("vermilion", "--"))
"""The styles of the original coordinates and of changed ones."""

THRESHOLDS: tuple[tuple[Hue, str], ...] = (
    ("vermilion", "--"),
    ("green", "-."),
    ("purple", ":"),
    ("orange", "-"),
)


def plots(statistics: Statistics, heading: str) -> list[Plot]:
    """Draws all plots; gradients of zeros have none, and tiny ones have no plot of widths."""
    if not statistics.smoothing.root_mean_square:
        return []
    found = [norms_plot(statistics.norms, heading), smoothing_plot(statistics, heading)]
    seen = statistics.widths.quantiles[-1] > 0  # bf16 has no numbers this small
    return [*found, widths_plot(statistics, heading)] if seen else found


def norms_plot(norms: Sequence[GroupNorms], heading: str) -> Plot:
    """CDFs of the norms of groups, a panel for each size (DynamiQ, Figure 1)."""
    panels = []
    for size in SIZES:
        series = [
            cdf(found.quantiles, LOOKS[found.shuffled], "shuffled" if found.shuffled else "as they are")
            for found in norms
            if found.size == size
        ]
        panels.append(Panel(series, "share of groups", f"ℓ₂ norm of {size} coordinates", "", (SHARES, log_x)))
    return series_plot("norms", heading, panels, (1.9, 1.9))


def widths_plot(statistics: Statistics, heading: str) -> Plot:
    """The CDF of F_j with the thresholds of each budget, one panel per budget (DynamiQ, Figure 3)."""
    found = statistics.widths
    view = x_from(*_view([*found.quantiles, *(t.high for a in found.allocations for t in a.thresholds)]))
    panels = []
    for allocation in found.allocations:
        parts = ", ".join(f"{percent(part)} % at {width}" for width, part in allocation.shares.items())
        panel = Panel(
            [cdf(found.quantiles, plain("ink"), "CDF of Fⱼ"), *_thresholds(allocation)],
            "share",
            title=f"{name_of('bits', allocation.bits)}: {parts} bits",
            views=(SHARES, view, log_x),
        )
        panels.append(panel)
    panels[-1] = replace(panels[-1], x_label="Fⱼ: squared norm, summed over workers")
    heading = f"{heading} · bands: all chunks"
    return series_plot("widths", heading, panels, (1.25,) * len(panels), ticks="last")


def smoothing_plot(statistics: Statistics, heading: str) -> Plot:
    """Histograms of coordinates and CDFs of the peaks of groups, before and after the transform (SDP4Bit,
    Figure 6)."""
    found = statistics.smoothing
    sides = (
        ("as they are", found.before, LOOKS[0]),
        (f"after a {POINTS}-point Hadamard transform", found.after, LOOKS[1]),
    )
    everywhere = [histogram(side.histogram, LIMIT, look, label) for label, side, look in sides]
    in_groups = [histogram(side.group_histogram, GROUP_LIMIT, look, label) for label, side, look in sides]
    peaks = [cdf(side.peaks, look, label) for label, side, look in sides]
    over, group = "root mean square", f"groups of {GROUP}"
    panels = [
        Panel(everywhere, "share per bin", f"coordinate / {over} of all", views=[log_y]),
        Panel(in_groups, "share per bin", f"coordinate / {over} of its group of {GROUP}", views=[log_y]),
        Panel(peaks, "share of groups", f"max |x| / {over}, in {group}", views=[SHARES]),
    ]
    return series_plot("smoothing", heading, panels, (1.6, 1.6, 1.5))


SHARES = y_from(-0.02, 1.02)
"""The y axis of a CDF."""


def cdf(quantiles: Sequence[float], style: LineStyle, label: str) -> Series:
    """Draws a line through the positive quantiles, because a logarithmic axis has no 0."""
    points = ((value, place / PERCENT) for place, value in enumerate(quantiles) if value > 0)
    return Series.through(points, style, label)


def _thresholds(allocation: Allocation) -> Iterator[Drawable]:
    """Draws a line at each width's threshold, and a band if chunks differ."""
    lower = {upper: lower for lower, upper in pairwise(allocation.shares)}
    for threshold, (hue, line) in zip(allocation.thresholds, THRESHOLDS, strict=False):
        label = f"{lower[threshold.width]} → {threshold.width} bits"
        yield Spans([(threshold.low, threshold.high)], hue)
        yield Rules([threshold.median], hue, line, 1.0, label)


def percent(part: float) -> str:
    """A share in whole percent; "less than 1" or "more than 99" if it is not exactly 0 or 1."""
    if 0 < part < 0.01:
        return "<1"
    return ">99" if 0.99 < part < 1 else f"{100 * part:.0f}"


def _view(values: Sequence[float]) -> tuple[float, float]:
    """The range of the positive values with a margin, for a logarithmic axis."""
    positive = [value for value in values if value > 0]
    return min(positive) / 2, max(positive) * 2
