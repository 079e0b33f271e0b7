"""DynamiQ: multi-hop all-reduce of gradients in a few bit widths, by default 2, 4 and 8 bits.

`DynamiQPlus` and `UniformQuantization` have other defaults; the latter has every technique off.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import cast

import torch
from torch import Tensor

from gradwire.codecs.collectives import Collectives, Op
from gradwire.codecs.costs import COPY, NORM, NOTHING, SUM, Costs, hop_costs, moved, nearest, once
from gradwire.codecs.dynamiq.allocation import (
    WidthIncrements,
    lost_share,
    measured_increments,
    paper_increments,
)
from gradwire.codecs.dynamiq.arrangement import ArrangementRule, Chunks, arrange, super_group_statistics
from gradwire.codecs.dynamiq.codebooks import Codebooks, chosen_values
from gradwire.codecs.dynamiq.definition import MAX_WORKERS, Coder, Dither
from gradwire.codecs.dynamiq.format import chunk_coordinates, chunk_shard, chunk_size, num_super_groups
from gradwire.codecs.dynamiq.hops import DynamiQHops, KeptRounds, Pool
from gradwire.codecs.dynamiq.values import Values
from gradwire.codecs.hop_codec import LossyHopCodec
from gradwire.codecs.interface import Layout, Round
from gradwire.codecs.native.call import readable, stream_pointer
from gradwire.codecs.native.choice import library_for, without_kernels
from gradwire.codecs.options.dynamiq import (
    Allocation,
    DynamiQOptions,
    DynamiQPlusOptions,
    Rounding,
    ScaleRounding,
    UniformOptions,
    ValueKind,
    budget_limits,
    format_of,
)
from gradwire.codecs.shards import Shard
from gradwire.codecs.traits import SCALED_FROM, About, Traits
from gradwire.codecs.wrappers.feedback import feedback_diverges

FOLLOWING = 16
"""Super-groups of a chunk from which on widths follow what error feedback keeps."""

logger = logging.getLogger(__name__)


@dataclass
class DynamiQ(DynamiQOptions, LossyHopCodec):
    """DynamiQ with super-groups of 256 coordinates; each of its techniques can be replaced by a simpler one.

    Unbiased with `rounding="independent"`; correlated rounding has less error and, over several hops, a small
    bias. Raises ValueError for settings outside their range.
    """

    about = About(
        group="quantized all-reduce",
        source="DynamiQ §3",
        wire_bits="`codec.bits`",
        metadata="mean and norm of super-groups of 256",
        unbiased_if="codec.rounding=independent",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.widths = sorted(self.widths)
        self._format = format_of(vars(self))
        self._bits = budget_limits(self._format)[0] if self.bits is None else self.bits
        if self.codebooks > 1 and (self.values, self.scales) != ("distinct", "hierarchical"):
            raise ValueError(
                f"codec.codebooks={self.codebooks}: choose 1, or values=distinct and scales=hierarchical too"
            )
        self._cut: dict[tuple[int, int], tuple[Chunks, float | None]] = {}
        self._values: dict[torch.device, Mapping[int, Values | Codebooks]] = {}
        self._pool: Pool[KeptRounds] = Pool()
        self.traits = Traits(
            unbiased=self.rounding == "independent", smallest_magnitude=SCALED_FROM, worst_vnmse=0.15
        )

    def supports(self, topology: str, size: int, layout: Layout) -> str | None:
        if size > MAX_WORKERS:
            return f"codec={self.name} runs on at most {MAX_WORKERS} workers, got {size}; use another codec"
        if self.exact_size and layout.device.type != "cpu":
            return "codec.exact_size=true needs sizes on the host; it runs on CPU only"
        return super().supports(topology, size, layout)

    def refuses_capture(self, layout: Layout) -> str | None:
        if self.exact_size:
            return "codec.exact_size=true has messages of another size in every step"
        return without_kernels(layout.device) or (
            None if self._counts else "codec.allocation=exact plans in PyTorch"
        )

    def refuses_feedback(self, largest_sum: int, layout: Layout) -> str | None:
        """Refuses error feedback for small buckets: there some super-groups stay at the smallest width,
        however large their residual is."""
        code_bits = self._bits - self._format.overhead_bits
        few = num_super_groups(layout.numel) < FOLLOWING * largest_sum
        kind = cast(ValueKind, self.values)
        share = lost_share(self.widths, self.widths[0] if few else code_bits, kind, self.group)
        if not feedback_diverges(share, largest_sum):
            return None
        reason = (
            f"with codec.widths={self.widths} and {self._bits:g} bits each encoding loses {100 * share:.0f} "
            f"% of the energy, too much for sums of {largest_sum} gradients; give it more bits"
        )
        small = f", or buckets larger than {layout.numel} coordinates" if few else ""
        return reason + small

    def statistics(self, x: Tensor, this_round: Round) -> list[tuple[Tensor, Op]]:
        if not self._format.statistics_bytes:
            return []
        mean, norm = super_group_statistics(x)
        means: list[tuple[Tensor, Op]] = [(mean, "sum")] if self._format.mean else []
        norms: list[tuple[Tensor, Op]] = [(norm, "norm")] if self._format.norm else []
        return means + norms

    def plan(self, x: Tensor, this_round: Round, reduced: list[Tensor], num_chunks: int) -> DynamiQHops:
        mean_sum = reduced[0].contiguous() if self._format.mean else None
        norm = reduced[-1].contiguous() if self._format.norm else None
        x, dtype = readable(x), x.dtype
        chunks, coder = self._chunks(x.numel(), num_chunks, this_round.rank), self._coder(x, this_round)
        library = library_for(x.device)
        if library is not None and self._counts:
            stream = stream_pointer(x.get_device()) if x.is_cuda else None
            key = library, x.numel(), x.dtype, x.device, stream, this_round.size, num_chunks
            make = partial(KeptRounds, library, x, chunks, self._increments(), coder)
            kept = self._pool.take(key, make)
            arrangement = kept.begin(mean_sum, norm, coder, self.exact_size)
            release = partial(self._pool.give, key, kept)
            if this_round.capture is not None:  # replays use it, too
                release = partial(this_round.capture.kept.append, kept)
            return DynamiQHops(x, dtype, arrangement, coder, kept, release)
        absent = torch.zeros(chunks.super_groups, dtype=torch.bfloat16, device=x.device)
        arrangement = arrange(
            absent if mean_sum is None else mean_sum,
            absent if norm is None else norm,
            this_round.size,
            chunks,
            ArrangementRule(
                self._increments(), self._format, cast(Allocation, self.allocation), self.exact_size
            ),
        )
        return DynamiQHops(x, dtype, arrangement, coder)

    def chunk(self, layout: Layout, num_chunks: int, chunk: int) -> Shard:
        return chunk_shard(layout.numel, num_chunks, chunk)

    async def super_group_widths(self, x: Tensor, this_round: Round, comm: Collectives) -> Tensor:
        return cast(DynamiQHops, await self._planned(x, this_round, comm)).arrangement.widths()

    @property
    def _counts(self) -> bool:
        """True if widths are chosen by counting, as compiled kernels do."""
        return self.allocation == "fast" or len(self.widths) == 1

    def _increments(self) -> WidthIncrements:
        if self.errors == "measured":
            return measured_increments(self._format.widths, self.group)
        return paper_increments(self._format.widths)

    def costs(self, workers: int) -> Costs:
        """Costs of the hops: a single width is looked up directly, several are replaced by the benchmark's
        mixture. Broadcast messages become means only at the end; otherwise decoding has produced means
        already."""
        family, widths = ("dynamiq_plus", (4, 8)) if self.codebooks > 1 else ("dynamiq", (2, 3, 4, 5, 6, 8))
        several = len(self.widths) > 1
        label = "mix" if several else f"{nearest(widths, self.widths[0])}"
        compress, recompress, accumulate, decompress = (
            once(f"{family}.{name}.{label}")
            for name in ("compress", "recompress", "accumulate", "decompress")
        )
        seal = accumulate + compress + decompress
        return {
            "statistics": once("dynamiq.statistics"),
            "metadata": moved((SUM * self.mean + NORM * several) / 256),
            "plan": once("dynamiq.plan"),
            **hop_costs(workers, compress, accumulate, decompress, recompress, seal),
            "collect": accumulate * workers + COPY,
            "finish": NOTHING,
        }

    def _chunks(self, numel: int, num_chunks: int, rank: int) -> Chunks:
        """The chunks of a bucket. Warns, on the first rank, if their smallest size exceeds the budget."""
        if (numel, num_chunks) not in self._cut:
            self._cut[numel, num_chunks] = self._chunks_and_most(numel, num_chunks)
        chunks, most = self._cut[numel, num_chunks]
        if most is not None and rank == 0:
            warn_of_small_bucket(self.name, self._bits, numel, most)
        return chunks

    def _chunks_and_most(self, numel: int, num_chunks: int) -> tuple[Chunks, float | None]:
        """The chunks' capacities, and the bits per coordinate of the fullest chunk if there are several
        widths and it exceeds the budget (else None).

        Statistics count towards the budget; a chunk that cannot keep to it has its smallest size.
        """
        form, bits = self._format, self._bits
        sizes = tuple(chunk_size(numel, num_chunks, chunk, bits, form) for chunk in range(num_chunks))
        spent = 8 * sum(size.capacity + form.statistics_bytes * size.super_groups for size in sizes)
        most = max(
            (
                8
                * (size.capacity + form.statistics_bytes * size.super_groups)
                / chunk_coordinates(numel, num_chunks, chunk)
                for chunk, size in enumerate(sizes)
                if size.over_budget
            ),
            default=None,
        )
        assert most or spent <= bits * numel, f"{numel} coordinates exceed codec.bits={bits}"
        return Chunks(sizes), most if len(form.widths) > 1 else None

    def _coder(self, x: Tensor, this_round: Round) -> Coder:
        if x.device not in self._values:
            self._values[x.device] = {width: self._values_of(width, x.device) for width in self.widths}
        dither = Dither(
            this_round.key,
            this_round.rank,
            this_round.size,
            cast(Rounding, self.rounding),
            self.group,
            this_round.key_place,
        )
        return Coder(self._values[x.device], dither, cast(ScaleRounding, self.scale_rounding), self._format)

    def _values_of(self, width: int, device: torch.device) -> Values | Codebooks:
        epsilon = getattr(self, f"epsilon_{width}", 0.0)
        return chosen_values(width, cast(ValueKind, self.values), epsilon, device, self.group, self.codebooks)


@lru_cache(maxsize=1024)
def warn_of_small_bucket(codec: str, bits: float, numel: int, most: float) -> None:
    """Warn that the smallest width takes more than the budget, up to `most` bits per coordinate; once."""
    logger.warning(
        "gradwire: %s at %g bits: a bucket of %d coordinates is too small to keep to this budget, its "
        "fullest chunk takes %.4g bits per coordinate; harmless, or raise bucket_cap_mb",
        codec,
        bits,
        numel,
        most,
    )


@dataclass
class DynamiQPlus(DynamiQPlusOptions, DynamiQ):
    """DynamiQ with better defaults: the same bits on the wire, a fraction of the error. Unbiased with
    `rounding="independent"`.

    Only the defaults of DynamiQ's switches differ, and each can be set back to the paper's value:

    widths           more of them to choose from: bits go where they reduce the error most
        errors           measured ones decide that, not 4^−w: from 2 to 3 bits the error falls to an eighth
        values           distinct: no code is spent on a second zero
        codebooks        four; each super-group uses the one that fits it best
        group            32: half as many scales cost less than they improve the error
        scale_rounding   up: at 8 bits and above, random scales would be most of the error
        mean             not subtracted: subtraction gains less than sending the means costs

    Each was measured to lower the vNMSE on most gradients of a GPT-2, a Llama and a BERT in training (0.1 to
    0.4 million parameters, rings and butterflies of 4 to 16 workers). So does a width of 1 bit, at 3 bits by
    up to three quarters; but it leaves some super-groups with many times more error than energy, so it is not
    the default.
    """

    about = About(
        group="quantized all-reduce",
        source="DynamiQ, improved",
        wire_bits="`codec.bits`",
        metadata="norm of super-groups of 256",
        unbiased_if="codec.rounding=independent",
    )


@dataclass
class UniformQuantization(UniformOptions, DynamiQ):
    """Equidistant values of a fixed bit width in groups of 32 with a bf16 scale, rounded independently and
    re-quantized at every hop; no metadata.

    The rows of DynamiQ's Table 6 that follow are `values=nonuniform`; then `widths=[2,4,8]` with `bits`; then
    `scales=hierarchical group=16`; then `rounding=correlated`.
    """

    about = About(
        group="quantized all-reduce",
        source="DynamiQ §6.2, Table 6 (first row)",
        wire_bits="`codec.widths` + 16 / `codec.group` = 4.5",
    )
