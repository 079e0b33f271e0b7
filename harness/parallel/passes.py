"""Forward and backward passes of one rank's micro-batches; all worlds share this code."""

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
    """Accumulates the weighted mean gradient of `batches`. With DistributedDataParallel, buckets are
    synchronized during the last backward pass.

    Random state is set before each micro-batch, so that dropout only depends on (seed, step, micro-batch,
    rank). Returns the weighted mean loss, a float64 scalar that stays on the model's device: reading it here
    would make the host wait for the device before the last buckets are sent.
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
    """A micro-batch's term in the sum whose mean is the step's loss. Every parallelism applies it to the
    model's loss before any other use."""
    if not isinstance(batch, WeightedBatch):
        return loss
    if not batch.weight:  # no label counts: the loss is NaN, a mean over nothing
        return loss.masked_fill(torch.ones_like(loss, dtype=torch.bool), 0.0)
    return loss * batch.weight


def seed_dropout(seed: int, device: torch.device) -> None:
    """Does what `torch.manual_seed` does, but only for the device in use: for others torch would store stack
    traces."""
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
        # `broadcast_buffers` is deprecated, but its successor is not in every supported version of torch.
        warnings.simplefilter("ignore", FutureWarning)
        return DistributedDataParallel(
            prepared,
            bucket_cap_mb=bucket_cap_mb,
            static_graph=static_graph,
            find_unused_parameters=find_unused_parameters,
            gradient_as_bucket_view=gradient_as_bucket_view,
            # With broadcasts each forward pass would begin with one by the backend that is neither counted
            # nor paced. Instead, ranks keep their own buffers until evaluation, see `buffers`.
            broadcast_buffers=False,
        )


def settling_passes(model: DistributedDataParallel) -> int:
    """The number of passes until the buckets are final: the second pass rearranges them, and with a static
    graph also the third."""
    return 3 if model.static_graph else 2
