"""Averages gradients over ranks that hold the same parameters: all of a model, or the same shards of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch.distributed as dist
from torch import Tensor

from gradwire.codecs.interface import Codec, Layout, Round
from gradwire.harness.comm.world.process import ProcessWorld
from gradwire.harness.library.agreement import Agreement, Statement
from gradwire.harness.library.failures import explained
from gradwire.harness.parallel.synchronize import synchronization


class Replicas:
    """The ranks that hold the same, and the codec between them. `layouts` are those of each module's
    gradients: of its parameters, or of a shard."""

    def __init__(
        self,
        world: ProcessWorld,
        codec: Codec,
        layouts: Sequence[Layout],
        *,
        seed: int,
        check_hashes: bool,
    ) -> None:
        self.world, self.codec, self.layouts = world, codec, layouts
        self._seed, self._check_hashes = seed, check_hashes
        self._rank_step = world.open_step()

    def begin_step(self) -> None:
        self._rank_step = self.world.open_step()

    def average(self, number: int, x: Tensor, step: int) -> Tensor:
        """The mean of all ranks' gradients of module `number`, (numel,) float32."""
        world, layout = self.world, self.layouts[number]
        this_round = Round(step, layout, world.rank, world.size, self._seed, number)
        started = self._rank_step.start(
            lambda own: synchronization(self.codec, own, this_round, self._check_hashes, captures=False),
            x.float(),
            buffers=str(layout.uid),
            coordinates=layout.numel,
            in_turn=self.codec.traits.uses_backend,
        )
        error = started.wait()
        if error is not None:
            raise error
        return started.result()


class MeshAgreement:
    """Agrees along each dimension of a mesh, one after the other, so that all of its ranks agree. Ranks are
    named by their places in a dimension."""

    def __init__(self, groups: Sequence[dist.ProcessGroup], timeout_s: float, what: str) -> None:
        self.dimensions = [Agreement(group, timeout_s, what) for group in groups]

    @property
    def rank(self) -> int:
        return self.dimensions[0].rank

    @property
    def timeout_s(self) -> float:
        """Seconds that the ranks wait for one another to agree."""
        return self.dimensions[0].timeout_s

    @timeout_s.setter
    def timeout_s(self, seconds: float) -> None:
        for each in self.dimensions:
            each.timeout_s = seconds

    def refuse(self, reason: str) -> None:
        """Tells the others that this rank does not take part, instead of `agree`."""
        for each in self.dimensions:
            each.refuse(reason)

    def agree(
        self, own: Statement, what: str | None = None, last_word: Callable[[], str | None] = lambda: None
    ) -> None:
        """Returns once all ranks have called this with the same statement. Raises what `Agreement` raises."""
        for index, each in enumerate(self.dimensions):
            try:
                each.agree(own, what, last_word)
            except Exception as error:  # those along the other dimensions wait to be told
                for other in self.dimensions[index + 1 :]:
                    other.refuse(str(error))
                raise

    def explained(self, dimension: int, error: BaseException) -> str:
        """The text of an error along a dimension; the others, along all of them, are told."""
        words = explained(self.dimensions[dimension], error)
        for number, each in enumerate(self.dimensions):
            if number != dimension % len(self.dimensions):
                each.fail(words)
        return words
