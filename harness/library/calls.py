"""The skeleton of `attach` and `shard_hooks`: all ranks check their arguments, agree on them, and connect."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial, wraps
from typing import Any, ParamSpec, Protocol, TypeVar

import torch
import torch.distributed as dist

from gradwire.codecs.interface import Codec
from gradwire.codecs.wrappers.wrapper import innermost
from gradwire.harness.comm.collective.collectives import Fabric
from gradwire.harness.comm.topology.schedule import Topology
from gradwire.harness.comm.transport.captured_rounds import make_captured_rounds
from gradwire.harness.comm.transport.pacer import PacedLink
from gradwire.harness.comm.transport.staging import HostCopies
from gradwire.harness.comm.world.process import Connections, ProcessWorld
from gradwire.harness.library.agreement import Statement
from gradwire.harness.library.failures import MeshAgreement, SynchronizationError, in_words
from gradwire.harness.library.options import (
    AGREE_S,
    CommonArguments,
    Options,
    check_group,
    make_options,
    num_nodes,
)
from gradwire.harness.network.links import bytes_per_second

Given = ParamSpec("Given")
Result = TypeVar("Result")


def in_no_mode(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """Wraps a function to run outside of inference mode, without recording gradients, and with torch's own
    functions.

    An evaluation that saves or loads may run under `torch.inference_mode()`, and a script may build its model
    under `torch.device("meta")`. Buffers created in such a mode outlive it, and the next backward pass could
    not write to them.
    """

    @wraps(function)
    def run(*given: Given.args, **named: Given.kwargs) -> Result:
        with torch.inference_mode(False), torch.no_grad(), torch._C.DisableTorchFunction():
            return function(*given, **named)

    return run


class CallUnderWay:
    """One call in progress. `overlapped` is set if another call of this process ran at the same time.

    Ranks pair their calls by order. If two threads of a process call at once, their order differs between
    ranks, and identical models would be connected crosswise. So all overlapping calls are refused.
    """

    def __init__(self, what: str) -> None:
        self.what, self.overlapped = what, False

    def refusal(self) -> str | None:
        """Returns the reason why the call is refused, or None."""
        if not self.overlapped:
            return None
        return (
            "two threads of the process attach models at once, and ranks cannot tell which models belong "
            "together; attach them one after another, in the same order on all ranks"
        )


_under_way: list[CallUnderWay] = []
_lock = threading.Lock()


@contextlib.contextmanager
def calling(what: str) -> Iterator[CallUnderWay]:
    """Marks the block as a call, and detects calls of other threads that overlap with it."""
    call = CallUnderWay(what)
    with _lock:
        _under_way.append(call)
        if len(_under_way) > 1:
            for each in _under_way:
                each.overlapped = True
    try:
        yield call
    finally:
        with _lock:
            _under_way.remove(call)


class Checked(Protocol):
    """Checked arguments, with the `description` that must be equal on all ranks."""

    @property
    def description(self) -> Statement: ...


Plan = TypeVar("Plan", bound=Checked)


def agreed(
    call: CallUnderWay,
    schema: type[Options],
    given: Mapping[str, Any],
    groups: Callable[[], Sequence[dist.ProcessGroup]],
    check: Callable[[Options], Plan],
) -> tuple[MeshAgreement, Plan]:
    """Makes options from `given`, has `check` make a plan of them, and returns once all ranks have equal
    plans.

    `groups` returns the process groups along each dimension of a mesh; an empty result means all ranks.
    Raises the error of `check`, on the other ranks too, and those of `Agreement.agree`.
    """
    agreement_of = partial(_agreement, call.what, groups)
    agreement = None
    try:
        options = make_options(schema, **given)
        agreement = agreement_of(options.timeout_s or AGREE_S)
        reason = call.refusal()
        if reason is not None:
            raise ValueError(f"{call.what}: {reason}")
        plan = check(options)
    except Exception as error:
        agreement = agreement or agreement_of(AGREE_S)
        if agreement is not None:
            agreement.refuse(str(error) or type(error).__name__)
        raise
    assert agreement is not None, "a checked model has a process group"
    agreement.agree(plan.description, last_word=call.refusal)
    return agreement, plan


def _agreement(
    what: str, groups: Callable[[], Sequence[dist.ProcessGroup]], timeout_s: float
) -> MeshAgreement | None:
    """The agreement of the ranks that make this call, which wait `timeout_s` seconds for one another; None
    without process groups."""
    if not dist.is_initialized():
        return None
    everyone = dist.group.WORLD
    assert everyone is not None
    found = groups() or [everyone]
    try:
        for group in found:
            check_group(group, what)
    except ValueError:  # the check of the model raises it
        return None
    return MeshAgreement(found, timeout_s, what)


@contextlib.contextmanager
def connecting(agreement: MeshAgreement, what: str) -> Iterator[None]:
    """Raises SynchronizationError if ranks cannot be connected in the block: torch's own error names neither
    the rank nor the cause."""
    try:
        yield
    except RuntimeError as error:
        raise SynchronizationError(
            f"rank {agreement.rank}: {what}: the ranks agree, but cannot be connected within "
            f"{agreement.timeout_s:g} s: {in_words(error).splitlines()[0]}; has one of them ended?"
        ) from error


def connect(
    topology: Topology,
    connections: Connections,
    device: torch.device,
    options: CommonArguments,
    *,
    nodes: int | None = None,
    **settings: Any,
) -> ProcessWorld:
    """Connects the ranks of a group on `nodes` nodes, with the rate, timeout, graphs and shared device of
    `options`; the number of nodes is by default that of `options`, too. The other `settings` are those of
    `ProcessWorld`."""
    assert options.timeout_s is not None, "with_timeout() fills it in"
    assert connections.group is not None
    nodes = num_nodes(options, connections.group.size()) if nodes is None else nodes
    rate = options.rate_mbit
    link = None if rate is None else PacedLink(bytes_per_second(rate))
    return ProcessWorld(
        Fabric(topology, num_nodes=nodes, segments=options.segments),
        device,
        replace(
            connections,
            link=link,
            timeout_s=options.timeout_s,
            host_copies=HostCopies(device) if options.share_device else None,
        ),
        captured=make_captured_rounds(options.graphs, device),
        **settings,
    )


class ModelHook(Protocol):
    """The hook that passes a model's gradients to a codec until its world is closed."""

    codec: Codec
    world: ProcessWorld


_serving: weakref.WeakValueDictionary[int, ModelHook] = weakref.WeakValueDictionary()
"""The active hooks, by the ids of their codecs. State is keyed by parameter names, so two models that shared
a codec would mix up theirs."""


def serve(codec: Codec, hook: ModelHook) -> None:
    """Registers `hook` as the codec's user for as long as the hook lives."""
    _serving[id(innermost(codec))] = hook


def check_unused(codec: Codec, what: str) -> None:
    """Raises ValueError, beginning with `what`, if another model uses the codec."""
    bare = innermost(codec)
    hook = _serving.get(id(bare))
    if hook is not None and innermost(hook.codec) is bare and not hook.world.closed:
        raise ValueError(f"{what}: this codec instance serves another model; make one for each")
