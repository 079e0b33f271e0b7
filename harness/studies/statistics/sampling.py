"""Fidelity of entropies estimated from samples of coordinates and steps, and over windows, as EDGC does."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.harness.record.entropies import RecordedEntropies
from gradwire.harness.report.figures import Plot
from gradwire.harness.report.series import STEPS, Drawable, Panel, Series, Steps, series_plot
from gradwire.harness.report.style import line_styles, plain
from gradwire.harness.report.tables import Table, number
from gradwire.harness.report.views import whole_x
from gradwire.harness.studies.comparison import listed

PAPERS_RATE = 0.25
"""The β used in EDGC when α varies."""


@dataclass(frozen=True)
class RateFidelity:
    """The curve for sampling a share `rate` of coordinates, compared with that of the largest rate: the
    correlation over steps, and the mean and the largest |difference| [nats]."""

    rate: float
    correlation: float | None
    mean_error: float
    largest_error: float


@dataclass(frozen=True)
class StepSampling:
    """The effect of sampling every 1/`alpha`-th step of windows of `window` steps, with a share `rate` of
    coordinates. `changes` holds, for each window with a sample, the relative difference of its mean entropy
    from that of all its steps."""

    rate: float
    alpha: float
    window: int
    changes: list[float]
    mean_change: float
    largest_change: float
    largest_error: float  # [nats]


@dataclass(frozen=True)
class WindowFidelity:
    """The curve whose steps have the mean of their window of `window` steps, compared with the steps' own
    values: Pearson correlation and mean squared error [nats²].

    In `delayed_…` each step has the mean of the window before its own, which is the one that ranks are
    computed from; None for fewer than two windows after the first.
    """

    window: int
    correlation: float | None
    mse: float
    delayed_correlation: float | None
    delayed_mse: float | None


@dataclass(frozen=True)
class Sampling:
    """All results. `curves` holds the model's entropy [nats] at `steps`, for each of `rates`; windows use the
    largest rate. `left_out` lists windows longer than half of the recorded steps, and matrices that were all
    zeros at some step."""

    steps: list[int]
    rates: list[float]
    curves: list[list[float]]
    by_rate: list[RateFidelity]
    by_alpha: list[StepSampling]
    by_window: list[WindowFidelity]
    left_out: list[str]


def sampling(
    found: RecordedEntropies, alphas: Sequence[float], window: int, windows: Sequence[int]
) -> Sampling:
    """Computes all results. `window` is that of the steps' sampling, at most as long as the record.

    Raises ValueError if every matrix was all zeros at some step.
    """
    finite = found.nats.isfinite().all(dim=1).all(dim=0)
    if not bool(finite.any()):
        raise ValueError("entropies.jsonl has no matrix whose gradient is never all zeros; there is no curve")
    left_out = [each.name for each, known in zip(found.matrices, finite.tolist(), strict=True) if not known]
    curves = model_curves(found, finite)
    most = max(found.rates)
    whole = curves[found.rates.index(most)]
    rate = PAPERS_RATE if PAPERS_RATE in found.rates else most
    sampled = curves[found.rates.index(rate)]
    length = min(window, len(whole))
    fitting = [each for each in windows if 2 * each <= len(whole)]
    left_out += [f"window of {each} steps" for each in windows if each not in fitting]
    return Sampling(
        steps=list(found.steps),
        rates=list(found.rates),
        curves=[curve.tolist() for curve in curves],
        by_rate=[rate_fidelity(each, curve, whole) for each, curve in zip(found.rates, curves, strict=True)],
        by_alpha=[step_sampling(sampled, rate, alpha, length) for alpha in alphas],
        by_window=[window_fidelity(whole, each) for each in fitting],
        left_out=left_out,
    )


def model_curves(found: RecordedEntropies, finite: Tensor) -> list[Tensor]:
    """The weighted mean over the matrices marked in `finite`, (matrices,) bool: (steps,) for each rate."""
    weights = torch.tensor([each.numel for each in found.matrices], dtype=torch.float64)[finite]
    means = found.nats[:, :, finite] @ (weights / weights.sum())
    return list(means.T)


def rate_fidelity(rate: float, curve: Tensor, whole: Tensor) -> RateFidelity:
    """The similarity of `curve`, (steps,), to `whole`."""
    errors = (curve - whole).abs()
    return RateFidelity(rate, pearson(curve, whole), float(errors.mean()), float(errors.max()))


def step_sampling(curve: Tensor, rate: float, alpha: float, window: int) -> StepSampling:
    """Samples the first of every 1/α steps of the curve of `rate`, (steps,); an incomplete last window is
    ignored."""
    stride = round(1 / alpha)
    number = len(curve) // window
    rows = curve[: number * window].view(number, window)
    taken = (torch.arange(number * window) % stride == 0).view(number, window)
    every = rows.mean(dim=1)
    some = (rows * taken).sum(dim=1) / taken.sum(dim=1)
    known = taken.any(dim=1) & (every != 0)  # a window shorter than 1/α may have no sample at all
    errors = (some - every).abs()[known]
    if not len(errors):
        return StepSampling(rate, alpha, window, [], math.nan, math.nan, math.nan)
    changes = errors / every[known].abs()
    figures = (float(changes.mean()), float(changes.max()), float(errors.max()))
    return StepSampling(rate, alpha, window, changes.tolist(), *figures)


def window_fidelity(curve: Tensor, window: int) -> WindowFidelity:
    """Compares a curve, (steps,), with its means over windows; an incomplete last window has the mean of its
    steps."""
    means = torch.cat([part.mean().expand(len(part)) for part in torch.split(curve, window)])
    mse = float((means - curve).square().mean())
    before, now = means[:-window], curve[window:]
    delayed = len(now) > 1
    return WindowFidelity(
        window,
        pearson(means, curve),
        mse,
        pearson(before, now) if delayed else None,
        float((before - now).square().mean()) if delayed else None,
    )


def pearson(first: Tensor, second: Tensor) -> float | None:
    """The correlation of two curves; None if one is constant."""
    one, other = first - first.mean(), second - second.mean()
    product = float(one.norm() * other.norm())
    return min(1.0, max(-1.0, float(one @ other) / product)) if product > 0 else None


NOTE = (
    "β: share of the coordinates that an entropy is estimated from. α: share of a window's steps. CC, MSE: "
    "correlation and mean squared error of window means against single steps; delayed, the window before."
)

MOST_POINTS = 400
"""The largest number of points of a line; for more steps, means of equal stretches are drawn."""


def sampling_tables(found: Sampling) -> list[Table]:
    """Tables by β, by α and by window."""
    by_rate: dict[str, Callable[[RateFidelity], str]] = {
        "β": lambda each: f"{each.rate:g}",
        "correlation": lambda each: number(each.correlation),
        "mean |ΔH| [nats]": lambda each: number(each.mean_error),
        "largest |ΔH| [nats]": lambda each: number(each.largest_error),
    }
    by_alpha: dict[str, Callable[[StepSampling], str]] = {
        "α": lambda each: f"{each.alpha:g}",
        "steps in a window": lambda each: f"{each.window:,}",
        "mean relative change [%]": lambda each: number(100 * each.mean_change, 3),
        "largest [%]": lambda each: number(100 * each.largest_change, 3),
        "largest [nats]": lambda each: number(each.largest_error, 3),
    }
    by_window: dict[str, Callable[[WindowFidelity], str]] = {
        "steps": lambda each: f"{each.window:,}",
        "CC": lambda each: number(each.correlation),
        "MSE [nats²]": lambda each: number(each.mse),
        "CC delayed": lambda each: number(each.delayed_correlation),
        "MSE delayed": lambda each: number(each.delayed_mse),
    }
    steps = f"Steps sampled, β = {found.by_alpha[0].rate:g}"
    tables = [listed("Coordinates sampled", found.by_rate, by_rate), listed(steps, found.by_alpha, by_alpha)]
    return [*tables, listed("Windows", found.by_window, by_window)] if found.by_window else tables


def sampling_notes(found: Sampling) -> list[str]:
    """Notes on the meaning of the tables, and on omitted data."""
    return [NOTE, *([f"Left out: {', '.join(found.left_out)}."] if found.left_out else [])]


def sampling_plots(found: Sampling, heading: str) -> list[Plot]:
    """The two panels of Figure 12, and the windows' curves of Table VII."""
    drawn = [_rates(found, heading), _alphas(found, heading)]
    return [*drawn, _windows(found, heading)] if found.by_window else drawn


ENTROPY = "differential entropy [nats]"


def _rates(found: Sampling, heading: str) -> Plot:
    labels = [f"β = {rate:g}" for rate in found.rates]
    looks = (plain(style.hue, style.line) for style in line_styles(labels, labels[0]))
    series = [
        Series(thinned(found.steps), thinned(curve), look, label, width=1.0)
        for label, curve, look in zip(labels, found.curves, looks, strict=True)
    ]
    return series_plot("sampling-rates", heading, [Panel(series, ENTROPY, STEPS)], (2.4,))


def _alphas(found: Sampling, heading: str) -> Plot:
    labels = [f"α = {each.alpha:g}" for each in found.by_alpha]
    series = []
    for label, each, style in zip(labels, found.by_alpha, line_styles(labels), strict=True):
        percents = [100 * change for change in each.changes]
        series.append(Series(range(1, len(percents) + 1), percents, style, label))
    x_label = f"window of {found.by_alpha[0].window:,} steps"
    panel = Panel(series, "relative change of\nthe mean entropy [%]", x_label, views=[whole_x])
    return series_plot("sampling-steps", heading, [panel])


def _windows(found: Sampling, heading: str) -> Plot:
    """Single steps in grey, with the means of each window."""
    whole = found.curves[found.rates.index(max(found.rates))]
    shown = [each.window for each in found.by_window if each.window > 1]
    series = list[Drawable]()
    series.append(Series(thinned(found.steps), thinned(whole), plain("grey"), "w = 1", width=0.8))
    for window, style in zip(shown, line_styles(list(map(str, shown))), strict=True):
        starts = range(0, len(whole), window)
        means = [sum(whole[first : first + window]) / len(whole[first : first + window]) for first in starts]
        edges = [*(found.steps[first] for first in starts), found.steps[-1] + 1]
        series.append(Steps(edges, means, style, f"w = {window:,}"))
    return series_plot("windows", heading, [Panel(series, ENTROPY, STEPS)], (2.4,))


def thinned(values: Sequence[float]) -> list[float]:
    """The means of at most `MOST_POINTS` equal stretches."""
    stretch = -(-len(values) // MOST_POINTS)
    return [
        sum(values[first : first + stretch]) / len(values[first : first + stretch])
        for first in range(0, len(values), stretch)
    ]
