"""`parallel=ddp` from a run's settings: over real processes or in the virtual cluster."""

from __future__ import annotations

import dataclasses
from typing import Any

from accelerate import Accelerator
from torch import nn

from gradwire.codecs.interface import Layout
from gradwire.codecs.registry import make_codec
from gradwire.harness.comm.world.interface import World
from gradwire.harness.comm.world.process import ProcessWorld
from gradwire.harness.comm.world.virtual import VirtualWorld
from gradwire.harness.parallel.ddp import DataParallel
from gradwire.harness.parallel.interface import Parallelism, ParallelSetup
from gradwire.harness.parallel.virtual import VirtualDataParallel


def supports(setup: ParallelSetup) -> str | None:
    """Returns None, or the reason why such a run is impossible, in one line with the fix."""
    if setup.parallel.static_graph and setup.accumulation > 1:
        return (
            "parallel.static_graph=true cannot be combined with train.accumulation="
            f"{setup.accumulation}: DistributedDataParallel loses gradients; use static_graph=false"
        )
    # The buckets are not known yet; they are asked about again after warm-up.
    bucket = Layout.flat(1 << 20, device=setup.device)
    reason = make_codec(**setup.codec).supports(setup.topology, setup.workers, bucket)
    if reason is None:
        return None
    codec = f"codec={setup.codec['name']}"
    said = reason if reason.startswith(codec) else f"{codec}: {reason}"
    return f"{said}; given are cluster.workers={setup.workers} and topology={setup.topology}"


def build(setup: ParallelSetup, model: nn.Module, accelerator: Accelerator, world: World) -> Parallelism:
    """Builds the parallelism for `world`'s kind, with one codec instance per hosted rank."""
    ddp = dataclasses.asdict(setup.parallel)
    del ddp["name"]
    options: dict[str, Any] = {
        "topology": setup.topology,
        "seed": setup.seed,
        "check_hashes": setup.check_hashes,
        **ddp,
    }
    if isinstance(world, ProcessWorld):
        codec = make_codec(**setup.codec)
        return DataParallel(
            model, accelerator, world, codec, setup.optimizer, overlap=setup.overlap, **options
        )
    assert isinstance(world, VirtualWorld)
    codecs = {rank: make_codec(**setup.codec) for rank in world.ranks}
    return VirtualDataParallel(
        model, accelerator, world, codecs, setup.optimizer, gradients=setup.gradients, **options
    )
