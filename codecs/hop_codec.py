"""Codecs that quantize hop by hop: the base class of most codecs, and the interface for error feedback."""

from __future__ import annotations

from abc import abstractmethod
from typing import Protocol, Self, cast, runtime_checkable

from torch import Tensor

from gradwire.codecs.collectives import Collectives, Hops, Kept, Op
from gradwire.codecs.interface import Codec, Layout, Round
from gradwire.codecs.shards import Shard, joined


class LossyHops(Hops, Protocol):
    """Hops that report the losses of this worker's own encodings, which error feedback adds to the next
    gradient."""

    _losses: Tensor | None = None
    """Those so far, None if they are not asked for."""

    def keep_losses(self) -> None:
        """Starts adding up losses. Called before the first hop; costs a decoding for each encoding."""
        ...

    def losses(self) -> Tensor:
        """(numel,) float32, layout order: the sum over all encodings of this worker in the round of their
        input (a partial sum of gradients) minus their decoding.

        Summed over the ranks it is n times the exact mean less n times the result.
        """
        assert self._losses is not None, "losses() without keep_losses()"
        return self._losses


class HopCodec(Codec):
    """A codec that quantizes hop by hop: statistics, their reduction, a plan, one all-reduce.

    A codec that needs no statistics from the other ranks implements only `hops`; one with statistics
    implements `plan`.
    """

    def __new__(cls, *_: object, **__: object) -> Self:
        if cls.hops is HopCodec.hops and cls.plan is HopCodec.plan:
            raise TypeError(f"{cls.__name__} defines neither hops() nor plan()")
        return super().__new__(cls)

    def hops(self, x: Tensor, this_round: Round, num_chunks: int) -> Hops:
        """The hop-wise state of this round, for codecs without statistics."""
        raise NotImplementedError

    def statistics(self, x: Tensor, this_round: Round) -> list[tuple[Tensor, Op]]:
        """Metadata the plan needs from all ranks, in new tensors, because the reduction may overwrite them;
        none by default."""
        return []

    def plan(self, x: Tensor, this_round: Round, reduced: list[Tensor], num_chunks: int) -> Hops:
        """The hop-wise state of this round, given the reduced statistics."""
        return self.hops(x, this_round, num_chunks)

    def plan_scatter(self, x: Tensor, this_round: Round, reduced: list[Tensor], num_chunks: int) -> Hops:
        """The hop-wise state of a scatter. It differs from `plan`'s in codecs whose chunks there do not hold
        the same coordinates in every round."""
        return self.plan(x, this_round, reduced, num_chunks)

    def chunk(self, layout: Layout, num_chunks: int, chunk: int) -> Shard:
        """The coordinates of a bucket that one chunk of a scatter holds, in every round. A codec that does
        not implement this has no scatter."""
        raise ValueError(f"codec={self.name} has no scatter")

    @property
    def scatters(self) -> bool:
        return type(self).chunk is not HopCodec.chunk

    def shards(self, layout: Layout, kept: Kept) -> tuple[Shard, ...]:
        num_chunks = sum(len(chunks) for chunks in kept)
        return tuple(joined(self.chunk(layout, num_chunks, chunk) for chunk in chunks) for chunks in kept)

    async def synchronize(self, x: Tensor, this_round: Round, comm: Collectives) -> Tensor:
        return await comm.all_reduce(await self._planned(x, this_round, comm))

    async def scatter(self, x: Tensor, this_round: Round, comm: Collectives) -> Tensor:
        reduced = await self._reduced(x, this_round, comm)
        return await comm.reduce_scatter(self.plan_scatter(x, this_round, reduced, comm.num_chunks))

    async def _planned(self, x: Tensor, this_round: Round, comm: Collectives) -> Hops:
        return self.plan(x, this_round, await self._reduced(x, this_round, comm), comm.num_chunks)

    async def _reduced(self, x: Tensor, this_round: Round, comm: Collectives) -> list[Tensor]:
        parts = self.statistics(x, this_round)
        return await comm.reduce(parts, in_place=True) if parts else []


@runtime_checkable
class ReportsLosses(Protocol):
    """The interface that a codec needs for error feedback."""

    @abstractmethod
    async def synchronize_with_losses(
        self, x: Tensor, this_round: Round, comm: Collectives
    ) -> tuple[Tensor, Tensor]:
        """`synchronize`, and the losses of this worker's encodings, (numel,) float32 in layout order."""
        ...

    async def scatter_with_losses(
        self, x: Tensor, this_round: Round, comm: Collectives
    ) -> tuple[Tensor, Tensor]:
        """`scatter`, and the losses of this worker's encodings, (numel,) float32 in layout order."""
        raise ValueError("a codec without scatter loses nothing in it")

    def refuses_feedback(self, largest_sum: int, layout: Layout) -> str | None:
        """None, or the reason why error feedback diverges around this codec with its settings.

        In the bucket a worker encodes sums of 1 to `largest_sum` gradients, each with the residual of the
        round before: see `feedback`.
        """
        return None

    def largest_residual(self, this_round: Round) -> float:
        """The norm at which a worker's residual may settle in this round's bucket, relative to the norm of
        its gradients, if error feedback is not refused: see `residuals`.

        The default holds for quantizers: their residuals were measured to have at most 130 times the energy
        of the gradients.
        """
        return 12.0


class LossyHopCodec(HopCodec, ReportsLosses):
    """A hop-wise codec whose `plan()` returns `LossyHops`, so that error feedback can wrap it. Its sums are
    in float32."""

    async def synchronize_with_losses(
        self, x: Tensor, this_round: Round, comm: Collectives
    ) -> tuple[Tensor, Tensor]:
        hops = cast(LossyHops, await self._planned(x, this_round, comm))
        hops.keep_losses()
        return await comm.all_reduce(hops), hops.losses()

    async def scatter_with_losses(
        self, x: Tensor, this_round: Round, comm: Collectives
    ) -> tuple[Tensor, Tensor]:
        reduced = await self._reduced(x, this_round, comm)
        hops = cast(LossyHops, self.plan_scatter(x, this_round, reduced, comm.num_chunks))
        hops.keep_losses()
        return await comm.reduce_scatter(hops), hops.losses()
