"""One round of one matrix: a step of power iteration shared by all workers (PowerSGD, Algorithm 1).

With M a worker's matrix (m, n) and Q the factor kept from the round before:

    P = M Q, averaged over the workers and made orthonormal
    Q = Mᵀ P, averaged over the workers
    M̂ = P Qᵀ, the same on every worker

Q is made orthonormal first, as torch's hook does it: that changes nothing but the scale of P.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.codecs.powersgd.orthogonal import Orthogonalization, orthonormal


def all_finite(values: Tensor) -> Tensor:
    """Whether all of at least one value are finite, as a tensor without dimensions, in one pass."""
    low, high = torch.aminmax(values)
    return (low > -torch.inf) & (high < torch.inf)


class PowerIteration:
    """An `Exchange` of the two factors, both kept as rows: Pᵀ (rank, m), then Qᵀ (rank, n).

    If a value of any worker is not finite, or the sum of a factor is not, M̂ is NaN all over, on every worker.
    """

    def __init__(self, matrix: Tensor, start: Tensor, method: Orthogonalization) -> None:
        """`matrix` (m, n) float32, with what was lost before; `start` (rank, n), the Qᵀ to begin with."""
        self._matrix, self._start, self._method = matrix, start, method
        self._left = self._right = self._finite = torch.empty(0, device=matrix.device)

    def first(self) -> Tensor:
        product = orthonormal(self._start, self._method) @ self._matrix.T
        # A zero in Q times NaN or infinity: not every library would make it NaN.
        return torch.where(all_finite(self._matrix), product, torch.nan)

    def second(self, mean: Tensor) -> Tensor:
        self._finite = all_finite(mean)
        # QR is never given a value that is not finite: libraries differ in what they do then.
        self._left = orthonormal(torch.where(self._finite, mean, 0.0), self._method)
        return self._left @ self._matrix

    def result(self, mean: Tensor) -> Tensor:
        self._right = mean
        finite = self._finite & all_finite(mean)
        left, right = (torch.where(finite, factor, torch.nan) for factor in (self._left, mean))
        return (left.T @ right).view(-1)

    def lost(self, delivered: Tensor) -> Tensor:
        return self._matrix.view(-1) - delivered

    def next_start(self, finite: Tensor) -> Tensor:
        """Qᵀ for the next round: the mean, if the result was `finite`.

        A row of zeros would find nothing any more; the row that led to it stays instead.
        """
        useful = finite & (self._right != 0).any(dim=1, keepdim=True)
        return torch.where(useful, self._right, self._start)
