"""Compressed synchronization for any DistributedDataParallel script."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from gradwire.codecs.interface import Codec
from gradwire.harness.comm.collective.collectives import Fabric
from gradwire.harness.comm.topology.schedule import Topology, made_for
from gradwire.harness.comm.transport.pacer import PacedLink
from gradwire.harness.comm.transport.replay import make_replays
from gradwire.harness.comm.world.process import ProcessWorld
from gradwire.harness.library.agreement import Agreement
from gradwire.harness.library.bucket_hook import BucketHook
from gradwire.harness.library.decisions import check_replayed
from gradwire.harness.library.failures import SynchronizationError, in_words
from gradwire.harness.library.modes import in_no_mode
from gradwire.harness.library.one_at_a_time import Call, calling
from gradwire.harness.library.options import (
    AttachOptions,
    agree_s,
    check_graphs,
    check_model,
    check_runs,
    describe,
    make_checked_codec,
    make_checked_schedule,
    make_options,
    num_nodes,
    with_nodes,
    with_timeout,
)
from gradwire.harness.library.process_group import AGREE_S, check_group
from gradwire.harness.library.reducer import first_buckets
from gradwire.harness.library.serving import check_unused, serve
from gradwire.harness.library.synchronizer import Synchronizer
from gradwire.harness.network.links import bytes_per_second
from gradwire.harness.parallel.buckets import BucketLayouts


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
    ranks share a node, by default those that torchrun has started on each machine, or all. A rank that is
    silent for `timeout_s` seconds counts as lost: by default as long as a collective of the process group may
    take, and 120 within this call. `check_hashes`
    compares the result over all ranks after every synchronization. On GPUs rounds are captured in CUDA graphs
    and replayed where the codec allows it: `graphs="always"` refuses other codecs, `"never"` does not do it.

    The ranks compare their arguments before anything is sent. Raises ValueError on every rank where they
    differ, naming who has what, and where an argument, codec or model is refused on one of them, or two
    threads attach at once; TimeoutError naming the ranks that have not called it within `timeout_s` seconds;
    ConnectionError where the process group's store is gone; SynchronizationError where the ranks agree and
    cannot be connected, which `backward()` raises when a synchronization fails.
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
    }
    with calling("attach()") as call:
        return _attach(model, codec, topology, given, codec_options, call)


def _attach(
    model: DistributedDataParallel,
    codec: str | Codec,
    topology: str | Topology,
    given: dict[str, Any],
    codec_options: dict[str, Any],
    call: Call,
) -> Synchronizer:
    try:
        options = make_options(AttachOptions, **given)
    except ValueError as error:
        _refuse(model, error)
        raise
    agreement = _agreement(model, agree_s(options))
    try:
        check_model(model)
        call.check()
        own = make_checked_codec(codec, codec_options)
        check_unused(own, "attach()")
        size, device = dist.get_world_size(model.process_group), model.device
        check_graphs(own, device, options)
        options = with_timeout(with_nodes(options, size), model.process_group, device)
        schedule = make_checked_schedule(topology, size, num_nodes(options, size))
        made = made_for(schedule, size, num_nodes(options, size))
        layouts = BucketLayouts(model.module, check_runs(own, made, device, options))
        layouts.check(first_buckets(model), device)
        description = describe(model, own, made, options)
        check_replayed(own, description)
    except Exception as error:
        if agreement is not None:
            agreement.refuse(str(error) or type(error).__name__)
        raise
    assert agreement is not None, "a model in DistributedDataParallel has a process group"
    agreement.agree(description, last_word=call.refusal)
    assert options.timeout_s is not None, "with_timeout() fills it in"
    try:
        world = ProcessWorld(
            Fabric(schedule, num_nodes=num_nodes(options, size), segments=options.segments),
            device,
            group=model.process_group,
            link=None if options.rate_mbit is None else PacedLink(bytes_per_second(options.rate_mbit)),
            in_flight=options.buckets,
            timeout_s=options.timeout_s,
            connect_s=agreement.timeout_s,
            overlap=options.overlap,
            trace=own.traits.clock_driven,
            replays=make_replays(options.graphs, device),
        )
    except RuntimeError as error:  # torch's words name neither the rank nor what it was waiting for
        raise SynchronizationError(
            f"rank {agreement.rank}: attach(): the ranks agree, but cannot be connected within "
            f"{agreement.timeout_s:g} s: {in_words(error).splitlines()[0]}; has one of them ended?"
        ) from error
    agreement.timeout_s = options.timeout_s
    hook = BucketHook(world, own, layouts, seed=options.seed, check_hashes=options.check_hashes)
    serve(own, hook)
    return Synchronizer(model, hook, agreement, description)


def _agreement(model: Any, timeout_s: float) -> Agreement | None:
    """The ranks that make this call: those of the model, or all if it names none."""
    if not dist.is_initialized():
        return None
    wrapped = getattr(model, "_orig_mod", model)
    group = wrapped.process_group if isinstance(wrapped, DistributedDataParallel) else dist.group.WORLD
    try:
        check_group(group, "attach()")
    except ValueError:  # `check_model` says so
        return None
    assert group is not None
    return Agreement(group, timeout_s, "attach()")


def _refuse(model: Any, error: ValueError) -> None:
    agreement = _agreement(model, AGREE_S)
    if agreement is not None:
        agreement.refuse(str(error))
