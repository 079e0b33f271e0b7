"""Compressed synchronization for any DistributedDataParallel script."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from gradwire.codecs.interface import Codec
from gradwire.harness.comm.topology.schedule import Topology, made_for
from gradwire.harness.comm.world.process import Connections
from gradwire.harness.library.agreement import Statement
from gradwire.harness.library.bucket_hook import BucketHook
from gradwire.harness.library.calls import (
    agreed,
    calling,
    check_unused,
    connect,
    connecting,
    in_no_mode,
    serve,
)
from gradwire.harness.library.ddp_internals import first_buckets
from gradwire.harness.library.decisions import check_given_decisions
from gradwire.harness.library.options import (
    AttachOptions,
    check_device,
    check_runs,
    describe_call,
    make_checked_codec,
    make_checked_schedule,
    num_nodes,
    with_nodes,
    with_timeout,
)
from gradwire.harness.library.parameters import check_model, describe_model
from gradwire.harness.library.synchronizer import Synchronizer
from gradwire.harness.parallel.buckets import BucketLayouts

WHAT = "attach()"


@in_no_mode
def attach(
    model: DistributedDataParallel,
    codec: str | Codec = "dynamiq",
    topology: str | Topology = "ring",
    *,
    seed: int = 0,
    overlap: bool = True,
    buckets: int = 2,
    segments: int = 1,
    timeout_s: float | None = None,
    rate_mbit: float | None = None,
    ranks_per_node: int | None = None,
    check_hashes: bool = False,
    graphs: str = "auto",
    share_device: bool = False,
    **codec_options: Any,
) -> Synchronizer:
    """Synchronize `model`'s gradients through `codec` over `topology` from now on.

    Call it on every rank, before training, with the same arguments:

    model = DistributedDataParallel(model)
        synchronizer = gradwire.attach(model, codec="dynamiq", topology="butterfly", bits=4)

    `codec` is a name, with its options as keywords, or an instance that serves no other model; `topology` a
    name or a function from world size to schedule. `seed`, the same on all ranks, is that of all randomness.
    `overlap=False` synchronizes after the backward pass; at most `buckets` buckets are in flight, with each
    message in so many `segments`. `rate_mbit` limits each rank's sends (gloo). `ranks_per_node` consecutive
    ranks share a node, by default those that torchrun has started on each machine, or all. A rank that sends
    nothing for `timeout_s` seconds is considered lost; by default this is the timeout of the process group's
    collectives, and 120 seconds within this call. `check_hashes` compares the result over all ranks after
    every synchronization. On GPUs rounds are captured in CUDA graphs if the codec allows it;
    `graphs="always"` refuses other codecs, `"never"` disables capture. With `share_device=True` several ranks
    may use one GPU, for tests: gloo carries their messages through host memory.

    The ranks compare their arguments before anything is sent. Raises ValueError on every rank if arguments
    differ, naming the ranks and their values, if an argument, codec or model is refused on any rank, or if
    two threads attach at once; TimeoutError naming the ranks that have not called it within `timeout_s`
    seconds; ConnectionError if the process group's store is gone; SynchronizationError if the ranks agree but
    cannot be connected. `backward()` raises SynchronizationError when a synchronization fails.
    """
    given: dict[str, Any] = {
        "seed": seed,
        "overlap": overlap,
        "buckets": buckets,
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
            AttachOptions,
            given,
            partial(_groups, model),
            partial(_plan, model, codec, topology, codec_options),
        )
        options, device = plan.options, model.device
        with connecting(agreement, WHAT):
            world = connect(
                plan.topology,
                Connections(
                    model.process_group,
                    connect_s=agreement.timeout_s,
                    in_flight=options.buckets,
                    overlap=options.overlap,
                ),
                device,
                options,
                trace=plan.codec.traits.clock_driven,
            )
        assert options.timeout_s is not None, "with_timeout() fills it in"
        agreement.timeout_s = options.timeout_s
        seed, check = options.seed, options.check_hashes
        hook = BucketHook(world, plan.codec, plan.layouts, seed=seed, check_hashes=check)
        serve(plan.codec, hook)
        return Synchronizer(model, hook, agreement, plan.description)


@dataclass(frozen=True)
class AttachPlan:
    """The checked arguments of `attach`, with the description that must be equal on all ranks."""

    options: AttachOptions
    codec: Codec
    topology: Topology
    layouts: BucketLayouts
    description: Statement


def _plan(
    model: DistributedDataParallel,
    codec: str | Codec,
    topology: str | Topology,
    codec_options: dict[str, Any],
    options: AttachOptions,
) -> AttachPlan:
    check_model(model)
    own = make_checked_codec(codec, codec_options)
    check_unused(own, WHAT)
    size, device = dist.get_world_size(model.process_group), model.device
    check_device(own, device, model.process_group, options)
    options = with_timeout(with_nodes(options, size), model.process_group, device)
    made = make_checked_schedule(topology, size, num_nodes(options, size))
    schedule = made_for(made, size, num_nodes(options, size))
    layouts = BucketLayouts(model.module, check_runs(own, schedule, device, options))
    reason = own.refuses_buckets(layouts.check(first_buckets(model), device), size, schedule.num_chunks)
    if reason is not None:
        raise ValueError(reason)
    description = {
        **describe_call(own, schedule, options),
        "world size": str(schedule.size),
        **describe_model(model),
    }
    check_given_decisions(own, description)
    return AttachPlan(options, own, made, layouts, description)


def _groups(model: Any) -> list[dist.ProcessGroup]:
    """The process group of the model's ranks, as a list; empty if the model has none."""
    wrapped = getattr(model, "_orig_mod", model)
    return [wrapped.process_group] if isinstance(wrapped, DistributedDataParallel) else []
