"""A module's weights: what a rank remembers of them between two passes, and the collective that gathers
them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.codecs.arithmetic.random import Key
from gradwire.codecs.interface import Capture, Layout
from gradwire.codecs.shards import Shard
from gradwire.harness.comm.collective.collectives import ScheduledCollectives
from gradwire.harness.comm.transport.captured_rounds import Capturable, Identity
from gradwire.harness.library.shard_places import Places
from gradwire.harness.parallel.sharded.shards import FlatBucket
from gradwire.harness.parallel.sharded.weights import Exact, WeightGathering, WeightMessages


class ModuleWeights:
    """The memory of a module's weights if differences are sent; both tensors keep their addresses.

    `whole` holds the weights that all ranks have, (ranks · shard,), None before they are first gathered.
    `sent` holds this rank's main weights as last gathered.
    """

    def __init__(self) -> None:
        self.whole: Tensor | None = None
        self.sent: Tensor | None = None
        self.awaits_update = False
        """True if main weights are expected to differ from `sent`: gradients were scattered since, or a state
        was loaded that has none."""

    def keep(self, main: Tensor) -> Tensor:
        """Remembers a copy of the main weights as `sent`, which it returns."""
        self.sent, self.awaits_update = _filled(self.sent, main), False
        return self.sent

    def restore(self, whole: Tensor | None, sent: Tensor | None) -> None:
        """Takes the values of a loaded state."""
        self.whole = None if whole is None else _filled(self.whole, whole)
        self.awaits_update = sent is None
        if sent is not None:
            self.sent = _filled(self.sent, sent)


def _filled(own: Tensor | None, values: Tensor) -> Tensor:
    """`own` with these values; a copy of them if `own` is none of this shape and type."""
    if own is None or own.shape != values.shape or own.dtype != values.dtype:
        return values.clone()
    return own.copy_(values)


@dataclass(frozen=True)
class WholeGathering(Capturable):
    """The coroutine that gathers the weights of `module` and decodes them into its `bucket`.

    Within a captured round the messages take only memory that the next module's may use, too.
    """

    messages: WeightMessages
    bucket: FlatBucket
    rank: int
    main: Tensor

    @property
    def _messages(self) -> WeightGathering:
        return WeightGathering(self.messages, self.bucket, self.rank, self.main)

    async def __call__(self, comm: ScheduledCollectives) -> Tensor:
        for rank, message in enumerate(await self._messages(comm)):
            self.messages.decode(message, self.bucket, rank)
        return self.bucket.weights

    @property
    def key(self) -> Key:
        return self._messages.key

    def refusal(self) -> str | None:
        return self._messages.refusal()

    def identity(self) -> Identity | str:
        return self._messages.identity()

    def captured(self, capture: Capture) -> WholeGathering:
        return self


def module_bucket(name: str, weights: Tensor, shards: Sequence[Shard]) -> FlatBucket:
    """The bucket of a module's gathered `weights`, which `shards` divide among the ranks."""
    layout = Layout.flat(weights.numel(), f"weights {name}", weights.device)
    return FlatBucket(layout, weights[:0], weights, tuple(shards))


def as_sent(messages: WeightMessages, weights: Tensor, main: Tensor) -> tuple[Tensor, Tensor]:
    """Exact weights and main weights as bytes, because they may have any type; others as they are."""
    if isinstance(messages, Exact):
        return weights.view(torch.uint8), main.view(torch.uint8)
    return weights, main


@contextmanager
def in_place(places: Places | None, weights: Tensor, main: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Tensors in which a round finds `main` and leaves `weights`: with `places` those there, from which the
    result is copied at the end."""
    if places is None:
        yield weights, main
        return
    with (
        places.taken("weights", weights.numel(), weights.dtype) as whole,
        places.taken("main", main.numel(), main.dtype) as own,
    ):
        own.copy_(main)
        yield whole, own
        weights.copy_(whole)
