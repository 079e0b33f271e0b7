"""Graphs as CUDA has them, on the CPU: what is captured is kept with its arguments, and does not see what the
host does later.

`EmulatedGraph` keeps every operation of PyTorch and every call of a kernel, with the struct that it was
given. What is forbidden in a capture is refused: reading values back, and tensors made of the host's.
`RerunGraph` does the work again in every launch, because messages between processes cannot be kept here.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gradwire.codecs.native.call import Call
from gradwire.harness.comm.transport.channel import Handle, TaggedMessage
from gradwire.harness.comm.transport.graph import GraphPool
from gradwire.harness.comm.transport.local import Mailboxes
from gradwire.harness.comm.transport.process import ProcessChannel

READING = ("item", "tolist", "numpy", "cpu", "__bool__", "__float__", "__int__", "__index__")
FROM_HOST = ("tensor", "as_tensor", "from_numpy", "frombuffer")
DATA_DEPENDENT = ("nonzero", "masked_select", "unique", "_local_scalar_dense", "is_nonzero")

GARBAGE = 0xA5


def _storages(of: Any) -> set[int]:
    return {x.untyped_storage().data_ptr() for x in tree_leaves(of) if isinstance(x, Tensor)}


class Given:
    """The values that tensors from outside had before the capture wrote to them: a capture runs nothing."""

    def __init__(self) -> None:
        self._before = dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]]()

    def keep(
        self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], made: Sequence[Tensor] = ()
    ) -> None:
        """Keeps the values of tensors that the operation writes to, unless the capture has `made` them."""
        own = _storages(made)
        for number, argument in enumerate(func._schema.arguments):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            written = args[number] if number < len(args) else kwargs.get(argument.name)
            for x in tree_leaves(written):
                if isinstance(x, Tensor) and x.untyped_storage().data_ptr() not in own:
                    storage = x.untyped_storage()
                    if storage.data_ptr() not in self._before:
                        self._before[storage.data_ptr()] = storage, storage.clone()

    def restore(self) -> None:
        for written, before in self._before.values():
            written.copy_(before)


class HostMark:
    """A mark whose time is the host's when a launch passes it."""

    at: float | None = None

    def passed(self) -> None:
        self.at = time.perf_counter()


class HostClock:
    """The clock of a graph on the CPU. `keep` adds a mark to the graph that is being captured."""

    def __init__(self, keep: Callable[[], HostMark]) -> None:
        self._keep = keep

    def timestamp(self) -> HostMark:
        return self._keep()

    def seconds(self, mark: object) -> float:
        assert isinstance(mark, HostMark) and mark.at is not None, "a mark that no launch has passed"
        return mark.at


class EmulatedGraph:
    """A graph whose memory is garbage until it is launched, and again before each launch: another graph of
    its `pool` may have used it."""

    pool: GraphPool | None = None

    def __init__(self) -> None:
        self._steps: list[Callable[[], None]] = []
        self._kept: list[Any] = []
        self._made: list[Tensor] = []
        self.calls = self.operations = self.copies_of_messages = self.marks = 0
        """Calls of kernels and operations of PyTorch that a launch runs, without views; of the operations,
        those that stand for messages between ranks in one process; and marks that it passes."""

    def capture(self, work: Callable[[], None], pool: GraphPool | None = None) -> None:
        made = self._made
        self._given, self.pool = Given(), pool
        with ExitStack() as stack:
            for name in READING:
                stack.enter_context(mock.patch.object(torch.Tensor, name, _refuse))
            for name in FROM_HOST:
                stack.enter_context(mock.patch.object(torch, name, _refuse))
            stack.enter_context(mock.patch.object(Call, "run", lambda call: self._keep_call(call)))
            stack.enter_context(mock.patch.object(Mailboxes, "_match", self._counted(Mailboxes._match)))
            stack.enter_context(_Keeping(self, made))
            work()
        self._spoil()
        self._given.restore()

    def _spoil(self) -> None:
        for tensor in self._made:
            tensor.untyped_storage().fill_(GARBAGE)

    def launch(self) -> None:
        self._spoil()
        for step in self._steps:
            step()

    def clock(self, seconds: Callable[[Any], float]) -> HostClock:
        return HostClock(self._keep_mark)

    def _keep_mark(self) -> HostMark:
        mark = HostMark()
        self._steps.append(mark.passed)
        self.marks += 1
        return mark

    def _counted(self, match: Callable[..., None]) -> Callable[..., None]:
        def copied(mailboxes: Mailboxes, *given: Any) -> None:
            before = self.operations
            match(mailboxes, *given)
            self.copies_of_messages += self.operations - before

        return copied

    def _keep_call(self, call: Call) -> None:
        """In the place of `Call.run`: on a device, too, the struct's values are those of now."""
        call.arguments.call.threads = 1
        function, given = call._function, type(call.arguments).from_buffer_copy(call.arguments)

        def step() -> None:
            code = function(ctypes.byref(given))
            assert code == 0, f"{call._operation}: {code}"

        step()
        self._steps.append(step)
        self.calls += 1

    def keep_operation(
        self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], made: list[Tensor]
    ) -> Any:
        """Runs an operation of PyTorch and keeps it; what it has made is added to `made`."""
        if any(name in str(func) for name in DATA_DEPENDENT):
            raise RuntimeError(f"{func} is not permitted when a stream is capturing")
        self._given.keep(func, args, kwargs, made)
        found = func(*args, **kwargs)
        fresh = _storages(found) - _storages((args, kwargs))
        results = [x for x in tree_leaves(found) if isinstance(x, Tensor)]
        self._kept.append((args, kwargs, found))
        if "empty" in str(func):
            made += results
            return found

        def step() -> None:
            again = [x for x in tree_leaves(func(*args, **kwargs)) if isinstance(x, Tensor)]
            for kept, new in zip(results, again, strict=True):
                if kept.untyped_storage().data_ptr() in fresh:
                    kept.copy_(new)

        self._steps.append(step)
        self.operations += not getattr(func, "is_view", False)
        made += [x for x in results if x.untyped_storage().data_ptr() in fresh and x.is_contiguous()]
        return found


class _Keeping(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, graph: EmulatedGraph, made: list[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._graph, self._made = graph, made

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return self._graph.keep_operation(func, args, kwargs or {}, self._made)


def _refuse(*given: object, **named: object) -> Any:
    raise RuntimeError("operation not permitted when a stream is capturing")


class _Restoring(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps in `given` what operations of PyTorch overwrite. New memory is zeros: where kernels do not run,
    operations must not find indices that are out of bounds."""

    def __init__(self, given: Given) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._given = given

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        self._given.keep(func, args, kwargs or {})
        found = func(*args, **kwargs or {})
        return found.zero_() if "empty" in str(func) else found


_capturing = threading.local()
_post, _run = ProcessChannel._post, Call.run


def post_unless_capturing(
    channel: ProcessChannel, sends: Sequence[TaggedMessage], receives: Sequence[TaggedMessage], phase: str
) -> Handle:
    """In the place of `ProcessChannel._post`: sends nothing while its thread captures a `RerunGraph`."""
    if getattr(_capturing, "now", False):
        return channel._handle()
    return _post(channel, sends, receives, phase)


def run_unless_capturing(call: Call) -> None:
    """In the place of `Call.run`: runs no kernel while its thread captures a `RerunGraph`."""
    if not getattr(_capturing, "now", False):
        _run(call)


class RerunGraph:
    """A graph that does its work again in every launch, messages too, as in the capture, which runs nothing:
    it leaves tensors as they were, sends no messages and, with `run_unless_capturing`, runs no kernels."""

    pool: GraphPool | None = None

    def __init__(self) -> None:
        self._work: Callable[[], None] | None = None
        self._marks = list[HostMark]()
        self._next = 0

    def capture(self, work: Callable[[], None], pool: GraphPool | None = None) -> None:
        self.pool = pool
        _capturing.now, given = True, Given()
        try:
            with _Restoring(given):
                work()
        finally:
            _capturing.now = False
            given.restore()
        self._work = work

    def launch(self) -> None:
        assert self._work is not None
        self._next = 0
        self._work()
        assert self._next == len(self._marks), "a launch passes all marks"

    def clock(self, seconds: Callable[[Any], float]) -> HostClock:
        return HostClock(self._pass_mark)

    def _pass_mark(self) -> HostMark:
        """A new mark while it is captured; when the work is done again, the mark taken at this place."""
        if getattr(_capturing, "now", False):
            self._marks.append(HostMark())
            return self._marks[-1]
        mark = self._marks[self._next]
        self._next += 1
        mark.passed()
        return mark


class RefusingGraph:
    """Captures nothing."""

    def capture(self, work: Callable[[], None], pool: GraphPool | None = None) -> None:
        raise RuntimeError("operation not permitted when stream is capturing\nand more lines")

    def launch(self) -> None:
        raise AssertionError("nothing was captured")

    def clock(self, seconds: Callable[[Any], float]) -> HostClock:
        return HostClock(HostMark)
