"""Errors of low ranks: the best approximation's, PowerSGD's, and theory's (EDGC §IV-C)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from gradwire.codecs.edgc.quantification import compression_errors
from gradwire.harness.studies.statistics.evolution_analyses import Matrix

POWER_ROUNDS = 2
"""Iterations of PowerSGD on one gradient; the first begins with a random matrix."""


@dataclass(frozen=True)
class LowRank:
    """The Frobenius norm of the error of approximating the workers' mean gradient with rank `rank`.

    `share` is the requested rank as a share of the smaller side. `best` is the error of the singular value
    decomposition, the smallest possible one, `power` that of PowerSGD, and `theory` is σ·g(r), where σ is the
    root mean square of the entries. `random` is PowerSGD's error over σ·g(r) on normally distributed numbers
    of this shape, which the theory is about.
    """

    matrix: str
    layer: int | None
    step: int
    share: float
    rank: int
    norm: float
    best: float
    power: float
    theory: float
    random: float


def rank_of(share: float, shape: tuple[int, int]) -> int:
    """The rank that is a share `share` of the smaller side, at least 1."""
    return max(1, round(share * min(shape)))


def low_rank(matrix: Matrix, step: int, shares: Sequence[float], seed: int) -> list[LowRank]:
    """The errors of one matrix at each rank; `seed` is that of PowerSGD's start."""
    mean = matrix.values.double().mean(dim=0)
    mean = mean if mean.shape[0] <= mean.shape[1] else mean.T
    eigenvalues = torch.linalg.eigvalsh(mean @ mean.T).clamp(min=0)
    lost = torch.cat([eigenvalues.new_zeros(1), eigenvalues.cumsum(0)]).sqrt().flip(0)
    norm = float(torch.linalg.vector_norm(mean))
    sigma = norm / math.sqrt(mean.numel())
    expected = compression_errors(*mean.shape)
    found = []
    for share in shares:
        rank = rank_of(share, matrix.shape)
        power = power_error(mean, rank, seed)
        theory = sigma * float(expected[rank])
        about = (matrix.name, matrix.layer, step, share, rank)
        random = random_over_theory(tuple(mean.shape), rank, seed)
        found.append(LowRank(*about, norm, float(lost[rank]), power, theory, random))
    return found


@lru_cache(maxsize=1024)
def random_over_theory(shape: tuple[int, int], rank: int, seed: int) -> float:
    """PowerSGD's error over σ·g(r) on normally distributed numbers of this shape."""
    matrix = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    theory = math.sqrt(float(matrix.square().mean())) * float(compression_errors(*shape)[rank])
    return power_error(matrix, rank, seed + 1) / theory if theory > 0 else math.nan


def power_error(matrix: Tensor, rank: int, seed: int, rounds: int = POWER_ROUNDS) -> float:
    """The error of PowerSGD on (rows, columns) float64 after some rounds of power iteration."""
    generator = torch.Generator().manual_seed(seed)
    right = torch.randn(matrix.shape[1], rank, dtype=torch.float64, generator=generator)
    left = matrix @ right
    for _ in range(rounds):
        left = torch.linalg.qr(matrix @ right).Q
        right = matrix.T @ left
    return float(torch.linalg.vector_norm(matrix - left @ right.T))


def over_theory(found: Sequence[LowRank], of: str) -> list[float]:
    """The actual error (`of` is the field "best" or "power") relative to the theoretical one, where that is
    not 0."""
    return [getattr(each, of) / each.theory for each in found if each.theory > 0]


def layer_errors(found: Sequence[LowRank], share: float, of: str) -> dict[int, dict[int, float]]:
    """The error of all matrices of a layer together, by layer and step."""
    squares: dict[int, dict[int, float]] = {}
    for each in found:
        if each.layer is not None and each.share == share:
            own = squares.setdefault(each.layer, {})
            own[each.step] = own.get(each.step, 0.0) + getattr(each, of) ** 2
    return {
        layer: {step: math.sqrt(square) for step, square in own.items()}
        for layer, own in sorted(squares.items())
    }


def error_change(found: Sequence[LowRank]) -> float | None:
    """All matrices' error at the last step relative to the first, as a geometric mean over ranks."""
    steps = sorted({each.step for each in found})
    logs = []
    for share in dict.fromkeys(each.share for each in found):
        first, last = (
            sum(each.best**2 for each in found if each.share == share and each.step == step)
            for step in (steps[0], steps[-1])
        )
        if not first or not last:
            return None
        logs.append(0.5 * math.log(last / first))
    return math.exp(sum(logs) / len(logs))


def layer_agreement(found: Sequence[LowRank]) -> float | None:
    """The mean correlation between the log errors of two layers over steps.

    It is averaged over pairs of layers and over ranks. None for fewer than two layers or three steps,
    or if errors do not change.
    """
    rows = []
    for share in dict.fromkeys(each.share for each in found):
        layers = layer_errors(found, share, "best").values()
        curves = [list(own.values()) for own in layers]
        if len(curves) < 2 or len(curves[0]) < 3 or min(map(min, curves)) <= 0:
            return None
        matrix = torch.corrcoef(torch.tensor(curves, dtype=torch.float64).log())
        pairs = matrix[tuple(torch.triu_indices(len(curves), len(curves), 1))]
        rows.append(float(pairs.mean()))
    mean = sum(rows) / len(rows) if rows else math.nan
    return mean if math.isfinite(mean) else None
