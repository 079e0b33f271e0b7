"""Streams that run nothing, on a CPU: they find accesses of memory that no event puts in an order.

Operations run at once, but each is noted with its stream and what the stream has waited for so far. Two
accesses of the same bytes, of which one writes, are a race unless the later one's stream has waited for the
earlier one, through whatever chain of events.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any, NamedTuple

import pytest
import ranks_on_device
import stream_channel
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gradwire.harness.comm.transport import thread
from gradwire.harness.comm.world.started import ProcessStarted


class Access(NamedTuple):
    """The bytes from `start` to `stop`, by the `tick`-th operation of a stream."""

    start: int
    stop: int
    writes: bool
    stream: Stream
    tick: int
    operation: str


class Stream:
    """Counts its operations, and keeps how many of each other stream's are known to be over."""

    device = torch.device("cpu")
    _names = count()

    def __init__(self, kind: str) -> None:
        self.name, self.over = f"{kind} stream {next(self._names)}", Counter[Stream]()

    def record_event(self) -> Counter[Stream]:
        return Counter(self.over)

    def wait_event(self, event: Counter[Stream]) -> None:
        self.over |= event


class Order:
    """All accesses so far by storage; `races` are those of which no event decides which is first."""

    def __init__(self) -> None:
        self.races: list[str] = []
        self._accesses: dict[int, dict[tuple[Any, ...], Access]] = defaultdict(dict)
        self._storages: list[torch.UntypedStorage] = []  # as long as they are held, no address comes again
        self._lock = threading.Lock()
        self._current = threading.local()

    @property
    def current(self) -> Stream:
        found: Stream = self._current.stream
        return found

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        """Within the block this thread's operations are the stream's."""
        before = getattr(self._current, "stream", None)
        self._current.stream = stream
        try:
            if before is not None:  # they are watched already
                yield
                return
            with _Watched(self):
                yield
        finally:
            self._current.stream = before

    def accessed(self, operation: str, tensors: Sequence[tuple[Tensor, bool]]) -> None:
        """Notes an operation of the current stream, which accesses these tensors or writes to them."""
        with self._lock:
            stream = self.current
            stream.over[stream] += 1
            for tensor, writes in tensors:
                if tensor.numel():
                    start, stop = _extent(tensor)
                    own = Access(start, stop, writes, stream, stream.over[stream], operation)
                    self._note(tensor.untyped_storage(), own)

    def _note(self, storage: torch.UntypedStorage, own: Access) -> None:
        accesses = self._accesses[storage._cdata]
        if not accesses:
            self._storages.append(storage)
        for other in accesses.values():
            overlap = other.start < own.stop and own.start < other.stop and (other.writes or own.writes)
            if overlap and other.tick > own.stream.over[other.stream]:
                self.races.append(
                    f"{own.operation} on {own.stream.name} and {other.operation} on {other.stream.name}"
                )
        accesses[own[:4]] = own


def _extent(tensor: Tensor) -> tuple[int, int]:
    """The bytes of its storage from the first to behind the last."""
    span = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    start = int(tensor.storage_offset()) * tensor.element_size()
    return start, start + span * tensor.element_size()


class _Watched(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes in an order what PyTorch's operations read and write."""

    def __init__(self, order: Order) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._order = order

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        declared, kwargs = func._schema.arguments, dict(kwargs or {})
        result = func(*args, **kwargs)
        written = {a.name for a in declared if a.alias_info and a.alias_info.is_write}
        is_view = not written and any(a.alias_info for a in func._schema.returns)
        if is_view or str(func).startswith(("aten.empty", "aten.new_empty")):
            return result
        found = list[tuple[Tensor, bool]]()
        given = dict(zip((a.name for a in declared), args, strict=False)) | kwargs
        for name, argument in given.items():
            found += [(leaf, name in written) for leaf in tree_leaves(argument) if isinstance(leaf, Tensor)]
        if not written:
            found += [(leaf, True) for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        self._order.accessed(str(func), found)
        return result


class StartedInOrder(ProcessStarted[Tensor]):
    """A started collective whose result comes with an event, as torch's futures bring one on GPUs."""

    order: Order

    def set_result(self, result: Tensor) -> None:
        self._event = self.order.current.record_event()
        super().set_result(result)

    def wait(self) -> BaseException | None:
        error = super().wait()
        if error is None:
            self.order.current.wait_event(self._event)
        return error


def watch_streams(monkeypatch: pytest.MonkeyPatch) -> Order:
    """From now on `ranks_on_device` and the communication threads have streams, on a CPU."""
    order = Order()
    StartedInOrder.order = order

    def streams(kind: str) -> Callable[[torch.device], Stream]:
        return lambda device: Stream(kind)

    monkeypatch.setattr(ranks_on_device, "stream_on", streams("input"))
    monkeypatch.setattr(stream_channel, "stream_on", streams("copy"))
    monkeypatch.setattr(thread, "_new_stream", streams("communication"))
    monkeypatch.setattr(ranks_on_device, "ProcessStarted", StartedInOrder)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: order.current)
    monkeypatch.setattr(torch.cuda, "stream", order.stream)
    return order
