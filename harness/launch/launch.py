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

from gradwire.harness.config.errors import ConfigError
from gradwire.harness.launch.processes import WorkerError, run_processes, sigterm_as_interrupt
from gradwire.harness.launch.verdict import blamed_peer, describe, tracebacks
from gradwire.harness.launch.worker import prepare_process, train, train_local_rank, train_virtual
from gradwire.harness.record.writer import (
    FAILED,
    TRACEBACKS,
    DirectoryLock,
    forget_failure,
    is_done,
    mark_failed,
    write_atomically,
)
from gradwire.harness.trainer.build import load_data


def under_torchrun() -> bool:
    """Whether torchrun (or accelerate launch, or srun with its variables) started this process."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def run_here(config: DictConfig, directory: Path) -> None:
    """Train with all ranks started or hosted by this process, unless another run has just done so.

    Raises ValueError for what a user can mend, before anything is written, and WorkerError naming the
    rank; the directory then says FAILED and why.
    """
    load_data(config)  # once, before the ranks ask the cache for it
    lock = DirectoryLock(directory)
    try:
        if is_done(directory):
            return
        forget_failure(directory)
        with sigterm_as_interrupt(), _failure_recorded(directory):
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
    except WorkerError as error:
        text = tracebacks(folder)
        if not text:
            raise
        write_atomically(directory / TRACEBACKS, text)
        raise WorkerError(f"{error} (tracebacks: {directory / TRACEBACKS})") from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _local_rank(config: DictConfig, directory: Path, rendezvous: Path, rank: int) -> None:
    train_local_rank(config, directory, rank, rendezvous)


@contextmanager
def _failure_recorded(directory: Path) -> Iterator[None]:
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        mark_failed(directory, "interrupted")
        raise
    except BaseException as error:
        mark_failed(directory, f"{error}" if isinstance(error, WorkerError) else describe(error))
        raise


def run_torchrun_rank(config: DictConfig, directory: Path) -> None:
    """Train as the rank torchrun made us, unless the run is done; rank 0's `directory` is everybody's.

    Raises ConfigError, on all ranks alike, for what a user can mend.
    """
    if config.cluster.name == "virtual":  # a world of one
        run_here(config, directory)
        return
    try:
        load_data(config)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    rank = int(os.environ["RANK"])
    device = prepare_process(config, int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group(config.cluster.backend, timeout=timedelta(seconds=config.cluster.timeout_s))
    try:
        with _claimed_by_rank_0(directory, rank) as (shared, done):
            if not done:
                with _rank_failure_recorded(shared, rank):
                    train(config, shared, device, writes=rank == 0)
    finally:
        dist.destroy_process_group()


@contextmanager
def _claimed_by_rank_0(directory: Path, rank: int) -> Iterator[tuple[Path, bool]]:
    """Rank 0's directory, locked by it, and whether a run has finished there: one answer for all ranks.

    Raises ConfigError on all ranks when another run is using it.
    """
    lock, answer = None, ["", False, ""]
    if rank == 0:
        try:
            lock = DirectoryLock(directory)
            answer = [str(directory.absolute()), is_done(directory), ""]
            forget_failure(directory)
        except ValueError as error:
            answer = ["", False, str(error)]
    try:
        dist.broadcast_object_list(answer, src=0)
        shared, done, refusal = answer
        if refusal:
            raise ConfigError(str(refusal))
        yield Path(str(shared)), bool(done)
    finally:
        if lock is not None:
            lock.release()


@contextmanager
def _rank_failure_recorded(directory: Path, rank: int) -> Iterator[None]:
    """Every rank that can see the directory says why it failed; losing a peer overwrites no other reason."""
    try:
        yield
    except Exception as error:
        if blamed_peer(error) is None or not (directory / FAILED).exists():
            mark_failed(directory, f"rank {rank} failed: {describe(error)}")
        if isinstance(error, ValueError):  # this rank's alone, where a ValueError of all is told by rank 0
            raise RuntimeError(f"rank {rank} failed: {describe(error)}") from error
        raise
