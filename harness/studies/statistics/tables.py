"""Statistics as tables for a terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from statistics import median

from gradwire.harness.report.configs import flatten
from gradwire.harness.report.tables import Page, Table, figure, number
from gradwire.harness.studies.statistics.collect import Statistics
from gradwire.harness.studies.statistics.norms import GroupNorms
from gradwire.harness.studies.statistics.smoothing import GROUP, POINTS, Coordinates
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
    bounds: Sequence[float | None] = statistics.yardstick or [None] * len(allocations)
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
