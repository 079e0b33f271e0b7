"""DynamiQ: multi-hop all-reduce of gradients in a few bit widths, by default 2, 4 and 8 bits."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import cast, get_args

import torch
from torch import Tensor

from gradwire.codecs.checks import check_choice, check_range
from gradwire.codecs.dynamiq.allocation import Allocation
from gradwire.codecs.dynamiq.blocks import to_super_groups
from gradwire.codecs.dynamiq.hops import DynamiQHops
from gradwire.codecs.dynamiq.kernels import Coder, ScaleRounding
from gradwire.codecs.dynamiq.plan import make_plan
from gradwire.codecs.dynamiq.rounding import MAX_WORKERS, Dither, Rounding
from gradwire.codecs.dynamiq.sizes import OVERHEAD_BITS, ChunkSize, budget_limits, chunk_size
from gradwire.codecs.dynamiq.statistics import BYTES_PER_SUPER_GROUP, super_group_statistics
from gradwire.codecs.dynamiq.tables import WIDTHS, values_of
from gradwire.codecs.dynamiq.upgrades import paper_upgrades
from gradwire.codecs.interface import About, HopCodec, Layout, Op, Round
from gradwire.codecs.random import stream_key

DTYPES = (torch.float32, torch.bfloat16, torch.float16)

logger = logging.getLogger(__name__)


@dataclass
class DynamiQ(HopCodec):
    """DynamiQ with groups of 16 and super-groups of 256 coordinates.

    Unbiased with `rounding="independent"`; correlated rounding has less error and, over several hops, a small
    bias. Raises ValueError for settings outside their range.
    """

    name: str = "dynamiq"

    bits: float = 5.0
    """Everything on the wire, in bits per coordinate: codes, scales and statistics."""

    widths: list[int] = field(default_factory=lambda: [2, 4, 8])
    """Bits per coordinate a super-group may get: some of 1, 2, 4, 8 and 16."""

    allocation: str = "fast"
    """How widths are chosen: one threshold by counting (`fast`), or sorting without rounding (`exact`)."""

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

    about = About(
        source="DynamiQ §3",
        wire_bits="`codec.bits`",
        metadata="mean and norm of super-groups of 256",
        unbiased_if="codec.rounding=independent",
    )

    def __post_init__(self) -> None:
        self._check_widths()
        low, high = budget_limits(self.widths)
        codes = " to ".join(f"{width}" for width in sorted({min(self.widths), max(self.widths)}))
        check_range(self, "bits", low, high, f"{codes} bits of code and {OVERHEAD_BITS:g} of metadata")
        check_choice(self, "allocation", get_args(Allocation))
        check_range(self, "epsilon_4", 0.03, 0.5, "0.25 is best on real gradients")
        check_range(self, "epsilon_8", 0.03, 0.5, "0.06 is best on real gradients")
        check_choice(self, "rounding", get_args(Rounding))
        check_choice(self, "scale_rounding", get_args(ScaleRounding))
        self.unbiased = self.rounding == "independent"
        self._warned = False

    def _check_widths(self) -> None:
        widths = list(self.widths)
        if not widths or len({*widths}) < len(widths) or not {*widths} <= {*WIDTHS}:
            allowed = ", ".join(map(str, WIDTHS))
            raise ValueError(
                f"codec.widths={widths}: choose one or more of {allowed}, each once, e.g. [2,4,8]"
            )
        self.widths = sorted(widths)

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
        sizes, upgrades = self._sizes(x.numel(), num_chunks), paper_upgrades(tuple(self.widths))
        allocation = cast(Allocation, self.allocation)
        plan = make_plan(mean_sum, norm, round.size, sizes, upgrades, allocation, self.exact_size)
        return DynamiQHops(x, round.size, plan, self._coder(x, round))

    def _sizes(self, numel: int, num_chunks: int) -> tuple[ChunkSize, ...]:
        """The chunks' capacities; with the statistics they keep to the budget, or to the smallest size."""
        sizes = tuple(
            chunk_size(numel, num_chunks, chunk, self.bits, self.widths) for chunk in range(num_chunks)
        )
        spent = 8 * sum(size.capacity + BYTES_PER_SUPER_GROUP * size.super_groups for size in sizes)
        over_budget = any(size.over_budget for size in sizes)
        assert over_budget or spent <= self.bits * numel, f"{numel} coordinates exceed codec.bits={self.bits}"
        if over_budget and not self._warned:
            self._warned = True
            logger.warning(
                "codec.bits=%g: a bucket of %d coordinates in %d chunks is too small for it, it takes "
                "%.4g bits a coordinate",
                self.bits,
                numel,
                num_chunks,
                spent / numel,
            )
        return sizes

    def _coder(self, x: Tensor, round: Round) -> Coder:
        epsilons = {4: self.epsilon_4, 8: self.epsilon_8}
        values = {width: values_of(width, epsilons.get(width, 0.0), x.device) for width in self.widths}
        key = stream_key(round.seed, round.step, round.layout.uid)
        dither = Dither(key, round.rank, round.size, cast(Rounding, self.rounding))
        return Coder(values, dither, cast(ScaleRounding, self.scale_rounding))
