"""What sampling and windows keep of a run's entropies, recorded at every step (EDGC §V-C).

The curve of the model is the mean over its matrices, weighted by their coordinates. Three questions: how near
a share β of the coordinates comes to all of them (Figure 12a), how near every 1/α-th step comes to all steps
of a window (Figure 12b), and how near windows come to single steps (Table VII).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.harness.record.entropies import RecordedEntropies

PAPERS_RATE = 0.25
"""The β at which EDGC varies α."""


@dataclass(frozen=True)
class RateFidelity:
    """The curve from a share `rate` of coordinates, against that of the largest rate: the correlation over
    steps, and the mean and the largest |difference| [nats]."""

    rate: float
    correlation: float | None
    mean_error: float
    largest_error: float


@dataclass(frozen=True)
class StepSampling:
    """Windows of `window` steps, of which every 1/`alpha`-th is sampled, from a share `rate` of coordinates:
    how far their mean entropy is from that of all their steps, relative to it. `changes` has a value for each
    window with a sample."""

    rate: float
    alpha: float
    window: int
    changes: list[float]
    mean_change: float
    largest_change: float
    largest_error: float  # [nats]


@dataclass(frozen=True)
class WindowFidelity:
    """The curve whose steps have the mean of their window of `window` steps, against the steps' own values:
    Pearson correlation and mean squared error [nats²]. `delayed_…`: each step has the mean of the window
    before its own, which is what a rank follows then; None for fewer than two windows behind the first."""

    window: int
    correlation: float | None
    mse: float
    delayed_correlation: float | None
    delayed_mse: float | None


@dataclass(frozen=True)
class Sampling:
    """The three answers. `curves` has the model's entropy [nats] at `steps`, for each of `rates`; windows are
    about that of the largest rate. `left_out` are windows longer than half of the recorded steps, and
    matrices that were all zeros at some step."""

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
    """The three answers. `window` is that of the steps' sampling, at most as long as the record.

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
    """The weighted mean over the matrices with a mark in `finite`, (matrices,) bool: (steps,) for each
    rate."""
    weights = torch.tensor([each.numel for each in found.matrices], dtype=torch.float64)[finite]
    means = found.nats[:, :, finite] @ (weights / weights.sum())
    return list(means.T)


def rate_fidelity(rate: float, curve: Tensor, whole: Tensor) -> RateFidelity:
    """How near `curve`, (steps,), comes to `whole`."""
    errors = (curve - whole).abs()
    return RateFidelity(rate, pearson(curve, whole), float(errors.mean()), float(errors.max()))


def step_sampling(curve: Tensor, rate: float, alpha: float, window: int) -> StepSampling:
    """Takes the first of every 1/α steps of the curve of `rate`, (steps,); a last window that is not whole is
    left out."""
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
    """Against (steps,) themselves; a last window that is not whole has the mean of what it has."""
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
    """The correlation of two curves; None where one does not vary."""
    one, other = first - first.mean(), second - second.mean()
    product = float(one.norm() * other.norm())
    return min(1.0, max(-1.0, float(one @ other) / product)) if product > 0 else None
