"""Compressed synchronization for anybody's DistributedDataParallel script."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from gradwire.codecs.interface import Codec, Layout
from gradwire.codecs.registry import make_codec
from gradwire.harness.collective.collectives import Fabric
from gradwire.harness.parallel.buckets import BucketLayouts
from gradwire.harness.parallel.hook import Synchronizer
from gradwire.harness.topology.registry import make_schedule
from gradwire.harness.topology.schedule import Topology
from gradwire.harness.transport.uplink import Link
from gradwire.harness.world.process import ProcessWorld


def attach(
    model: DistributedDataParallel,
    codec: str | Codec = "dynamiq",
    topology: str | Topology = "ring",
    *,
    seed: int = 0,
    overlap: bool = True,
    buckets: int = 2,
    timeout_s: float = 120.0,
    rate_mbit: float | None = None,
    check_hashes: bool = False,
    **codec_options: Any,
) -> Synchronizer:
    """Synchronize `model`'s gradients through `codec` over `topology` from now on.

    Call it on every rank, once, before training:

        model = DistributedDataParallel(model)
        gradwire.attach(model, codec="dynamiq", topology="butterfly", bits=4)

    `codec` is a name (with its options as keywords) or an instance; `topology` a name or a function
    from world size to schedule. `overlap=False` synchronizes after the backward pass; at most
    `buckets` buckets are in flight. `rate_mbit` limits each rank's sends (gloo). `check_hashes`
    compares the result over all ranks after every synchronization.

    The result's `world.traffic` counts the bytes sent; `world.close()` ends its threads. An error
    during a synchronization surfaces in `backward()`; `raise_error()` raises the original.
    Raises ValueError for an unknown name, a bad option, or a codec that cannot run here.
    """
    if not isinstance(model, DistributedDataParallel):
        raise ValueError(f"attach() needs a DistributedDataParallel model, got {type(model).__name__}")
    if getattr(model, "_comm_hooks", ()):  # asked before ranks connect, which a refusal would cut short
        raise RuntimeError("attach(): this model has registered a communication hook already")
    if isinstance(codec, str):
        codec = make_codec(codec, **codec_options)
    elif codec_options:
        raise ValueError(f"codec options {sorted(codec_options)} have no effect on a codec instance")
    schedule = partial(make_schedule, topology) if isinstance(topology, str) else topology
    device = next(model.parameters()).device
    refuse = _supported(codec, schedule, model, device)
    world = ProcessWorld(
        Fabric(lru_cache(schedule)),
        device,
        group=model.process_group,
        link=None if rate_mbit is None else Link(rate_mbit * 1e6 / 8),
        in_flight=buckets,
        timeout_s=timeout_s,
    )
    layouts = BucketLayouts(model.module, refuse)
    synchronizer = Synchronizer(world, codec, layouts, seed=seed, overlap=overlap, check_hashes=check_hashes)
    try:
        model.register_comm_hook(None, synchronizer.hook)
    except RuntimeError:  # it has a hook already
        world.close()
        raise
    return synchronizer


def _supported(
    codec: Codec, schedule: Topology, model: DistributedDataParallel, device: torch.device
) -> Callable[[Layout], str | None]:
    """The question whether a bucket can be synchronized, asked here for one of usual size."""
    size = dist.get_world_size(model.process_group)
    ask = partial(codec.supports, schedule(size).name, size)
    reason = ask(Layout.flat(1 << 20, device=device))
    if reason is not None:
        raise ValueError(reason)
    return ask
