"""Construction of a run's objects from a validated configuration."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState

from gradwire.harness.comm.collective.collectives import Fabric
from gradwire.harness.comm.nodes import num_nodes
from gradwire.harness.comm.topology.registry import make_schedule
from gradwire.harness.comm.transport.captured_rounds import make_captured_rounds
from gradwire.harness.comm.transport.pacer import PacedLink
from gradwire.harness.comm.transport.staging import HostCopies
from gradwire.harness.comm.world.interface import World
from gradwire.harness.comm.world.process import Connections, ProcessWorld
from gradwire.harness.comm.world.virtual import VirtualWorld
from gradwire.harness.data.prepare import prepared_folder, read_prepared
from gradwire.harness.data.token_data import PreparedData
from gradwire.harness.models.build import build_model, num_segments, quiet_transformers
from gradwire.harness.network.links import bytes_per_second
from gradwire.harness.network.settings import PacedConfig
from gradwire.harness.objectives.interface import Objective
from gradwire.harness.objectives.registry import make_objective
from gradwire.harness.parallel.interface import Parallelism, ParallelSetup
from gradwire.harness.parallel.registry import parallel_kind
from gradwire.harness.parallel.update import OptimizerSettings
from gradwire.harness.timing.simulate.build import make_clock
from gradwire.harness.trainer.settings import RunConfig, TrainConfig, WorldConfig

OPTIMIZER_FIELDS = ("weight_decay", "beta1", "beta2", "adam_epsilon", "clip_norm", "momentum")


@dataclass(frozen=True)
class Parts:
    """The parts that the loop trains with. `began` is when they were begun to be built, by perf_counter:
    the attempt counts from then."""

    world: World
    parallelism: Parallelism
    data: PreparedData
    objective: Objective
    began: float


def load_data(config: RunConfig) -> PreparedData:
    """The run's data, from the cache if present: the launcher has already checked its digests, once for all
    ranks."""
    return read_prepared(prepare(config, verified=True), config.dataset)


def prepare(config: RunConfig, *, verified: bool = False) -> Path:
    """Returns the folder of the run's data in the cache, without loading anything.

    Unless `verified`, its digests are checked, and it is made again if damaged. `eval.max_sequences` bounds
    the held-out split if the dataset itself does not.
    """
    dataset = config.dataset
    if dataset.max_held_out_sequences is None:
        dataset = replace(dataset, max_held_out_sequences=config.eval.max_sequences)
    return prepared_folder(dataset, config.model, verified=verified)


def build(config: RunConfig, device: torch.device) -> Parts:
    """Builds world, model and parallelism. Process groups must exist (of world size one for
    `cluster=virtual`)."""
    began = time.perf_counter()
    quiet_transformers()
    data = load_data(config)
    model = build_model(config.model, data.vocab_size, seed=config.seed, labels=data.labels)
    objective = make_objective(config.model.objective, data, num_segments(model))
    accelerator = _accelerator(config, device)
    kind = parallel_kind(config.parallel.name)
    world = build_world(config, device, kind.stages(config.parallel))
    parallelism = kind.build(parallel_setup(config), model, accelerator, world)
    return Parts(world, parallelism, data, objective, began)


def parallel_setup(config: RunConfig) -> ParallelSetup:
    """The settings of the run that its parallelism needs."""
    train = config.train
    return ParallelSetup(
        model=config.model,
        parallel=config.parallel,
        codec=config.codec,
        topology=config.topology.name,
        workers=config.cluster.size,
        device=config.cluster.device,
        accumulation=train.accumulation or 1,
        optimizer=optimizer_settings(train),
        seed=config.seed,
        check_hashes=config.measure.check_hashes,
    )


def optimizer_settings(train: TrainConfig) -> OptimizerSettings:
    """The optimizer of the parameters, and its settings."""
    own = {name: getattr(train, name) for name in OPTIMIZER_FIELDS}
    return OptimizerSettings(name=train.optimizer, **own)


def build_world(config: WorldConfig, device: torch.device, stages: int = 1) -> World:
    """The world of the ranks, in `stages` stages, connected by the run's topology and network."""
    cluster, network, measure = config.cluster, config.network, config.measure
    fabric = Fabric(
        partial(make_schedule, config.topology.name),
        num_nodes=num_nodes(cluster, network),
        segments=config.overlap.segments,
        stages=stages,
    )
    if cluster.name == "virtual":
        clock = make_clock(
            network,
            cluster.size,
            in_flight=config.overlap.buckets,
            overlap=config.overlap.enabled,
            seed=config.seed,
            codec=config.codec,
        )
        on_disk = cluster.gradients == "disk"  # they come back to other places in each step
        captured = None if on_disk else make_captured_rounds(config.kernels.graphs, device)
        return VirtualWorld(
            cluster.size,
            fabric,
            device,
            clock=clock,
            spans=measure.spans,
            debug=measure.check_hashes,
            inputs=cluster.gradients,
            captured=captured,
        )
    link = None
    if isinstance(network, PacedConfig):
        link = PacedLink(bytes_per_second(network.rate_mbit), network.latency_s)
    return ProcessWorld(
        fabric,
        device,
        Connections(
            link=link,
            timeout_s=cluster.timeout_s,
            in_flight=config.overlap.buckets,
            overlap=config.overlap.enabled,
            host_copies=HostCopies(device) if cluster.share_device else None,
        ),
        spans=measure.spans,
        trace=measure.trace and measure.spans,
        captured=make_captured_rounds(config.kernels.graphs, device),
    )


def _accelerator(config: RunConfig, device: torch.device) -> Accelerator:
    """A new Accelerator. Its state is per process, and a process may run several jobs, so it is reset
    first.
    """
    AcceleratorState._reset_state(reset_partial_state=True)
    PartialState._reset_state()
    GradientState._reset_state()
    precision = "bf16" if config.train.precision == "bf16" else "no"
    return Accelerator(cpu=device.type == "cpu", mixed_precision=precision)
