"""Messages between ranks after an update: weights, or their differences, exact or quantized."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from gradwire.codecs.arithmetic.random import Key
from gradwire.codecs.interface import Capture
from gradwire.codecs.linear import LinearQuantizer
from gradwire.codecs.shards import Shard
from gradwire.harness.comm.collective.collectives import ScheduledCollectives
from gradwire.harness.comm.transport.captured_rounds import Capturable, Identity
from gradwire.harness.parallel.settings import ShardedConfig
from gradwire.harness.parallel.sharded.shards import FlatBucket
from gradwire.harness.timing.trace.step import WEIGHTS


class WeightMessages(Protocol):
    """The encoding of a rank's shard of a bucket as a message, and of all ranks' messages as the model's
    weights.

    All ranks, including the sender, decode the same bytes, so that they hold the same model bit for bit.
    """

    def encode(self, main: Tensor, bucket: FlatBucket, rank: int) -> Tensor:
        """The message with the main weights of a shard, (shard,) of any dtype, of `rank`."""
        ...

    def size(self, numel: int) -> int:
        """Number of elements of the message of a shard of `numel` coordinates."""
        ...

    def decode(self, message: Tensor, bucket: FlatBucket, rank: int) -> None:
        """Updates the shard of `rank` in the model's weights."""
        ...

    def begin(self, whole: Tensor, bucket: FlatBucket) -> None:
        """Sets the model's initial weights from (numel,) float32 main weights."""
        ...


class Exact:
    """Sends the main weights, cast to the model's dtype."""

    def encode(self, main: Tensor, bucket: FlatBucket, rank: int) -> Tensor:
        return main.to(bucket.weights.dtype)

    def size(self, numel: int) -> int:
        return numel

    def decode(self, message: Tensor, bucket: FlatBucket, rank: int) -> None:
        bucket.shards[rank].put(message, bucket.weights)

    def begin(self, whole: Tensor, bucket: FlatBucket) -> None:
        bucket.weights.copy_(whole)


@dataclass(frozen=True)
class QuantizedWeights:
    """qW (ZeRO++): the main weights themselves, quantized in groups of a shard's consecutive values."""

    quantizer: LinearQuantizer

    def encode(self, main: Tensor, bucket: FlatBucket, rank: int) -> Tensor:
        message = torch.empty(self.size(main.numel()), dtype=torch.uint8, device=main.device)
        if main.numel():
            self.quantizer.quantize(main.float(), message)
        return message

    def size(self, numel: int) -> int:
        return self.quantizer.message_bytes(numel)

    def decode(self, message: Tensor, bucket: FlatBucket, rank: int) -> None:
        own = _Window(bucket.shards[rank], bucket.weights)
        if own.values.numel():
            self.quantizer.dequantize(message, own.values)
            own.close()

    def begin(self, whole: Tensor, bucket: FlatBucket) -> None:
        for rank, shard in enumerate(bucket.shards):
            self.decode(self.encode(shard.take(whole), bucket, rank), bucket, rank)


@dataclass(frozen=True)
class QuantizedDifferences(QuantizedWeights):
    """qWD (SDP4Bit §3.1): main weights less the model's, quantized, and added to the model's in float32.

    Quantization errors remain in the difference and are sent in the next step. The previous weights are the
    model's own, so no extra buffer is needed.
    """

    def encode(self, main: Tensor, bucket: FlatBucket, rank: int) -> Tensor:
        own = _Window(bucket.shards[rank], bucket.weights)
        return super().encode(main.float() - own.values, bucket, rank)

    def decode(self, message: Tensor, bucket: FlatBucket, rank: int) -> None:
        own = _Window(bucket.shards[rank], bucket.weights)
        if own.values.numel():
            self.quantizer.add(message, own.values)
            own.close()

    def begin(self, whole: Tensor, bucket: FlatBucket) -> None:
        bucket.weights.copy_(whole)


class _Window:
    """A shard's `values` in a bucket: a view if they are consecutive, else a copy, which `close` writes
    back.
    """

    def __init__(self, shard: Shard, flat: Tensor) -> None:
        self._shard, self._flat = shard, flat
        in_place = len(shard.runs) == 1 and shard.runs[0].count == 1
        self.values = shard.runs[0].stretches(flat).view(-1) if in_place else shard.take(flat)
        self._in_place = in_place

    def close(self) -> None:
        if not self._in_place:
            self._shard.put(self.values, self._flat)


def weight_messages(settings: ShardedConfig) -> WeightMessages:
    """The message type for a value of `parallel.weights`."""
    if settings.weights == "exact":
        return Exact()
    quantizer = LinearQuantizer(settings.weight_bits, settings.weight_group)
    return QuantizedDifferences(quantizer) if settings.weights == "qwd" else QuantizedWeights(quantizer)


@dataclass(frozen=True)
class WeightGathering(Capturable):
    """The coroutine that sends the `main` weights of a rank's shard, of any dtype, to all others; returns all
    ranks' messages. Later steps may launch it as it was captured: the messages are then always in the same
    memory.
    """

    messages: WeightMessages
    bucket: FlatBucket
    rank: int
    main: Tensor

    async def __call__(self, comm: ScheduledCollectives) -> list[Tensor]:
        own = self.messages.encode(self.main, self.bucket, self.rank)
        sizes = [self.messages.size(numel) for numel in self.bucket.sizes]
        return await gathered_by_level(comm.in_phase(WEIGHTS), own, sizes)

    @property
    def key(self) -> Key:
        """None is used: weights are rounded to nearest."""
        return 0, 0

    def refusal(self) -> str | None:
        return None

    def identity(self) -> Identity | str:
        bucket = self.bucket
        if len(bucket.shards) == 1:
            return "a single rank sends nothing"
        subject = type(self), bucket.layout.uid, bucket.weights.data_ptr(), self.rank, self.main.numel()
        return Identity(subject, self.main.data_ptr())

    def captured(self, capture: Capture) -> WeightGathering:
        return self


async def gathered_by_level(comm: ScheduledCollectives, own: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """The messages of all ranks, of `sizes` elements each: gathered between nodes first, by the ranks with
    the same local index, then inside nodes, so that every message enters a node once."""
    between, inside = comm.group("node"), comm.group("local")
    if 1 in (between.size, inside.size):
        return await comm.all_gather(own, sizes)
    ranks = [range(index, comm.size, inside.size) for index in range(inside.size)]  # by local index
    alike = await between.all_gather(own, [sizes[rank] for rank in ranks[inside.rank]])
    lengths = [[sizes[rank] for rank in own_ranks] for own_ranks in ranks]
    parts = await inside.all_gather(torch.cat(alike), [sum(each) for each in lengths])
    found = {
        rank: message
        for own_ranks, part, each in zip(ranks, parts, lengths, strict=True)
        for rank, message in zip(own_ranks, torch.split(part, each), strict=True)
    }
    return [found[rank] for rank in range(comm.size)]
