"""torch's own tests of DistributedDataParallel, on CPUs: its wheel brings them, gated on GPUs in part."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import re
import tempfile
import traceback
import unittest
from collections.abc import Callable, Iterator
from functools import cache
from types import ModuleType
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire

MODULE = "torch.testing._internal.distributed.distributed_test"
MAKERS = ("arange", "empty", "full", "ones", "rand", "randint", "randn", "tensor", "zeros")
"""Functions of torch that make tensors, on GPUs where a test says so."""
VALUES_DIFFER = ("not close", "not equal", "are different", "not less than", "mismatch")
"""Words of an AssertionError that compares numbers."""


@cache
def loaded() -> ModuleType:
    """torch's module of distributed tests, whose demands for GPUs are dropped while it is imported."""
    os.environ |= {"BACKEND": "gloo", "WORLD_SIZE": "2", "TEMP_DIR": tempfile.gettempdir()}
    decorators = importlib.import_module("torch.testing._internal.common_distributed")
    with contextlib.ExitStack() as stack:
        for name in ("skip_if_lt_x_gpu", "nccl_skip_if_lt_x_gpu"):
            stack.enter_context(mock.patch.object(decorators, name, lambda *_: lambda test: test))
        stack.enter_context(mock.patch.object(decorators, "skip_if_no_gpu", lambda test: test))
        return importlib.import_module(MODULE)


def _on_cpu(device: object) -> Any:
    """The device to use in place of one that a test names: a rank is a GPU's number."""
    return "cpu" if isinstance(device, int) or "cuda" in str(device) else device


def _moved(move: Callable[..., Any]) -> Callable[..., Any]:
    """`to` of a tensor or module that stays on the CPU."""

    def to(self: Any, *arguments: Any, **options: Any) -> Any:
        if arguments and isinstance(arguments[0], int | str | torch.device):
            arguments = (_on_cpu(arguments[0]), *arguments[1:])
        if "device" in options:
            options["device"] = _on_cpu(options["device"])
        return move(self, *arguments, **options)

    return to


def _made(make: Callable[..., Any]) -> Callable[..., Any]:
    """A maker of tensors that makes them on the CPU."""

    def maker(*arguments: Any, **options: Any) -> Any:
        if options.get("device") is not None:
            options["device"] = _on_cpu(options["device"])
        return make(*arguments, **options)

    return maker


@contextlib.contextmanager
def on_cpus() -> Iterator[None]:
    """Makes moves to GPUs and calls of torch.cuda do nothing."""

    # torch.compile keeps a rule for each function, so no two names may share one.
    def nothing() -> Callable[..., None]:
        return lambda *_, **__: None

    def same() -> Callable[..., Any]:
        return lambda self, *_, **__: self

    with contextlib.ExitStack() as stack:
        for owner, name, value in (
            (torch.Tensor, "cuda", same()),
            (nn.Module, "cuda", same()),
            (torch.Tensor, "to", _moved(torch.Tensor.to)),
            (nn.Module, "to", _moved(nn.Module.to)),
            (torch.cuda, "set_device", nothing()),
            (torch.cuda, "synchronize", nothing()),
            (torch.cuda, "current_device", lambda: 0),
            (torch.cuda, "manual_seed", torch.manual_seed),
            (torch.accelerator, "current_stream", mock.MagicMock()),
            *((torch, name, _made(getattr(torch, name))) for name in MAKERS),
        ):
            stack.enter_context(mock.patch.object(owner, name, value))
        yield


@contextlib.contextmanager
def every_model_attached(attach: dict[str, Any] | None) -> Iterator[None]:
    """Each DistributedDataParallel that is made is given to `gradwire.attach` with these arguments."""
    make = DistributedDataParallel.__init__

    def made(self: Any, module: nn.Module, *_: Any, **options: Any) -> None:
        options = {key: value for key, value in options.items() if key not in ("device_ids", "output_device")}
        make(self, module, **options)
        if attach is not None:
            gradwire.attach(self, timeout_s=20, **attach)

    with mock.patch.object(DistributedDataParallel, "__init__", made):
        yield


def all_names() -> list[str]:
    """Tests of which the name or the source speaks of DistributedDataParallel."""
    base = loaded().DistributedTest._DistTestBase
    pattern = re.compile("ddp|distributeddataparallel", re.IGNORECASE)
    tests = {name: inspect.unwrap(getattr(base, name)) for name in dir(base) if name.startswith("test_")}
    return [name for name, test in tests.items() if pattern.search(name + inspect.getsource(test))]


def outcome(rank: int, size: int, name: str, attach: dict[str, Any] | None, folder: str) -> str:
    """`passed`, `skipped`, `values differ: …` or the end of a traceback, as this rank saw it.

    What the test writes goes to `folder`, which all ranks share.
    """
    from torch.testing._internal.common_utils import TestCase

    class OnThisRank(loaded().DistributedTest._DistTestBase, TestCase):  # type: ignore[misc, name-defined]
        world_size = size

        def _barrier(self, *_: Any, **__: Any) -> None:
            dist.barrier()

    OnThisRank.rank = rank
    try:
        test = OnThisRank(name)
        with on_cpus(), every_model_attached(attach), mock.patch.object(tempfile, "tempdir", folder):
            test.setUp()
            try:
                getattr(test, name)()
            finally:
                test.doCleanups()
    except unittest.SkipTest:
        return "skipped"
    except SystemExit as end:  # how torch's decorators skip
        return f"skipped: exit code {end.code}"
    except BaseException as error:
        said = f"{type(error).__name__}: {str(error)[:500]}"
        if isinstance(error, AssertionError) and any(words in said for words in VALUES_DIFFER):
            return f"values differ: {said}"
        return f"{said}\n{traceback.format_exc()[-1500:]}"
    return "passed"
