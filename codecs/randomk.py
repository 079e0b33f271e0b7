"""Random-k: the same random coordinates on all workers, summed hop by hop; no indices on the wire.

The draw is a function of (seed, step, bucket), known to all workers. Sent unscaled, the coordinates are a
random contraction of the gradient (Stich et al., "Sparsified SGD with memory", 2018), which needs error
feedback; multiplied by d/k they are unbiased and have d/k times the energy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from gradwire.codecs.arithmetic.random import Key, mix32
from gradwire.codecs.casts import SelectedHops
from gradwire.codecs.hop_codec import LossyHopCodec
from gradwire.codecs.interface import Layout, Round
from gradwire.codecs.options.reduced import RandomKOptions
from gradwire.codecs.shards import Shard
from gradwire.codecs.slices import chunk_bounds, chunk_slice
from gradwire.codecs.step_memory import of_contraction
from gradwire.codecs.topk import WIRE_DTYPES, selected_count
from gradwire.codecs.traits import About, Traits

_TILE = 1 << 16
"""Coordinates hashed at a time: temporaries of 512 KiB stay near a core."""


def drawn_coordinates(numel: int, count: int, key: Key, device: torch.device) -> Tensor:
    """`count` of `numel` < 2³² coordinates, drawn uniformly: ascending int64.

    They are those with the smallest hashes; hashing is bijective, so there are no ties.
    """
    hashes = torch.empty(numel, dtype=torch.int32, device=device)
    for start in range(0, numel, _TILE):
        coordinates = torch.arange(start, min(start + _TILE, numel), device=device)
        hashes[start : start + _TILE] = mix32(mix32(coordinates ^ key[0]) + key[1]) - (1 << 31)
    largest = hashes.topk(count, largest=False, sorted=False).values.max()
    return torch.nonzero_static(hashes <= largest, size=count)[:, 0]


class DrawnCoordinates:
    """The `Selection` of single coordinates.

    If any coordinate of a gradient is not finite, even one that is not sent, all sent coordinates become NaN,
    and a received NaN makes the whole bucket NaN.
    """

    def __init__(self, index: Tensor, factor: float = 1.0) -> None:
        """`index` is (selected,) int64 on the bucket's device."""
        self._index, self.factor = index, factor

    def take(self, x: Tensor) -> Tensor:
        return x[self._index].masked_fill_(~x.isfinite().all(), torch.nan)

    def put(self, values: Tensor, into: Tensor) -> None:
        into[self._index] = values
        into.masked_fill_(values.isnan().any(), torch.nan)

    def before(self, bounds: Sequence[int]) -> list[int]:
        found = torch.searchsorted(self._index, torch.tensor(bounds, device=self._index.device))
        return cast(list[int], found.tolist())


@dataclass
class RandomK(RandomKOptions, LossyHopCodec):
    """Sums of a random `fraction` of the coordinates, at least one; the others become zero.

    A bucket in which any worker's gradient is not finite becomes NaN, all of it, on all ranks. Raises
    ValueError for settings outside their range.
    """

    about = About(
        group="sparsifiers",
        source="random sparsification; Stich et al. 2018",
        wire_bits="32·`codec.fraction` (bf16: 16)",
        unbiased_if="codec.unbiased_scaling=true",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        # Everything that is not sent is lost: with a hundredth of the coordinates some 99 % of the energy.
        scaled = 1.2 * (1 / self.fraction - 1)
        worst = scaled if self.unbiased_scaling else 0.95 if self.fraction >= 0.1 else 0.999
        self.traits = Traits(
            unbiased=self.unbiased_scaling and self.values == "fp32",
            worst_vnmse=worst,
            large_error="sent coordinates are scaled up to make up for the others" if worst >= 1 else "",
        )

    def refuses_feedback(self, largest_sum: int, layout: Layout) -> str | None:
        # A coordinate drawn with probability p has an error of (1/p − 1) times itself, otherwise of all of
        # itself: with a random sign its energy grows by (1 − p)²/p + (1 − p) = (1 − p)/p per round.
        if self.unbiased_scaling and self.fraction <= 0.5:
            return (
                "what is kept is sent multiplied by 1/codec.fraction and the excess kept again; set "
                "codec.unbiased_scaling=false"
            )
        return None

    def largest_residual(self, this_round: Round) -> float:
        share = selected_count(self.fraction, this_round.layout.numel) / this_round.layout.numel
        return max(super().largest_residual(this_round), of_contraction(share))

    def plan_scatter(
        self, x: Tensor, this_round: Round, reduced: list[Tensor], num_chunks: int
    ) -> SelectedHops:
        return self.hops(x, this_round, num_chunks, chunk_bounds(x.numel(), num_chunks))

    def chunk(self, layout: Layout, num_chunks: int, chunk: int) -> Shard:
        return chunk_slice(layout.numel, num_chunks, chunk)

    def hops(
        self, x: Tensor, this_round: Round, num_chunks: int, bounds: Sequence[int] | None = None
    ) -> SelectedHops:
        count = selected_count(self.fraction, x.numel())
        index = drawn_coordinates(x.numel(), count, this_round.key, x.device)
        coordinates = DrawnCoordinates(index, x.numel() / count if self.unbiased_scaling else 1.0)
        return SelectedHops(x, this_round.size, num_chunks, coordinates, WIRE_DTYPES[self.values], bounds)
