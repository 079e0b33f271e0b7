"""Forward and backward of one rank's micro-batches: one piece of code for every world."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Sequence

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gradwire.harness.parallel.interface import Batch, WeightedBatch
from gradwire.harness.runtime.heartbeat import beat
from gradwire.harness.runtime.seeding import derive_seed


def forward_backward(
    model: nn.Module,
    accelerator: Accelerator,
    batches: Sequence[Batch],
    seed: int,
    step: int,
    rank: int,
) -> Tensor:
    """Accumulates the mean gradient of `batches` by their weights; of a model in DistributedDataParallel,
    buckets are synchronized during the last backward.

    Random state is set anew before each micro-batch, so that dropout depends on (seed, step, micro-batch,
    rank) alone. Returns the mean loss by the same weights, a float64 scalar on the model's device: reading it
    here would make the host wait for the device before the last buckets are sent.
    """
    without_synchronization = getattr(model, "no_sync", contextlib.nullcontext)
    total = torch.zeros((), dtype=torch.float64, device=accelerator.device)
    for index, batch in enumerate(batches):
        beat()
        seed_dropout(derive_seed(seed, "dropout", step, index, rank), accelerator.device)
        last = index == len(batches) - 1
        with contextlib.nullcontext() if last else without_synchronization():
            loss = weighted(model(**batch).loss, batch) / len(batches)
            accelerator.backward(loss)
        total += loss.detach()
    return total


def weighted(loss: Tensor, batch: Batch) -> Tensor:
    """The part of a micro-batch in the sum of which the step's loss is the mean. Every parallelism calls it
    on the model's loss, before anything else is done with that."""
    if not isinstance(batch, WeightedBatch):
        return loss
    if not batch.weight:  # no label counts: the loss is NaN, a mean over nothing
        return loss.masked_fill(torch.ones_like(loss, dtype=torch.bool), 0.0)
    return loss * batch.weight


def seed_dropout(seed: int, device: torch.device) -> None:
    """Does what `torch.manual_seed` does, but only for the device in use: torch keeps stack traces for
    others."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.default_generators[torch.cuda.current_device()].manual_seed(seed)


def wrap(
    model: nn.Module,
    accelerator: Accelerator,
    *,
    bucket_cap_mb: float,
    static_graph: bool,
    find_unused_parameters: bool,
    gradient_as_bucket_view: bool,
) -> DistributedDataParallel:
    """Wraps the model on its device, with Accelerate's mixed precision, in DDP.

    DDP is applied here and not by Accelerate, which drops a `bucket_cap_mb` equal to its own default and
    leaves a single rank unwrapped: the bucket layout must be the same in every world.
    """
    prepared = accelerator.prepare_model(model, evaluation_mode=True)
    with warnings.catch_warnings():
        # `broadcast_buffers` is on its way out, its successor is not in every version we run with.
        warnings.simplefilter("ignore", FutureWarning)
        return DistributedDataParallel(
            prepared,
            bucket_cap_mb=bucket_cap_mb,
            static_graph=static_graph,
            find_unused_parameters=find_unused_parameters,
            gradient_as_bucket_view=gradient_as_bucket_view,
            # Else each forward begins with a broadcast by the backend that is not counted or paced; buffers
            # that training changes are each rank's own until evaluation, see `buffers`.
            broadcast_buffers=False,
        )


def settling_passes(model: DistributedDataParallel) -> int:
    """The number of passes that settle the buckets: the second rearranges them, the third of a static
    graph."""
    return 3 if model.static_graph else 2
