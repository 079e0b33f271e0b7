"""attach() under difficult conditions: modes, threads, timeouts, destroyed groups."""

from __future__ import annotations

import contextlib
import copy
import pickle
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import attach_jobs as jobs
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.overrides import TorchFunctionMode

import gradwire
from gradwire.harness.library import attach as attaching
from gradwire.harness.library.agreement import Agreement


class Doubling(TorchFunctionMode):
    """A mode in which torch's functions do something else."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        found = function(*args, **(kwargs or {}))
        is_float = isinstance(found, torch.Tensor) and found.is_floating_point()
        return found + found if is_float else found


@contextlib.contextmanager
def in_float64() -> Any:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


MODES: dict[str, Callable[[], Any]] = {
    "none": contextlib.nullcontext,
    "inference": torch.inference_mode,
    "no gradients": torch.no_grad,
    "autocast": partial(torch.autocast, "cpu", dtype=torch.bfloat16),
    "meta device": partial(torch.device, "meta"),
    "functions": Doubling,
    "default dtype": in_float64,
}


def in_modes(rank: int, size: int, options: dict[str, Any]) -> dict[str, list[bytes]]:
    """By mode: the gradients of passes between which everything that the library offers is called in it."""
    return {name: _in_mode(mode, rank, options) for name, mode in MODES.items()}


def _in_mode(mode: Callable[[], Any], rank: int, options: dict[str, Any]) -> list[bytes]:
    model, found = jobs.wrapped(), list[bytes]()
    with mode():
        synchronizer = gradwire.attach(model, **options)

    def step(number: int) -> None:
        jobs.run_steps(model, range(number, number + 1), rank, lr=0.0)
        found.append(jobs.gradients(model))

    step(0)
    with mode():
        state = synchronizer.state_dict()  # the first one settles DDP's buckets
    step(1)
    with mode():
        synchronizer.skip_step()
    with mode():
        synchronizer.measure_vnmse()
    step(2)
    with mode():
        synchronizer.load_state_dict(state)
    step(1)
    step(2)
    with mode():
        synchronizer.detach()
    step(3)
    return found


def together(rank: int, size: int, models: list[nn.Module]) -> tuple[list[str], list[bool], bool]:
    """The errors of two threads that each attach a model at once, in another order on each rank; which models
    are plain; and whether they can be attached one after another."""
    wrapped, texts = [jobs.wrapped(each) for each in models], dict[int, str]()
    both = threading.Barrier(2)
    make = attaching.make_checked_codec

    def late(*given: Any) -> Any:  # both calls are under way
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(10)
        return make(*given)

    def attach(index: int) -> None:
        texts[index] = jobs.said(gradwire.attach, wrapped[index], timeout_s=20)

    order = [0, 1] if rank == 0 else [1, 0]
    threads = [threading.Thread(target=attach, args=(index,)) for index in order]
    attaching.make_checked_codec = late
    try:
        for thread in threads:
            thread.start()
            time.sleep(0.05)
        time.sleep(0.2)
        both.abort()
        for thread in threads:
            thread.join()
    finally:
        attaching.make_checked_codec = make
    plain = [not each._comm_hooks for each in wrapped]
    dist.barrier()
    for each in wrapped:
        gradwire.attach(each, timeout_s=20).detach()
    return [texts[index] for index in (0, 1)], plain, True


def in_turn(rank: int, size: int) -> list[str]:
    """The errors of two threads that attach one after another."""
    found = list[str]()
    for _ in range(2):
        thread = threading.Thread(target=lambda: found.append(jobs.said(gradwire.attach, jobs.wrapped())))
        thread.start()
        thread.join()
    return found


def tensor_parallel(rank: int, size: int) -> list[str]:
    """attach()'s errors for a model over tensor parallelism, before and after a pass; and a frozen one."""
    mesh = init_device_mesh("cpu", (1, size), mesh_dim_names=("dp", "tp"))
    net = nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 4))
    shares: Any = parallelize_module(net, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    model = DistributedDataParallel(shares, device_mesh=mesh["dp"])
    found = [jobs.said(gradwire.attach, model, timeout_s=20)]
    model(torch.ones(2, 8)).sum().backward()
    found.append(jobs.said(gradwire.attach, model, timeout_s=20))
    frozen = jobs.wrapped()
    frozen.requires_grad_(False)
    return [*found, jobs.said(gradwire.attach, frozen, timeout_s=20)]


def cannot_be_copied(rank: int, size: int) -> list[str]:
    """The errors for copying a synchronizer, and for attaching to a group that is gone or made anew."""
    model, sharded = jobs.wrapped(), fully_shard(jobs.Net(), reshard_after_forward=False)
    late, late_sharded = jobs.wrapped(), fully_shard(jobs.Net(), reshard_after_forward=False)
    with gradwire.attach(model) as first, gradwire.shard_hooks(sharded) as second:
        found = [jobs.said(pickle.dumps, first), jobs.said(copy.deepcopy, first)]
        found += [jobs.said(pickle.dumps, second), jobs.said(copy.deepcopy, second)]
    dist.barrier()
    store = dist.distributed_c10d._get_default_store()
    dist.destroy_process_group()
    found += [jobs.said(gradwire.attach, late), jobs.said(gradwire.shard_hooks, late_sharded)]
    again: Any = dist.PrefixStore("again", store)
    dist.init_process_group("gloo", store=again, rank=rank, world_size=size, timeout=timedelta(seconds=7))
    found += [jobs.said(gradwire.attach, late), jobs.said(gradwire.shard_hooks, late_sharded)]
    return found


def patience(rank: int, size: int) -> tuple[float, str, str, float]:
    """The limit of a synchronizer whose script gives none, and what rank 1 says, after how long, of a rank
    that evaluates for longer than `timeout_s`, in a pass and in a call of all ranks."""
    model = jobs.wrapped()
    with gradwire.attach(model, codec="backend") as synchronizer:
        own = synchronizer._agreement.timeout_s
        jobs.run_steps(model, range(1), rank)
    model = jobs.wrapped()
    with gradwire.attach(model, codec="bf16", timeout_s=1) as synchronizer:
        if rank == 0:
            time.sleep(2.5)
        since = time.monotonic()
        called = jobs.said(jobs.run_steps, model, range(1), rank)
        waited = time.monotonic() - since
    dist.barrier()
    return own, called, jobs.said(synchronizer.raise_error), waited


def connected_for_longer(rank: int, size: int) -> list[float]:
    """The means of the backend's all-reduce, for which rank 1 waits longer than connecting may take."""
    from gradwire.harness.comm.transport.process import private_group

    group = private_group(None, "gloo", timedelta(seconds=20), connect=timedelta(seconds=3))
    if rank == 0:
        time.sleep(3.5)
    x = torch.ones(2)
    dist.all_reduce(x, group=group)
    return x.tolist()


class Mixed(jobs.Net):
    """A net whose middle computes in float64."""

    def __init__(self) -> None:
        super().__init__()
        self.middle.double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.middle(torch.tanh(self.first(x)).double()))
        return self.last(hidden.float())


def in_float64(rank: int, size: int) -> list[float]:
    """The distance of the float64 gradients from plain DDP's, as a share of the largest, where a codec takes
    them, and where it leaves them out."""
    found = []
    for options in ({"codec": "backend"}, {"codec": "dynamiq", "exclude": ["middle.*"]}):
        plain = jobs.wrapped(Mixed())
        model = jobs.wrapped(copy.deepcopy(plain.module))
        with gradwire.attach(model, **options):
            for each in (plain, model):
                jobs.run_steps(each, range(1), rank, lr=0.0)
        own, exact = model.module.middle.weight.grad, plain.module.middle.weight.grad
        assert own.dtype == torch.float64
        found.append(float((own - exact).abs().max() / exact.abs().max()))
    return found


def late_by_little(rank: int, size: int) -> list[str]:
    """The outcomes of calls for which the last rank comes about when the others give up."""
    found = []
    assert dist.group.WORLD is not None
    for number in range(12):
        agreement = Agreement(dist.group.WORLD, 0.1, f"call {number}")
        dist.barrier()
        if rank == size - 1:
            time.sleep(0.07 + 0.005 * number)
        text = jobs.said(agreement.agree, {"seed": "0"})
        found.append(text.partition(":")[0])
    return found
