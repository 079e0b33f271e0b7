"""MXFP8, MXFP6, MXFP4: hop-wise sums in microscaling formats (DynamiQ §5, Appendix C)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast, get_args

import torch
from torch import Tensor

from gradwire.codecs.interface import HopCodec, Layout, Op, Round
from gradwire.codecs.mxfp.blocks import block_maxima
from gradwire.codecs.mxfp.formats import FORMATS
from gradwire.codecs.mxfp.hops import MXFPHops
from gradwire.codecs.mxfp.scales import ScaleRule, block_scales
from gradwire.codecs.mxfp.scaling import AutomaticScaling

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass
class MXFP(HopCodec):
    """Elements E4M3 (`mxfp8`), E3M2 (`mxfp6`) or E2M1 (`mxfp4`) in blocks of 32 with a common scale.

    A first all-reduce takes the blocks' maxima over the workers; the scales that follow hold for the round,
    and partial sums stay in the element format. Raises ValueError for settings outside their range.
    """

    name: str = "mxfp8"

    scale_rule: str = "bf16_mu"
    """From maximum to scale: `bf16_mu` (the paper's), `e8m0_floor` (OCP), `e8m0_even`, `e8m0_ceil`."""

    epsilon: float = 1e-5
    """Share of saturated casts beyond which μ doubles (FP8-LM's 0.001 %)."""

    gamma: float = 0.99
    """What μ is multiplied by otherwise."""

    mu_minimum: float = 1.0
    """μ, which starts at the number of workers, falls no further. Below 1 single gradients saturate."""

    stateful = True

    def __post_init__(self) -> None:
        self._check_choice("name", tuple(FORMATS))
        self._check_choice("scale_rule", get_args(ScaleRule))
        self._check_range("epsilon", 0, 1, "1e-5 is FP8-LM's")
        self._check_range("gamma", 0.5, 1, "close to 1; 1 keeps μ from falling")
        self._check_range("mu_minimum", 0.001, 1000, "1 scales by the largest gradient")
        self._element = FORMATS[self.name]
        self._scaling = AutomaticScaling(self.epsilon, self.gamma, self.mu_minimum)

    def _check_range(self, field: str, low: float, high: float, hint: str) -> None:
        value = getattr(self, field)
        if not low <= value <= high:
            raise ValueError(f"codec.{field}={value}: choose a value from {low} to {high} ({hint})")

    def _check_choice(self, field: str, allowed: tuple[str, ...]) -> None:
        value = getattr(self, field)
        if value not in allowed:
            raise ValueError(f"codec.{field}={value}: choose one of {', '.join(allowed)}")

    def supports(self, topology: str, size: int, layout: Layout) -> str | None:
        if layout.dtype not in DTYPES:
            return f"codec={self.name} compresses float32, bfloat16 and float16 gradients, got {layout.dtype}"
        return None

    def statistics(self, x: Tensor, round: Round) -> list[tuple[Tensor, Op]]:
        parts: list[tuple[Tensor, Op]] = [(block_maxima(x), "max_bits")]
        if round.bucket == 0:
            parts.append((self._scaling.previous_counts(x.device), "sum"))
        return parts

    def plan(self, x: Tensor, round: Round, reduced: list[Tensor], num_chunks: int) -> MXFPHops:
        if round.bucket == 0:
            self._scaling.agree(reduced[1])
        mu, rule = self._scaling.mu(round.size), cast(ScaleRule, self.scale_rule)
        scales = block_scales(reduced[0], mu, rule, self._element, round.size)
        return MXFPHops(x, num_chunks, self._element, scales, self._scaling.count(x.device))

    def end_step(self, step: int) -> Mapping[str, float]:
        return self._scaling.end_step()

    def state_dict(self) -> dict[str, Tensor]:
        return self._scaling.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self._scaling.load_state_dict(state)
