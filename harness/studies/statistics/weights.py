"""Quantization of weights and of their changes in a step to int4 (SDP4Bit §3.1, Figure 4).

The changes are the differences that `parallel.weights=qwd` quantizes in a step: main weights after the step
minus the model's weights before it. Both are treated as flat buckets in groups of 2048 coordinates, as in
SDP4Bit's experiments.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace

import torch
from torch import Tensor

from gradwire.codecs.linear import LinearQuantizer
from gradwire.codecs.linear.approximation import compression
from gradwire.harness.files.finite_json import dumps
from gradwire.harness.record.saved_weights import SavedWeights
from gradwire.harness.report.figures import Plot
from gradwire.harness.report.series import Panel, Rules, histogram, series_plot
from gradwire.harness.report.style import plain
from gradwire.harness.report.tables import Page, Table, number
from gradwire.harness.report.views import log_y

BITS, GROUP = 4, 2048
LEVELS = 2 ** (BITS - 1) - 1
"""Codes range from −7 to 7."""

PER_LEVEL = 10
BINS = (2 * LEVELS + 1) * PER_LEVEL
"""Bins of a histogram from −7½ to 7½ steps, ten for each code."""

NOTES = (
    "Weights: the model's before the step; differences: the main weights after it less these. A step is that "
    f"of int{BITS} codes of groups of {GROUP}: the group's largest magnitude over {LEVELS}.",
    "Error: the norm of the quantization error, relative to the norm of the quantized tensor, or of the "
    "weights.",
)


@dataclass(frozen=True)
class Quantized:
    """Figures of one kind of coordinates; `error` and `over_weights` are |q(x) − x| relative to |x| and to
    the weights' norm.

    `histogram` has the share of each of `BINS` bins, in steps of the coordinate's group; `zeros` is the share
    of codes that are 0.
    """

    root_mean_square: float
    largest: float
    error: float | None
    over_weights: float | None
    zeros: float
    histogram: list[float]


@dataclass(frozen=True)
class WeightStatistics:
    """Figures of weights and of their differences; `norm_ratio` is the norm of the differences over that of
    the weights."""

    weights: Quantized
    differences: Quantized
    norm_ratio: float | None

    def to_json(self, about: dict[str, object]) -> str:
        """Valid JSON that begins with `about`; `norm_ratio` is also included in `differences`."""
        content = asdict(self)
        content["differences"]["norm_ratio"] = content.pop("norm_ratio")
        return dumps({**about, **content}, indent=1) + "\n"


def weight_statistics(saved: SavedWeights) -> WeightStatistics:
    """Computes the statistics of finite weights, bucket by bucket."""
    sizes = [layout.numel for layout in saved.buckets]
    differences = saved.differences
    norm, moved = (float(torch.linalg.vector_norm(x.double())) for x in (saved.model, differences))
    return WeightStatistics(
        _quantized(saved.model, sizes, norm),
        _quantized(differences, sizes, norm),
        moved / norm if norm else None,
    )


def _quantized(x: Tensor, sizes: Sequence[int], weight_norm: float) -> Quantized:
    energy = float(x.double().square().sum())
    lost = sum(
        compression(LinearQuantizer(BITS, GROUP), bucket).error * float(bucket.double().square().sum())
        for bucket in torch.split(x, list(sizes))
        if bool(bucket.any())
    )
    counts, zeros = torch.zeros(BINS, dtype=torch.float64), 0
    for steps in _steps(x, sizes):
        counts += torch.histc(steps, BINS, -LEVELS - 0.5, LEVELS + 0.5)
        zeros += int((steps.abs() <= 0.5).sum())
    return Quantized(
        root_mean_square=math.sqrt(energy / x.numel()),
        largest=float(x.abs().max()),
        error=math.sqrt(lost / energy) if energy else None,
        over_weights=math.sqrt(lost) / weight_norm if weight_norm else None,
        zeros=zeros / x.numel(),
        histogram=(counts / x.numel()).tolist(),
    )


def _steps(x: Tensor, sizes: Sequence[int]) -> Iterator[Tensor]:
    """Coordinates in steps of their groups, float64; groups do not extend across buckets."""
    for bucket in torch.split(x, list(sizes)):
        whole = bucket.numel() // GROUP * GROUP
        for groups in (bucket[:whole].view(-1, GROUP), bucket[whole:].view(1, -1)):
            if groups.numel():
                wide = groups.double()
                peaks = wide.abs().amax(dim=1, keepdim=True)
                yield (wide / peaks.masked_fill(peaks == 0, 1.0) * LEVELS).flatten()


def weights_text(found: WeightStatistics, heading: str) -> str:
    """The table, below the heading."""
    header = ["coordinates", "root mean square", "largest", "error", "error over weights", "codes 0 [%]"]
    rows = [
        [name, *(number(value) for value in (side.root_mean_square, side.largest, side.error))]
        + [number(side.over_weights), f"{100 * side.zeros:.2f}"]
        for name, side in (("weights", found.weights), ("differences", found.differences))
    ]
    note = f"The differences' norm is {number(found.norm_ratio)} of the weights'."
    return f"{heading}\n\n{Page([Table('Weights', header, rows)], [note, *NOTES]).text}"


def weights_plots(found: WeightStatistics, heading: str) -> list[Plot]:
    """The histograms of Figure 4, one panel each, with the positions of codes."""

    panels = []
    sides = (
        ("weights", found.weights, plain("blue")),
        ("differences", found.differences, plain("vermilion")),
    )
    for name, side, look in sides:
        label = f"{name}: root mean square {number(side.root_mean_square, 3)}, error {number(side.error, 3)}"
        codes = Rules(range(-LEVELS, LEVELS + 1), line="--", width=0.5)
        shares = histogram(side.histogram, LEVELS + 0.5, look, label)
        panels.append(Panel([codes, shares], "share per bin", views=[log_y]))
    x_label = f"coordinate in steps of its group's int{BITS} codes (dashed)"
    panels[-1] = replace(panels[-1], x_label=x_label)
    return [series_plot("weights", heading, panels, (1.7, 1.7))]
