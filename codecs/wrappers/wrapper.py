"""The base class of wrappers, which `make_codec` adds for the options that all codecs have."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Hashable, Mapping, Sequence

from torch import Tensor

from gradwire.codecs.arithmetic.random import Key
from gradwire.codecs.collectives import Collectives, Kept
from gradwire.codecs.interface import Codec, Elapsed, Layout, Observation, Round
from gradwire.codecs.shards import Shard


class Wrapper(Codec):
    """A codec around another one; everything that it does not override is delegated to the inner codec."""

    def __init__(self, inner: Codec) -> None:
        self.inner = inner
        self.name, self.about, self.traits = inner.name, inner.about, inner.traits

    @abstractmethod
    def options(self) -> dict[str, object]:
        """The `CommonOptions` that this wrapper implements, and their values."""

    def supports(self, topology: str, size: int, layout: Layout) -> str | None:
        return self.inner.supports(topology, size, layout)

    def supports_stages(self, stages: int, *, refines: bool = False) -> str | None:
        return self.inner.supports_stages(stages, refines=refines)

    def refuses_buckets(self, layouts: Sequence[Layout], size: int, num_chunks: int) -> str | None:
        return self.inner.refuses_buckets(layouts, size, num_chunks)

    def observe(self, observations: Sequence[Observation]) -> None:
        self.inner.observe(observations)

    def prepare_capture(self, this_round: Round) -> None:
        self.inner.prepare_capture(this_round)

    def captured_form(self, this_round: Round) -> Hashable:
        return self.inner.captured_form(this_round)

    def captured_key(self, this_round: Round) -> Key:
        return self.inner.captured_key(this_round)

    @property
    def refines(self) -> bool:
        return self.inner.refines

    @property
    def boundary(self) -> int:
        return self.inner.boundary

    async def refine(
        self, mean: Tensor, this_round: Round, comm: Collectives, elapsed: Elapsed | None = None
    ) -> Tensor:
        return await self.inner.refine(mean, this_round, comm, elapsed)

    @property
    def scatters(self) -> bool:
        return self.inner.scatters

    def shards(self, layout: Layout, kept: Kept) -> tuple[Shard, ...]:
        return self.inner.shards(layout, kept)

    @abstractmethod
    async def scatter(self, x: Tensor, this_round: Round, comm: Collectives) -> Tensor: ...

    def end_step(self, step: int) -> Mapping[str, float]:
        self.memories.end_step()
        return self.inner.end_step(step)

    def activity(self) -> Mapping[str, float]:
        return self.inner.activity()

    def skip_step(self, step: int) -> Mapping[str, float]:
        self.memories.skip_step()
        return self.inner.skip_step(step)

    def take_back(self, names: Collection[str]) -> None:
        self.memories.take_back(names)
        self.inner.take_back(names)

    def state_dict(self) -> dict[str, Tensor]:
        return self.memories.state_dict() | self.inner.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self.inner.load_state_dict(self.memories.load(state))


def innermost(codec: Codec) -> Codec:
    """The codec within all wrappers."""
    while isinstance(codec, Wrapper):
        codec = codec.inner
    return codec
