"""Kills a rank while the others depend on it, in new processes, because the pool's must live."""

from __future__ import annotations

import os
import signal
import time
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import attach_jobs as jobs
import torch
import torch.distributed as dist
from pool import worker_context
from torch import Tensor
from torch._C._distributed_c10d import FileStore, TCPStore
from torch.distributed.fsdp import fully_shard

import gradwire
from gradwire.harness.comm.world import process as world
from gradwire.harness.library.agreement import Agreement

TIMEOUT_S = 3.0
SIZE = 3
KILLED_AT = 2
"""The step in which a rank is killed in training."""


class Killing(jobs.Scaled):
    """A codec that ends its process without a word in the middle of a bucket."""

    async def synchronize(self, x: Tensor, this_round: gradwire.Round, comm: gradwire.Collectives) -> Tensor:
        if this_round.rank == self.factor and this_round.step == KILLED_AT:
            kill_oneself()
        return torch.stack(await comm.all_gather(x)).mean(0)


def kill_oneself(*arguments: Any, **options: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def in_training(rank: int, victim: int) -> str:
    model = jobs.wrapped()
    with gradwire.attach(model, Killing(victim), timeout_s=TIMEOUT_S):
        text = jobs.said(jobs.run_steps, model, range(9), rank)
        again = jobs.said(jobs.run_steps, model, range(1), rank)
        return text if again == text else f"{text}, and then {again}"


def between_two_steps(rank: int, victim: int) -> str:
    """Trains over a ring, where not every rank waits for the lost one."""
    model = jobs.wrapped()
    with gradwire.attach(model, "onebit", ef=True, timeout_s=TIMEOUT_S):
        jobs.run_steps(model, range(KILLED_AT), rank)
        if rank == victim:
            kill_oneself()
        return jobs.said(jobs.run_steps, model, range(KILLED_AT, 9), rank)


def in_sharded_training(rank: int, victim: int) -> str:
    """Trains with FSDP2: the victim ends before it gathers weights."""
    torch.manual_seed(0)
    model = fully_shard(jobs.Net(), reshard_after_forward=False)
    with gradwire.shard_hooks(model, weights="qwd", timeout_s=TIMEOUT_S):
        jobs.run_steps(model, range(KILLED_AT), rank)
        if rank == victim:
            kill_oneself()
        text = jobs.said(jobs.run_steps, model, range(KILLED_AT, 9), rank)
        again = jobs.said(jobs.run_steps, model, range(1), rank)
        return text if again == text else f"{text}, and then {again}"


def in_the_agreement(rank: int, victim: int) -> str:
    """The victim ends once it has sent its arguments."""
    if rank == victim:
        Agreement._get = kill_oneself  # type: ignore[method-assign]
    return jobs.said(gradwire.attach, jobs.wrapped(), timeout_s=TIMEOUT_S)


def stopped_in_the_agreement(rank: int, victim: int) -> str:
    """The victim is stopped before it sends its arguments; its sockets stay open."""
    model = jobs.wrapped()
    if rank == victim:
        time.sleep(0.3)  # the others have wrapped theirs, too
        os.kill(os.getpid(), signal.SIGSTOP)
    return said_in_time(model)


def said_in_time(model: Any) -> str:
    """The error that attach() raises; fails if that takes longer than it may."""
    begin = time.monotonic()
    said = jobs.said(gradwire.attach, model, timeout_s=TIMEOUT_S)
    waited = time.monotonic() - begin
    assert waited < 4 * TIMEOUT_S, waited
    return said


def stopped_as_they_connect(rank: int, victim: int) -> str:
    """The victim is stopped once it has agreed."""
    if rank == victim:
        world.private_group = lambda *given, **named: os.kill(os.getpid(), signal.SIGSTOP)  # type: ignore[assignment]
    return said_in_time(jobs.wrapped())


def after_the_agreement(rank: int, victim: int) -> str:
    """The victim ends as the ranks connect."""
    if rank == victim:
        world.private_group = kill_oneself
    return jobs.said(gradwire.attach, jobs.wrapped(), timeout_s=TIMEOUT_S)


def run(job: Any, victim: int, folder: Path) -> tuple[dict[int, str], list[int | None]]:
    """Each survivor's error, and all exit codes; asserts that no rank hangs.

    If `victim` is 0, the store that the ranks agree through is lost with it.
    """
    context = worker_context()
    pairs = [context.Pipe(duplex=False) for _ in range(SIZE)]
    processes = [
        context.Process(target=_rank, args=(job, rank, victim, str(folder), theirs), daemon=True)
        for rank, (_, theirs) in enumerate(pairs)
    ]
    for process in processes:
        process.start()
    for _, theirs in pairs:
        theirs.close()
    said = dict[int, str]()
    try:
        for rank, (own, _) in enumerate(pairs):
            if rank != victim:
                assert own.poll(60 + TIMEOUT_S), f"rank {rank} hangs"
                said[rank] = own.recv()
        processes[victim].kill()  # where it is only stopped
        for process in processes:
            process.join(60)
        return said, [process.exitcode for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.join()


def _rank(job: Any, rank: int, victim: int, folder: str, answer: Connection) -> None:
    torch.set_num_threads(1)
    timeout = timedelta(seconds=30)
    if victim:
        store: Any = FileStore(f"{folder}/store", SIZE)
    else:
        store = _tcp_store(rank, Path(folder) / "port", timeout)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=SIZE, timeout=timeout)
    dist.barrier()
    answer.send(job(rank, victim))


def _tcp_store(rank: int, port: Path, timeout: timedelta) -> TCPStore:
    """A store as `env://` makes it: rank 0 serves."""
    if rank == 0:
        store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False, timeout=timeout)
        port.with_suffix(".part").write_text(str(store.port))
        port.with_suffix(".part").rename(port)
        return store
    while not port.exists():
        time.sleep(0.01)
    return TCPStore("localhost", int(port.read_text()), is_master=False, timeout=timeout)
