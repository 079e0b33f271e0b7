"""PowerSGD of one matrix in float64 numpy, written from the paper's Algorithm 1 and 2."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Matrix = NDArray[np.float64]


def as_matrix(gradient: Tensor) -> Matrix:
    """First dimension by all others."""
    return np.asarray(gradient.reshape(gradient.shape[0], -1), dtype=np.float64)


class Reference:
    """One matrix over several rounds; `start` gives the random Q, (columns, rank), of a step."""

    def __init__(
        self, workers: int, start: Callable[[int], Matrix], feedback: bool = True, warm_start: bool = True
    ) -> None:
        self.errors: list[Matrix | float] = [0.0] * workers
        self.q: Matrix | None = None
        self.steps = 0
        self._start, self._feedback, self._warm_start = start, feedback, warm_start

    def step(self, gradients: Sequence[Matrix]) -> Matrix:
        """The approximation of the mean."""
        corrected = [gradient + error for gradient, error in zip(gradients, self.errors, strict=True)]
        q = self.q if self._warm_start and self.q is not None else self._start(self.steps)
        p, _ = np.linalg.qr(np.mean([matrix @ q for matrix in corrected], axis=0))
        self.q = np.mean([matrix.T @ p for matrix in corrected], axis=0)
        approximation: Matrix = p @ self.q.T
        if self._feedback:
            self.errors = [matrix - approximation for matrix in corrected]
        self.steps += 1
        return approximation
