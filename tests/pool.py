"""One pool of gloo workers for the whole test run, because starting a process takes seconds."""

from __future__ import annotations

import importlib
import itertools
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

TIMEOUT_S = 90.0

IMPORTED = ["gradwire.harness.trainer.parts", "transformers.models.gpt2.modeling_gpt2"]
"""Modules that take seconds to import and start no thread: imported once, before workers are forked."""


def _serve(connection: Connection, paths: list[str], timeout_s: float) -> None:
    """A worker: runs jobs sent to it, each in a process group of its own."""
    sys.path[:] = paths
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    while (job := connection.recv()) is not None:
        module, name, rank, size, store, arguments = job
        try:
            dist.init_process_group(
                "gloo",
                store=dist.FileStore(store, size),
                rank=rank,
                world_size=size,
                timeout=timedelta(seconds=timeout_s / 3),
            )
            try:
                dist.barrier()  # a short job's rank must not leave while others still connect
                result = getattr(importlib.import_module(module), name)(rank, size, *arguments)
            finally:
                dist.destroy_process_group()
            connection.send((True, result))
        except BaseException:
            connection.send((False, traceback.format_exc()))


def worker_context() -> Any:
    """Starts processes that have imported most of what they need, where the system can."""
    context = get_context("forkserver" if sys.platform == "linux" else "spawn")
    context.set_forkserver_preload(IMPORTED)
    os.environ |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    return context


class WorkerPool:
    """Starts workers when they are first needed and keeps them."""

    def __init__(self, timeout_s: float = TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._connections: list[Connection] = []
        self._processes: list[Any] = []
        self._folder = tempfile.TemporaryDirectory(prefix="gradwire-tests-")
        self._numbers = itertools.count()

    def _grow(self, size: int) -> None:
        context = worker_context()
        while len(self._processes) < size:
            own, theirs = context.Pipe()
            process = context.Process(
                target=_serve, args=(theirs, list(sys.path), self._timeout_s), daemon=True
            )
            process.start()
            theirs.close()
            self._connections.append(own)
            self._processes.append(process)

    def run(self, size: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """`function(rank, size, *arguments)` on `size` workers; the results in rank order.

        Fails the test with the workers' tracebacks if one of them raises or does not answer.
        """
        self._grow(size)
        store = str(Path(self._folder.name) / f"store{next(self._numbers)}")
        for rank in range(size):
            self._connections[rank].send(
                (function.__module__, function.__name__, rank, size, store, arguments)
            )
        results, failures = [], []
        for rank in range(size):
            if not self._connections[rank].poll(self._timeout_s):
                failures.append(f"rank {rank} does not answer")
                continue
            succeeded, result = self._connections[rank].recv()
            (results if succeeded else failures).append(result if succeeded else f"rank {rank}\n{result}")
        if failures:
            self.close()
            raise AssertionError("\n".join(failures))
        return results

    def close(self) -> None:
        """Kill the workers; the next `run` starts new ones."""
        for process in self._processes:
            process.kill()
            process.join()
        self._connections, self._processes = [], []


class Workers:
    """`workers(n)` of a test: runs a module-level function on n ranks."""

    def __init__(self, pool: WorkerPool) -> None:
        self._pool = pool

    def __call__(self, size: int) -> Callable[..., list[Any]]:
        return lambda function, *arguments: self._pool.run(size, function, *arguments)
