"""SDP4Bit's theory (§4): weights that are quantized in place get stuck, quantized differences converge,
and Algorithm 4 stays below the bound of Theorem 4.1."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from all_to_all_reference import quantized
from torch import Tensor

from gradwire.codecs.arithmetic.random import stream_key
from gradwire.codecs.linear import LinearQuantizer
from gradwire.codecs.linear.approximation import worst_error
from gradwire.codecs.linear.quantizer import RoundingNoise

START = (1.0, -1.0)


def ternary(x: Tensor) -> Tensor:
    """The counterexample's quantizer: 2 bits, one group of both weights."""
    return quantized(x, bits=2, group=2)[1]


def gradient(w: Tensor, generator: torch.Generator) -> Tensor:
    """The gradient of f(w) = |w|² in one of the two coordinates, twice as large: right on average."""
    chosen = torch.randint(2, (1,), generator=generator)
    return 4 * w * torch.nn.functional.one_hot(chosen, 2)[0]


def in_place(rate: float, steps: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    w = torch.tensor(START, dtype=torch.float64)
    for _ in range(steps):
        w = ternary(w - rate * gradient(w, generator))
    return w


@pytest.mark.parametrize("rate", [0.001, 0.05, 0.1249])
def test_weights_quantized_in_place_stay_where_they_are(rate: float) -> None:
    """Counterexample 4.1: for every rate below 0.125, whatever coordinates are drawn."""
    assert all(in_place(rate, 50, seed).tolist() == list(START) for seed in range(5))


def test_from_the_limit_of_the_counterexample_on_they_move() -> None:
    assert float(in_place(0.13, 50, 0).abs().max()) < 1e-6


@pytest.mark.parametrize("seed", range(5))
def test_quantized_differences_converge_where_weights_are_stuck(seed: int) -> None:
    """Algorithm 2: what a difference loses stays in the main weights and is sent later."""
    generator = torch.Generator().manual_seed(seed)
    main = torch.tensor(START, dtype=torch.float64)
    model = main.clone()
    for _ in range(200):
        main = main - 0.05 * gradient(model, generator)
        model = model + ternary(main - model)
    assert float(main.abs().max()) < 1e-6 and float(model.abs().max()) < 1e-6


SIZE, NOISE, STEPS = 256, 0.1, 2000
UNBIASED, BIASED = LinearQuantizer(4, 32, rounding="stochastic"), LinearQuantizer(4, 32)


@dataclass(frozen=True)
class Theorem:
    """The bound of Theorem 4.1 for f(w) = ½ Σ λ w² from w = 1 on, whose gradients have independent noise."""

    curvatures: Tensor
    kappa: float
    delta: float

    @property
    def smoothness(self) -> float:
        return float(self.curvatures.max())

    @property
    def start(self) -> float:
        """f(w₀) − f*."""
        return float(self.curvatures.sum()) / 2

    @property
    def factor(self) -> float:
        return 2 / self.delta + self.kappa

    @property
    def rate(self) -> float:
        """The rate for which the bound is proved (Lemma A.1)."""
        noise = NOISE**2 * (11 - self.delta) * (self.kappa + 1) * self.smoothness / 16
        return min(1 / (10 * self.smoothness * self.factor), math.sqrt(self.start / noise / STEPS))

    @property
    def bound(self) -> float:
        """Bounds the mean of |∇f|² over the steps."""
        noise = (11 - self.delta) * (self.kappa + 1) * self.smoothness * self.start / STEPS
        exact = 80 * self.smoothness * self.factor * self.start / STEPS
        return exact + 4 * NOISE * math.sqrt(noise)


@pytest.fixture(scope="module")
def theorem() -> Theorem:
    return Theorem(torch.logspace(-2, 0, SIZE), worst_error(UNBIASED), 1 - worst_error(BIASED))


def compressed(quantizer: LinearQuantizer, x: Tensor, step: int) -> Tensor:
    message, out = torch.empty(quantizer.message_bytes(SIZE), dtype=torch.uint8), torch.empty_like(x)
    noise = RoundingNoise(stream_key(0, step, 0), 0) if quantizer.rounding == "stochastic" else None
    quantizer.quantize(x, message, noise)
    quantizer.dequantize(message, out)
    return out


def noisy(exact: Tensor, generator: torch.Generator) -> Tensor:
    return exact + NOISE / math.sqrt(SIZE) * torch.randn(SIZE, generator=generator)


def test_algorithm_4_stays_below_the_theorem_s_bound(theorem: Theorem) -> None:
    """With κ and δ as they are measured for its quantizers, and no step that loses more than they allow."""
    generator = torch.Generator().manual_seed(0)
    w, total = torch.ones(SIZE), 0.0
    for step in range(STEPS):
        exact = theorem.curvatures * w
        total += float(exact.square().sum())
        sent = compressed(UNBIASED, noisy(exact, generator), step)
        difference = -theorem.rate * sent
        arrived = compressed(BIASED, difference, step)
        lost = float((arrived - difference).square().sum() / difference.square().sum())
        assert lost <= 1 - theorem.delta
        w = w + arrived
    assert total / STEPS < theorem.bound
    assert float(theorem.curvatures.square().sum()) > 5 * theorem.bound, "weights that stay at 1 exceed it"
