"""Compressed weights and gradients for any FSDP2 script."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from gradwire.codecs.interface import Codec, Layout
from gradwire.harness.comm.topology.registry import make_schedule
from gradwire.harness.comm.topology.schedule import Schedule, Topology, made_for
from gradwire.harness.comm.world.process import Connections, ProcessWorld
from gradwire.harness.library.calls import (
    agreed,
    calling,
    check_unused,
    connect,
    connecting,
    in_no_mode,
    serve,
)
from gradwire.harness.library.decisions import check_given_decisions
from gradwire.harness.library.options import (
    ShardOptions,
    check_device,
    check_runs,
    describe_call,
    make_checked_codec,
    make_checked_schedule,
    num_nodes,
    with_nodes,
    with_timeout,
)
from gradwire.harness.library.shard_gradients import GradientSlices, ReplicaMeans, gradient_slices
from gradwire.harness.library.shard_modules import (
    WHAT,
    ShardedModule,
    describe_modules,
    first_process_groups,
    sharded_modules,
)
from gradwire.harness.library.shard_step import ShardPlan, ShardStep, part_key
from gradwire.harness.library.shard_synchronizer import ShardSynchronizer
from gradwire.harness.parallel.buckets import BucketLayouts
from gradwire.harness.parallel.requirements import codecs_with_scatter

RING = partial(make_schedule, "ring")

SEEDS_APART = 1_000_003
"""The difference between the seeds of two replicas of shards."""


@in_no_mode
def shard_hooks(
    model: Any,
    codec: str | Codec = "all_to_all",
    topology: str | Topology = "ring",
    *,
    weights: str = "exact",
    weight_bits: int = 4,
    weight_group: int = 2048,
    seed: int = 0,
    segments: int = 1,
    timeout_s: float | None = None,
    rate_mbit: float | None = None,
    ranks_per_node: int | None = None,
    check_hashes: bool = False,
    graphs: str = "auto",
    share_device: bool = False,
    **codec_options: Any,
) -> ShardSynchronizer:
    """Scatter the gradients of `model`, sharded by `fully_shard`, with `codec`, and gather its weights as
    `weights` specifies, from now on.

    Call it on every rank, after the last `fully_shard` and before training, with the same arguments:

    fully_shard(model)
        synchronizer = gradwire.shard_hooks(model, codec="all_to_all", weights="qwd")

    On a mesh of two dimensions (replicas of shards), the codec also averages each shard over the replicas;
    for a model of `replicate` (torch.distributed._composable.replicate_with_fsdp) it averages all gradients.

    `codec` is one that has a scatter, with its options as keywords. `weights` are sent `exact`, quantized
    (`qw`), or as quantized differences from those that all ranks hold (`qwd`), in codes of `weight_bits` with
    a scale for each `weight_group`. All other keywords are those of `attach`. A pass waits for each module's
    weights and gradients.

    Raises ValueError on every rank if arguments differ, naming the ranks and their values, or if an argument,
    codec or model is refused on any rank; TimeoutError naming the ranks that have not called it. A pass whose
    synchronization fails raises SynchronizationError.
    """
    given: dict[str, Any] = {
        "weights": weights,
        "weight_bits": weight_bits,
        "weight_group": weight_group,
        "seed": seed,
        "segments": segments,
        "timeout_s": timeout_s,
        "rate_mbit": rate_mbit,
        "ranks_per_node": ranks_per_node,
        "check_hashes": check_hashes,
        "graphs": graphs,
        "share_device": share_device,
    }
    with calling(WHAT) as call:
        agreement, plan = agreed(
            call,
            ShardOptions,
            given,
            partial(first_process_groups, model),
            partial(_plan, model, codec, topology, codec_options),
        )
        with connecting(agreement, WHAT):
            step = _connected(plan, agreement.timeout_s)
        assert plan.options.timeout_s is not None, "with_timeout() fills it in"
        agreement.timeout_s = plan.options.timeout_s
        serve(plan.codec, step)
        return ShardSynchronizer(step, agreement, plan.description)


def _plan(
    model: Any,
    codec: str | Codec,
    topology: str | Topology,
    codec_options: dict[str, Any],
    options: ShardOptions,
) -> ShardPlan:
    _check_weights(options)
    modules = sharded_modules(model, quantized=options.weights != "exact")
    _check_unhooked(modules)
    groups, device = modules[0].process_groups, modules[0].device
    own = make_checked_codec(codec, codec_options, ShardOptions)
    check_unused(own, WHAT)
    if not groups:
        raise ValueError(
            f"{WHAT}: FSDP2 neither gathers nor scatters on one rank; start two or more, or leave it out"
        )
    check_device(own, device, groups[0], options)
    size = groups[0].size()
    options = with_timeout(with_nodes(options, size), groups[0], device)
    nodes = num_nodes(options, size)
    made = make_checked_schedule(topology, size, nodes)
    schedule = made_for(made, size, nodes)
    refuse = check_runs(own, schedule, device, options)
    slices, layouts, replicas = list[GradientSlices](), list[Layout](), modules[0].replicas
    if modules[0].shards is None:
        named = BucketLayouts(model, refuse)
        layouts = [named.named(each.names(model), torch.float32, device) for each in modules]
    else:
        _check_scatters(own, schedule, codec_options)
        slices = gradient_slices(own, schedule.kept, modules, device)
    buckets = [each.layout for each in slices] or layouts
    reason = own.refuses_buckets(buckets, size, schedule.num_chunks)
    if reason is not None:
        raise ValueError(f"{WHAT}: {reason}")
    if replicas is not None and not layouts:
        make_checked_schedule(topology, replicas.size(), replicas.size())
        check_runs(own, made_for(made, replicas.size(), replicas.size()), device, options)
        layouts = [
            Layout.flat(each.slice_numel, f"shard of {each.name or 'model'}", device) for each in modules
        ]
    description = {
        **describe_call(own, schedule, options),
        "world size": " by ".join(str(each.size()) for each in groups),
        "modules": describe_modules(modules),
        "device": device.type,
    }
    check_given_decisions(own, description)
    return ShardPlan(options, own, made, modules, slices, layouts, replicas, description)


def _connected(plan: ShardPlan, connect_s: float) -> ShardStep:
    """Connects the ranks of a mesh along its dimensions, and those of parts of them, in this order."""
    options, own, modules = plan.options, plan.codec, plan.modules
    group, device = modules[0].process_groups[0], modules[0].device
    trace = own.traits.clock_driven

    def connected(topology: Topology, group: dist.ProcessGroup, nodes: int | None = None) -> ProcessWorld:
        connections = Connections(group, connect_s=connect_s, in_flight=1)
        return connect(topology, connections, device, options, nodes=nodes, trace=trace)

    world, between = connected(plan.topology, group), None
    if plan.replicas is group:
        between = world
    elif plan.replicas is not None:
        between = connected(plan.topology, plan.replicas, nodes=plan.replicas.size())
    parts = {part_key(each.part): each.part for each in modules if each.part is not None}
    part_worlds = {key: connected(RING, part, nodes=1) for key, part in parts.items()}
    replicas, seed = None, options.seed
    if between is not None:
        inner = own if between is world else copy.deepcopy(own)
        replicas = ReplicaMeans(between, inner, plan.layouts, seed=seed, check_hashes=options.check_hashes)
        if between is not world:  # what one replica's codec rounds up another's need not
            seed = (seed + between.rank * SEEDS_APART) % 2**31
    return ShardStep(plan, world, part_worlds, replicas, seed)


def _check_weights(options: ShardOptions) -> None:
    """Raises ValueError for settings of quantized weights when weights are exact."""
    for name in ("weight_bits", "weight_group"):
        value = getattr(options, name)
        if options.weights == "exact" and value != getattr(ShardOptions, name):
            raise ValueError(
                f"{WHAT}: {name}={value} has no effect with weights=exact; leave it out, or choose qw or qwd"
            )


def _check_unhooked(modules: list[ShardedModule]) -> None:
    """Raises ValueError for a module that already has hooks: two synchronizers could not be detached in any
    order."""
    from gradwire.harness.library.shard_comms import (  # PyTorch is new enough for it: the modules say so
        Hook,
        ReplicaAverage,
    )

    for module in modules:
        if any(isinstance(each, Hook | ReplicaAverage) for each in module.communication):
            raise ValueError(
                f"{WHAT}: {module.name or 'the model'} already has hooks; call detach() on what "
                f"{WHAT} returned"
            )


def _check_scatters(codec: Codec, schedule: Schedule, given: dict[str, Any]) -> None:
    """Raises ValueError unless the codec can scatter over this topology."""
    if not codec.scatters:
        names = ", ".join(codecs_with_scatter())
        raise ValueError(f"{WHAT}: codec={codec.name} has no scatter; choose one of {names}")
    if schedule.size > 1 and not schedule.sums_on_the_way:
        raise ValueError(
            f"{WHAT}: topology={schedule.name} computes no partial sums and has no reduce-scatter; use ring"
        )
    if given.get("exclude"):
        raise ValueError(
            f"{WHAT}: exclude={given['exclude']} has no effect: FSDP2 hands over slices of several "
            "parameters together; leave it out, or shard the modules of these parameters apart"
        )
