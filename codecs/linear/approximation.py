"""Distance of linear quantizers from their input: SDP4Bit's κ and δ (Definitions 4.1 and 4.2).

An unbiased compressor U is κ-approximate if E‖U(v) − v‖² ≤ κ‖v‖² for all v, and any compressor C is
δ-approximate if E‖C(v) − v‖² ≤ (1 − δ)‖v‖². Gradients need a κ-approximate compressor and weight differences
a δ-approximate one (Theorem 4.1). `worst_error` is the smallest bound that holds for all v, `compression`
measures the error of a given v.

The worst group has one largest coordinate s, which is encoded exactly. All others are t steps of s/peak,
where t is 1/2 if they are rounded to nearest. With stochastic rounding each loses t(1 − t) squared steps,
which is the largest share of the group's energy where (group − 1)·t² + 2·peak²·t = peak². The smoother is
orthogonal: the bound stays, and the transform of that group meets it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.codecs.arithmetic.hadamard import hadamard_
from gradwire.codecs.arithmetic.random import stream_key
from gradwire.codecs.linear.definition import BLOCK
from gradwire.codecs.linear.quantizer import LinearQuantizer, RoundingNoise


@dataclass(frozen=True)
class Compression:
    """Mean losses of a vector, relative to its energy: the whole `error`, and its `bias`, the part that
    averaging over rounds does not remove."""

    error: float
    bias: float

    @property
    def kappa(self) -> float:
        """κ of a quantizer whose measured bias is nonzero only because the number of rounds is finite."""
        return self.error

    @property
    def delta(self) -> float:
        return 1 - self.error


def compression(quantizer: LinearQuantizer, v: Tensor, rounds: int = 1, seed: int = 0) -> Compression:
    """Quantizes (numel,) float32 in `rounds` rounds; one is enough if rounding is not random.

    Raises ValueError if `v` has no energy.
    """
    energy = float(v.double().square().sum())
    if not energy > 0:
        raise ValueError("a vector without energy has no relative error")
    error, total = 0.0, torch.zeros_like(v, dtype=torch.float64)
    message = torch.empty(quantizer.message_bytes(v.numel()), dtype=torch.uint8, device=v.device)
    out = torch.empty_like(v)
    for number in range(rounds):
        random = RoundingNoise(stream_key(seed, number, 0), 0)
        quantizer.quantize(v, message, random if quantizer.rounding == "stochastic" else None)
        quantizer.dequantize(message, out)
        lost = out.double() - v.double()
        error, total = error + float(lost.square().sum()), total + lost
    return Compression(error / rounds / energy, float((total / rounds).square().sum()) / energy)


def worst_error(quantizer: LinearQuantizer) -> float:
    """The largest relative error of any vector: κ if rounding is stochastic, 1 − δ in any case.

    Scales are assumed to be float32; rounding them up to bfloat16 makes steps at most a 128th longer.
    """
    others, peak = quantizer.group - 1, quantizer.format.peak
    t = _worst_fraction(quantizer)
    squared = t * (1 - t) if quantizer.rounding == "stochastic" else t * t
    return others * squared / (peak**2 + others * t * t)


def worst_group(quantizer: LinearQuantizer) -> Tensor:
    """A group whose relative error is `worst_error`, (group,) float32."""
    found = torch.full((quantizer.group,), _worst_fraction(quantizer) / quantizer.format.peak, device="cpu")
    found[0] = 1.0
    return hadamard_(found.view(-1, BLOCK)).view(-1) if quantizer.hadamard else found


def _worst_fraction(quantizer: LinearQuantizer) -> float:
    """The fraction of a step by which all but one coordinate of the worst group are above zero."""
    if quantizer.rounding == "nearest":
        return 0.5
    others, peak = quantizer.group - 1, quantizer.format.peak
    return peak * (math.hypot(peak, math.sqrt(others)) - peak) / others
