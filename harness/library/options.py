"""The arguments of `attach` and `shard_hooks`: their checks, the codec and topology made from them, and their
description for other ranks."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist

from gradwire.codecs.describe import called, describe_codec, digest
from gradwire.codecs.fields import (
    TEXT,
    Rule,
    at_least,
    between,
    check_value,
    one_of,
    plain,
    refusal,
    rules_of,
    rules_with,
)
from gradwire.codecs.interface import Codec, Layout
from gradwire.codecs.options.common import CommonOptions
from gradwire.codecs.registry import codec_names, codec_options, make_codec
from gradwire.codecs.wording import as_python, did_you_mean
from gradwire.codecs.wrappers.decisions import with_decisions
from gradwire.codecs.wrappers.exclude import Exclude
from gradwire.harness.comm.nodes import check_divides, local_world
from gradwire.harness.comm.settings import GRAPHS, ClusterConfig, OverlapConfig
from gradwire.harness.comm.topology.check import check_schedule
from gradwire.harness.comm.topology.registry import TOPOLOGIES, make_schedule
from gradwire.harness.comm.topology.schedule import Schedule, Topology, made_for
from gradwire.harness.comm.transport.staging import REFUSES_CAPTURE
from gradwire.harness.parallel.settings import ShardedConfig
from gradwire.harness.parallel.synchronize import refused_graphs
from gradwire.harness.runtime.errors import fitted

AGREE_S = 120.0
"""Seconds that ranks wait for one another to call `attach` and to connect, unless `timeout_s` is given."""


def _as_in(schema: type, name: str) -> Any:
    """A field with the default and the range that it has in a run's configuration."""
    (field,) = (field for field in dataclasses.fields(schema) if field.name == name)
    return dataclasses.field(default=field.default, metadata=field.metadata)


@dataclass(frozen=True)
class CommonArguments:
    """The keywords that `attach` and `shard_hooks` share, apart from the codec's."""

    seed: int = between(0, 2**31 - 1, 0)  # of all randomness
    segments: int = _as_in(OverlapConfig, "segments")  # per message: one is encoded while another is sent
    # a rank silent for this long counts as lost; None: the process group's own timeout
    timeout_s: float | None = at_least(0.1, None, 604_800)
    rate_mbit: float | None = at_least(1e-3, None, 1e9)  # Mbit/s out of each rank (gloo); None: unlimited
    # consecutive ranks on each node; None: torchrun's on each machine, else all
    ranks_per_node: int | None = _as_in(ClusterConfig, "ranks_per_node")
    check_hashes: bool = False  # compare the result over all ranks after every synchronization
    graphs: str = one_of(*GRAPHS)  # which rounds are captured in CUDA graphs
    # several ranks use one GPU, and gloo carries their messages through host memory; for tests
    share_device: bool = False


@dataclass(frozen=True)
class AttachOptions(CommonArguments):
    """The keywords of `attach` apart from the codec's."""

    overlap: bool = True  # synchronize while the backward pass is running; False: after it
    buckets: int = _as_in(OverlapConfig, "buckets")  # in flight at once, at most


@dataclass(frozen=True)
class ShardOptions(CommonArguments):
    """The keywords of `shard_hooks` apart from the codec's; the ones for weights are those of
    `parallel=sharded`."""

    weights: str = _as_in(ShardedConfig, "weights")  # exact, quantized, or quantized differences
    weight_bits: int = _as_in(ShardedConfig, "weight_bits")  # of a quantized weight or difference
    weight_group: int = _as_in(ShardedConfig, "weight_group")  # of them that share a scale


Options = TypeVar("Options", bound=CommonArguments)


def make_options(schema: type[Options], **values: Any) -> Options:
    """Makes the options with these values. Raises ValueError giving the name, the value and the allowed
    values."""
    check_arguments(schema, values)
    return schema(**{name: plain(value) for name, value in values.items()})


def with_nodes(options: Options, size: int) -> Options:
    """The options with `ranks_per_node` filled in for `size` ranks. Raises ValueError if it does not fit."""
    if options.ranks_per_node is not None:
        check_divides("ranks_per_node", options.ranks_per_node, "world size", size)
        return options
    whole = size == dist.get_world_size()  # a launcher knows where all ranks are, not those of a part
    return dataclasses.replace(options, ranks_per_node=(local_world(size) if whole else None) or size)


def with_timeout(options: Options, group: dist.ProcessGroup, device: torch.device) -> Options:
    """The options with the timeout of `group` filled in as `timeout_s`, so that a rank that works alone, e.g.
    on an evaluation, has as much time as with the group's own collectives."""
    if options.timeout_s is not None:
        return options
    return dataclasses.replace(options, timeout_s=group_timeout_s(group, device))


def check_group(group: Any, what: str) -> None:
    """Raises ValueError for a process group that the script has destroyed."""
    with contextlib.suppress(ValueError, KeyError, RuntimeError):  # which of them: by the version of PyTorch
        if dist.is_initialized() and dist.get_rank(group) >= 0:
            return
    raise ValueError(
        f"{what}: the model's process group has been destroyed; call init_process_group() and wrap the model "
        "anew"
    )


def group_timeout_s(group: dist.ProcessGroup, device: torch.device) -> float:
    """The seconds after which a collective of the process group fails."""
    found = dist.distributed_c10d.default_pg_timeout
    with contextlib.suppress(RuntimeError):  # it has no backend for this device
        backend = group._get_backend(device)
        backend = getattr(backend, "wrapped_pg", backend)  # with TORCH_DISTRIBUTED_DEBUG=DETAIL
        found = getattr(getattr(backend, "options", None), "_timeout", found)
    return found.total_seconds()


def num_nodes(options: CommonArguments, size: int) -> int:
    """The number of nodes over which `size` ranks are spread, by `with_nodes`."""
    assert options.ranks_per_node is not None
    return size // options.ranks_per_node


def check_arguments(schema: type, values: Mapping[str, Any], prefix: str = "") -> None:
    """Raises ValueError unless the fields of `schema` allow `values`, given in Python.

    `prefix` and a dot precede the names in messages.
    """
    rules = rules_with(schema, values)
    for name, value in values.items():
        key, rule, given = f"{prefix}.{name}" if prefix else name, rules.get(name), as_python(value)
        if rule is None:
            allowed = f"choose from {', '.join(rules)}" if rules else "there are no options"
            raise ValueError(fitted(f"{key}={given} is unknown: {allowed}{did_you_mean(name, rules)}"))
        if isinstance(rule, Rule) and not rule.allows(value):
            raise ValueError(fitted(refusal(key, given, value, rule, python=True)))


def make_checked_codec(
    codec: Any, options: Mapping[str, Any], schema: type[CommonArguments] = AttachOptions
) -> Codec:
    """Returns the given codec, or the codec of a name and its options. Raises ValueError. `schema` holds the
    other keywords of the call."""
    if isinstance(codec, str):
        _check_keywords(codec, options, schema)
        return make_codec(codec, **options)
    if options:
        raise ValueError(f"codec options {sorted(options)} have no effect on a codec instance")
    if isinstance(codec, type):
        name = codec.__name__
        raise ValueError(f"codec={name} is a class; give an instance of it, e.g. {name}()")
    if not isinstance(codec, Codec):
        names = ", ".join(sorted(codec_names()))
        raise ValueError(
            f"codec={as_python(codec)} is not a codec; choose one of {names}, or an instance of "
            "gradwire.Codec"
        )
    return with_decisions(codec)


def _check_keywords(codec: str, options: Mapping[str, Any], schema: type[CommonArguments]) -> None:
    """Refuses a mistyped keyword, with suggestions from both the codec's and the call's keywords."""
    if codec not in codec_names():
        return  # `make_codec` raises it
    schema_of_codec = codec_options(codec)
    own = {*rules_of(schema_of_codec), *rules_of(CommonOptions)} - {"name"}
    known = own | {*rules_of(cast(Any, schema)), "codec", "topology"}
    for name in options:
        if name not in own:
            has = did_you_mean(name, known) or f"; its options are {', '.join(sorted(own))}"
            raise ValueError(f"{name}={as_python(options[name])}: codec={codec} has no such option{has}")
    common = {name: value for name, value in options.items() if name in rules_of(CommonOptions)}
    check_arguments(CommonOptions, common, "codec")
    others = {name: value for name, value in options.items() if name not in common}
    check_arguments(schema_of_codec, others, "codec")


def make_checked_schedule(topology: Any, size: int, num_nodes: int = 1) -> Topology:
    """Returns the given topology, or the topology of a name; its schedules are made once per number of ranks.
    Raises ValueError unless it is a correct all-reduce over `size` ranks on `num_nodes` nodes."""
    if isinstance(topology, str):
        check_value("topology", topology, Rule((TEXT,), choices=tuple(sorted(TOPOLOGIES))))
        return partial(make_schedule, topology)
    if not callable(topology):
        names = ", ".join(sorted(TOPOLOGIES))
        raise ValueError(
            f"topology={as_python(topology)} is not a topology; choose one of {names}, or a function from "
            "world size to schedule"
        )
    made = cast(Topology, lru_cache(topology))
    schedule: object = made_for(made, size, num_nodes)
    if not isinstance(schedule, Schedule) or schedule.size != size:
        raise ValueError(
            f"topology={called(topology)} gives no Schedule of {size} ranks: {as_python(schedule)}"
        )
    if topology not in TOPOLOGIES.values():
        try:
            check_schedule(schedule)
        except AssertionError as error:
            raise ValueError(
                f"topology={called(topology)} is not an all-reduce of {size} ranks: {error}"
            ) from None
    return made


def describe_call(codec: Codec, schedule: Schedule, options: CommonArguments) -> dict[str, str]:
    """The settings that must be equal on all ranks for any model, from name to value as text."""
    from gradwire import __version__

    return {
        "gradwire": __version__,
        "torch": torch.__version__,
        **describe_codec(codec),
        "topology": schedule.name,
        "schedule": digest(repr(schedule)),
        **{key: repr(value) for key, value in dataclasses.asdict(options).items()},
    }


def check_device(
    codec: Codec, device: torch.device, group: dist.ProcessGroup, options: CommonArguments
) -> None:
    """Raises ValueError if ranks cannot share the device as they are asked to, or if graphs are required but
    impossible."""
    if options.share_device:
        _check_shared(device, group)
    if options.graphs != "always":
        return
    reason = REFUSES_CAPTURE if options.share_device else None
    if (reason := reason or refused_graphs(codec, device, options.check_hashes)) is not None:
        raise ValueError(f"graphs='always': {reason}; use graphs='auto'")


def _check_shared(device: torch.device, group: dist.ProcessGroup) -> None:
    """Raises ValueError for ranks that have no GPU to share, or whose own collectives NCCL would refuse."""
    if device.type != "cuda":
        raise ValueError(f"share_device=True: ranks share GPUs, and the model is on {device}; leave it out")
    if group._get_backend(device).name() == "nccl":
        raise ValueError(
            "share_device=True: the model's process group is on nccl, which refuses two ranks on one GPU; "
            'use init_process_group("gloo"), or leave it out'
        )


def _check_backend(codec: Codec, schedule: Schedule, options: CommonArguments) -> None:
    """Refuses non-default settings that have no effect on the backend's own all-reduce."""
    given: dict[str, Any] = {"rate_mbit": options.rate_mbit, "segments": options.segments}
    default: dict[str, Any] = {"rate_mbit": None, "segments": 1}
    if not isinstance(codec, Exclude):  # what is excluded travels over the topology
        given["topology"], default["topology"] = schedule.name, "ring"
    if isinstance(options, AttachOptions):  # its buckets follow one another
        given["buckets"], default["buckets"] = options.buckets, AttachOptions.buckets
    for name, value in given.items():
        if value != default[name]:
            raise ValueError(
                f"{name}={value} has no effect with codec=backend; the backend sends its own messages; leave "
                "it out or use codec=fp32"
            )


def check_runs(
    codec: Codec, schedule: Schedule, device: torch.device, options: CommonArguments
) -> Callable[[Layout], str | None]:
    """Returns a function that gives the reason why a bucket cannot be synchronized, or None. Raises
    ValueError if a bucket of usual size cannot."""
    if options.rate_mbit is not None and device.type == "cuda":
        raise ValueError(
            f"rate_mbit={options.rate_mbit}: only sends between CPUs can be paced; leave it out on GPUs"
        )
    if codec.traits.uses_backend:  # as in a run's configuration
        _check_backend(codec, schedule, options)
    ask = partial(codec.supports, schedule.name, schedule.size)
    reason = codec.supports_stages(1) or ask(Layout.flat(1 << 20, device=device))
    if reason is not None:
        raise ValueError(reason)
    return ask
