"""`parallel=ddp` from a configuration: over real processes or in the virtual cluster."""

from __future__ import annotations

from typing import Any

from accelerate import Accelerator
from omegaconf import DictConfig
from torch import nn

from gradwire.codecs.interface import Codec, Layout
from gradwire.codecs.registry import make_codec
from gradwire.harness.comm.world.interface import World
from gradwire.harness.comm.world.process import ProcessWorld
from gradwire.harness.comm.world.virtual import VirtualWorld
from gradwire.harness.parallel.ddp import DataParallel
from gradwire.harness.parallel.interface import Parallelism
from gradwire.harness.parallel.update import OptimizerSettings
from gradwire.harness.parallel.virtual import VirtualDataParallel

OPTIMIZER_FIELDS = ("lr", "weight_decay", "beta1", "beta2", "adam_epsilon", "clip_norm")


def supports(config: DictConfig) -> str | None:
    """Returns None, or the reason why this configuration cannot run, in one line with the fix."""
    if config.parallel.static_graph and config.train.accumulation > 1:
        return (
            "parallel.static_graph=true cannot be combined with train.accumulation="
            f"{config.train.accumulation}: DistributedDataParallel loses gradients; use static_graph=false"
        )
    workers, topology = config.cluster.workers, config.topology.name
    # The buckets are not known yet; they are asked about again after warm-up.
    bucket = Layout.flat(1 << 20, device=config.cluster.device)
    reason = make_configured_codec(config).supports(topology, workers, bucket)
    if reason is None:
        return None
    codec = f"codec={config.codec.name}"
    said = reason if reason.startswith(codec) else f"{codec}: {reason}"
    return f"{said}; given are cluster.workers={workers} and topology={topology}"


def build(config: DictConfig, model: nn.Module, accelerator: Accelerator, world: World) -> Parallelism:
    """Builds the parallelism for `world`'s kind, with one codec instance per hosted rank."""
    train = config.train
    settings = OptimizerSettings(**{name: train[name] for name in OPTIMIZER_FIELDS})
    options: dict[str, Any] = {
        "topology": config.topology.name,
        "seed": config.seed,
        "check_hashes": config.measure.check_hashes,
        **{str(key): value for key, value in config.parallel.items() if key != "name"},
    }
    if isinstance(world, ProcessWorld):
        codec, overlap = make_configured_codec(config), config.overlap.enabled
        return DataParallel(model, accelerator, world, codec, settings, overlap=overlap, **options)
    assert isinstance(world, VirtualWorld)
    codecs = {rank: make_configured_codec(config) for rank in world.ranks}
    where = config.cluster.gradients
    return VirtualDataParallel(model, accelerator, world, codecs, settings, gradients=where, **options)


def make_configured_codec(config: DictConfig) -> Codec:
    """Makes a codec with the options under `codec`."""
    return make_codec(**{str(key): value for key, value in config.codec.items()})
