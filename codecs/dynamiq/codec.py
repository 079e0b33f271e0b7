"""DynamiQ: multi-hop all-reduce of gradients in 2, 4 or 8 bits per coordinate."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import cast, get_args

import torch
from torch import Tensor

from gradwire.codecs.dynamiq.allocation import WIDTHS
from gradwire.codecs.dynamiq.blocks import to_super_groups
from gradwire.codecs.dynamiq.hops import DynamiQHops
from gradwire.codecs.dynamiq.kernels import Coder, ScaleRounding
from gradwire.codecs.dynamiq.plan import make_plan
from gradwire.codecs.dynamiq.rounding import MAX_WORKERS, Dither, Rounding
from gradwire.codecs.dynamiq.sizes import LARGEST_BUDGET, SMALLEST_BUDGET, ChunkSize, chunk_size
from gradwire.codecs.dynamiq.statistics import BYTES_PER_SUPER_GROUP, super_group_statistics
from gradwire.codecs.dynamiq.values import levels
from gradwire.codecs.interface import HopCodec, Layout, Op, Round
from gradwire.codecs.random import stream_key

DTYPES = (torch.float32, torch.bfloat16, torch.float16)

logger = logging.getLogger(__name__)


@dataclass
class DynamiQ(HopCodec):
    """DynamiQ with widths {2, 4, 8}, groups of 16 and super-groups of 256 coordinates.

    Unbiased with `rounding="independent"`; correlated rounding has less error and, over several hops, a small
    bias. Raises ValueError for settings outside their range.
    """

    name: str = "dynamiq"

    bits: float = 5.0
    """Everything on the wire, in bits per coordinate: codes, scales and statistics."""

    rounding: str = "correlated"
    """`correlated` among the workers, or `independent` (DynamiQ §3.4)."""

    scale_rounding: str = "stochastic"
    """Of group scales: `stochastic` as in the paper, or `ceil` as in its authors' released code."""

    epsilon_4: float = 0.25
    """Non-uniformity of the quantization values at 4 bits (DynamiQ §3.3)."""

    epsilon_8: float = 0.06
    """The same at 8 bits."""

    exact_size: bool = False
    """Send only the bytes in use; message sizes then depend on the gradient. CPU only."""

    def __post_init__(self) -> None:
        self._check_range(
            "bits", SMALLEST_BUDGET, LARGEST_BUDGET, "2 to 8 bits of code and 0.6875 of metadata"
        )
        self._check_range("epsilon_4", 0.03, 0.5, "0.25 is best on real gradients")
        self._check_range("epsilon_8", 0.03, 0.5, "0.06 is best on real gradients")
        self._check_choice("rounding", get_args(Rounding))
        self._check_choice("scale_rounding", get_args(ScaleRounding))
        self.unbiased = self.rounding == "independent"
        self._warned = False

    def _check_range(self, field: str, low: float, high: float, hint: str) -> None:
        value = getattr(self, field)
        if not low <= value <= high:
            raise ValueError(f"codec.{field}={value}: choose a value from {low} to {high} ({hint})")

    def _check_choice(self, field: str, allowed: tuple[str, ...]) -> None:
        value = getattr(self, field)
        if value not in allowed:
            raise ValueError(f"codec.{field}={value}: choose one of {', '.join(allowed)}")

    def supports(self, topology: str, size: int, layout: Layout) -> str | None:
        if size > MAX_WORKERS:
            return f"codec=dynamiq runs on at most {MAX_WORKERS} workers, got {size}"
        if self.exact_size and layout.device.type != "cpu":
            return "codec.exact_size=true needs sizes on the host; it runs on CPU only"
        if layout.dtype not in DTYPES:
            return f"codec=dynamiq compresses float32, bfloat16 and float16 gradients, got {layout.dtype}"
        return None

    def statistics(self, x: Tensor, round: Round) -> list[tuple[Tensor, Op]]:
        mean, norm = super_group_statistics(to_super_groups(x), x.numel())
        return [(mean, "sum"), (norm, "norm")]

    def plan(self, x: Tensor, round: Round, reduced: list[Tensor], num_chunks: int) -> DynamiQHops:
        mean_sum, norm = reduced
        plan = make_plan(mean_sum, norm, round.size, self._sizes(x.numel(), num_chunks), self.exact_size)
        return DynamiQHops(x, round.size, plan, self._coder(x, round))

    def _sizes(self, numel: int, num_chunks: int) -> tuple[ChunkSize, ...]:
        """The chunks' capacities; with the statistics they keep to the budget, or to the smallest size."""
        sizes = tuple(chunk_size(numel, num_chunks, chunk, self.bits) for chunk in range(num_chunks))
        assert any(size.over_budget for size in sizes) or (
            8 * sum(size.capacity + BYTES_PER_SUPER_GROUP * size.super_groups for size in sizes)
            <= self.bits * numel
        ), f"{numel} coordinates in {num_chunks} chunks exceed codec.bits={self.bits}"
        if any(size.over_budget for size in sizes) and not self._warned:
            self._warned = True
            logger.warning(
                "codec.bits=%g: a bucket of %d coordinates in %d chunks is too small for this budget and "
                "is sent at %d bits plus metadata",
                self.bits,
                numel,
                num_chunks,
                min(WIDTHS),
            )
        return sizes

    def _coder(self, x: Tensor, round: Round) -> Coder:
        epsilon = {2: 0.0, 4: self.epsilon_4, 8: self.epsilon_8}
        tables = {width: levels(width, epsilon[width], x.device) for width in WIDTHS}
        key = stream_key(round.seed, round.step, round.layout.uid)
        dither = Dither(key, round.rank, round.size, cast(Rounding, self.rounding))
        return Coder(tables, dither, cast(ScaleRounding, self.scale_rounding))
