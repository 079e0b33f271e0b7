"""Runs one validated configuration to its end: real processes here, a virtual cluster, or torchrun's rank."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist
from omegaconf import DictConfig

from gradwire.harness.launch.processes import WorkerError, run_processes, tracebacks
from gradwire.harness.launch.worker import prepare_process, train, train_local_rank, train_virtual
from gradwire.harness.record.writer import DirectoryLock, mark_failed, write_atomically
from gradwire.harness.trainer.build import load_data

TRACEBACKS = "tracebacks.txt"


def under_torchrun() -> bool:
    """Whether torchrun (or accelerate launch, or srun with its variables) started this process."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def run_here(config: DictConfig, directory: Path) -> None:
    """Train with all ranks started or hosted by this process.

    Raises ValueError for what a user can mend and WorkerError naming the rank; the directory then
    says FAILED and why.
    """
    lock = DirectoryLock(directory)
    try:
        with _failure_recorded(directory):
            load_data(config)  # once, before the ranks ask the cache for it
            if config.cluster.name == "virtual":
                train_virtual(config, directory)
            else:
                _run_local(config, directory)
    finally:
        lock.release()


def _run_local(config: DictConfig, directory: Path) -> None:
    folder = Path(tempfile.mkdtemp(prefix="gradwire-"))
    os.environ["OMP_NUM_THREADS"] = "1"  # read by the children's thread pools as they load
    try:
        arguments = (config, directory, folder / "rendezvous")
        run_processes(_local_rank, arguments, config.cluster.workers, folder)
    except WorkerError:
        write_atomically(directory / TRACEBACKS, tracebacks(folder))
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _local_rank(config: DictConfig, directory: Path, rendezvous: Path, rank: int) -> None:
    train_local_rank(config, directory, rank, rendezvous)


@contextmanager
def _failure_recorded(directory: Path) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        interrupted = isinstance(error, KeyboardInterrupt | SystemExit)
        mark_failed(directory, "interrupted" if interrupted else f"{error}" or type(error).__name__)
        raise


def run_torchrun_rank(config: DictConfig, directory: Path) -> Path:
    """Train as the rank torchrun made us; all ranks use rank 0's directory, which is returned."""
    rank = int(os.environ["RANK"])
    device = prepare_process(config, int(os.environ.get("LOCAL_RANK", "0")))
    if config.cluster.name == "virtual":
        train_virtual(config, directory)
        return directory
    dist.init_process_group(config.cluster.backend, timeout=timedelta(seconds=config.cluster.timeout_s))
    try:
        shared = [str(directory.absolute())]
        dist.broadcast_object_list(shared, src=0)
        directory = Path(shared[0])
        with _failure_recorded(directory):
            train(config, directory, device, writes=rank == 0)
    finally:
        dist.destroy_process_group()
    return directory
