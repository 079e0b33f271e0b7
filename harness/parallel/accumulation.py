"""Accumulation of gradients in flat float32 buckets, whose collectives start while the backward pass is
running."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from gradwire.codecs.interface import Layout
from gradwire.harness.comm.world.interface import Collective, Computing, RankStep, Started, Submission
from gradwire.harness.timing.trace.step import ORDINARY, Urgency, passes_until

Receive = Callable[[str, Tensor], Tensor | None]
"""Receives a parameter's gradient of one micro-batch, by name. Returns the tensor that autograd is to add the
next micro-batch's gradient to, or None if autograd is to make a new tensor."""

MakeCollective = Callable[[Any, int, Tensor], Collective[Tensor]]
"""(bucket, its index in the step, its gradient) -> the collective to start."""

MIB = 1 << 20


@dataclass(frozen=True)
class GradientBucket:
    """The gradients of the parameters of `layout`, one after another, (numel,) float32. In a process that
    hosts several ranks it holds one rank's gradients at a time."""

    layout: Layout
    gradient: Tensor

    @cached_property
    def _sizes(self) -> list[int]:
        return [math.prod(shape) for shape in self.layout.shapes]

    @cached_property
    def places(self) -> Mapping[str, Tensor]:
        """Views of `gradient` for each parameter, by name, in the parameter's shape."""
        return dict(self.views(self.gradient))

    def views(self, flat: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Views of a flat buffer for each parameter, by name, in the parameter's shape."""
        parts = zip(
            self.layout.names, torch.split_with_sizes(flat, self._sizes), self.layout.shapes, strict=True
        )
        return ((name, part.view(shape)) for name, part, shape in parts)


def bucketed(names: Sequence[str], sizes: Mapping[str, int], cap_mb: float) -> list[tuple[str, ...]]:
    """Parameters grouped in buckets, in order: a bucket is closed as soon as its float32 gradients take
    `cap_mb` MiB, as in DistributedDataParallel."""
    found: list[list[str]] = [[]]
    size = 0
    for name in names:
        if size >= cap_mb * MIB:
            found.append([])
            size = 0
        found[-1].append(name)
        size += 4 * sizes[name]
    return [tuple(bucket) for bucket in found if bucket]


class Hooks:
    """Passes each parameter's gradient to a receiver, once per backward pass, as soon as it is ready.

    Gradients are not kept, except in the tensors that a receiver has autograd add to: autograd's own memory
    holds one parameter's gradient at a time.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        self._parameters = parameters
        self.receive: Receive | None = None
        for name, parameter in parameters.items():
            hook = partial(self._made, name)
            parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]

    def _made(self, name: str, parameter: Tensor) -> None:
        gradient = parameter.grad
        if self.receive is None or gradient is None:
            parameter.grad = None
            return
        more = self.receive(name, gradient)
        if more is not gradient:
            parameter.grad = more

    @contextmanager
    def handing(self, receive: Receive, sums: Mapping[str, Tensor] = MappingProxyType({})) -> Iterator[None]:
        """Passes gradients to `receive` in this block; autograd adds directly to the tensors in `sums`."""
        self.receive = receive
        for name, total in sums.items():
            self._parameters[name].grad = total
        try:
            yield
        finally:
            self.receive = None
            for parameter in self._parameters.values():
                parameter.grad = None


@dataclass
class StartedBuckets:
    """The collectives of one rank's buckets in a step, started in order as the buckets become ready.

    If all passes are one stretch of computation, `computing` is that stretch: it ends with the last bucket,
    and is labelled `label(k)` once k buckets have been started. All other fields are those of `Submission`;
    inputs are kept in a `measured` step.
    """

    rank_step: RankStep
    measured: bool
    computing: Computing | None = None
    label: Callable[[int], str] = passes_until
    in_turn: bool = False
    is_own: bool = False
    has_one_result: bool = False
    urgency: Urgency = ORDINARY
    started: list[Started[Tensor]] = field(default_factory=list)

    def start(
        self, make: Callable[[Tensor], Collective[Tensor]], x: Tensor, layout: Layout, *, is_last: bool
    ) -> None:
        """Starts the next bucket's collective with the bucket's gradient."""
        if is_last and self.computing is not None:
            self.computing.end()
        submission = Submission(
            buffers=str(layout.uid),
            coordinates=layout.numel,
            in_turn=self.in_turn,
            is_own=self.is_own,
            has_one_result=self.has_one_result,
            keeps_input=self.measured,
            urgency=self.urgency,
        )
        self.started.append(self.rank_step.start(make, x, submission))
        if self.computing is not None:
            self.computing.label = self.label(len(self.started))


class Accumulation:
    """One rank's gradients of a step: adds up those of its micro-batches, and starts each bucket's collective
    when it is ready.

    All ranks start the buckets in the same order, whatever order their gradients arrive in. Without
    `make_collective` none is started.
    """

    def __init__(
        self,
        starts: StartedBuckets,
        buckets: Sequence[GradientBucket],
        make_collective: MakeCollective | None,
        micro_batches: int,
    ) -> None:
        self._starts, self._buckets = starts, buckets
        self._make, self._micro_batches = make_collective, micro_batches
        self._to_start = 0 if make_collective is None else len(buckets)
        self._places = {
            name: (number, view)
            for number, bucket in enumerate(buckets)
            for name, view in bucket.places.items()
        }
        self._missing = [len(bucket.layout.names) for bucket in buckets]
        self._times = Counter[str]()
        self.sums: dict[str, Tensor] = {}
        """By name, what autograd is to add gradients to: a place in the bucket, if that is of their dtype."""
        self.started = starts.started

    def receive(self, name: str, gradient: Tensor) -> Tensor | None:
        """Adds the gradient of one micro-batch, unless autograd has already added it: see `Receive`. Raises
        RuntimeError if there are more gradients than micro-batches."""
        number, view = self._places[name]
        self._times[name] += 1
        times = self._times[name]
        if times > self._micro_batches:
            raise RuntimeError(f"{name} gets more than one gradient in a backward pass")
        if times == 1:
            view.copy_(gradient)
            if gradient.dtype == view.dtype:
                self.sums[name] = view
        elif gradient is not view:
            view.add_(gradient)
        if times == self._micro_batches:
            self.sums.pop(name, None)
            self._missing[number] -= 1
            while len(self.started) < self._to_start and not self._missing[len(self.started)]:
                self._start()
        return self.sums.get(name)

    @property
    def unused(self) -> list[str]:
        """The parameters that have received no gradient so far."""
        return [name for name in self._places if not self._times[name]]

    def finish(self) -> None:
        """Starts the remaining buckets, with zeros for the parameters that have received no gradient."""
        for name, (number, view) in self._places.items():
            if number >= len(self.started) and not self._times[name]:
                view.zero_()
        while len(self.started) < self._to_start:
            self._start()

    def _start(self) -> None:
        number = len(self.started)
        bucket = self._buckets[number]
        assert self._make is not None
        make, is_last = partial(self._make, bucket, number), number == len(self._buckets) - 1
        self._starts.start(make, bucket.gradient, bucket.layout, is_last=is_last)


def squared_norm(values: Sequence[Tensor], device: torch.device) -> Tensor:
    """The sum of the squares of all `values`, (1,) float64."""
    squares = [torch.linalg.vector_norm(each, dtype=torch.float64).square() for each in values]
    return torch.stack([torch.zeros((), dtype=torch.float64, device=device), *squares]).sum().view(1)
