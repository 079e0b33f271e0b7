"""The scatter of one bucket: the coroutine that every rank of every world runs."""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.codecs.interface import Codec, Round
from gradwire.codecs.shards import Shard
from gradwire.harness.comm.collective.collectives import ScheduledCollectives
from gradwire.harness.comm.world.interface import Collective


def scattering(codec: Codec, x: Tensor, this_round: Round, shard: Shard) -> Collective[Tensor]:
    """The coroutine that turns bucket `x` of `this_round.rank` into its shard of the mean over all ranks.

    RuntimeError when the codec's result does not fit the shard.
    """

    async def run(comm: ScheduledCollectives) -> Tensor:
        if this_round.size == 1:
            return shard.take(x)
        mean = await codec.scatter(x, this_round, comm)
        if mean.shape != (shard.numel,) or mean.dtype != torch.float32:
            raise RuntimeError(f"codec returned {mean.dtype}{list(mean.shape)} for a shard of {shard.numel}")
        return mean

    return run
