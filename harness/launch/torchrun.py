"""Runs one validated configuration as a rank that torchrun, accelerate launch or srun has started."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist

from gradwire.harness.checkpoint.resume import is_finished, open_run
from gradwire.harness.comm.nodes import check_launched_nodes, launched_node
from gradwire.harness.comm.topology.registry import depends_on_nodes
from gradwire.harness.launch.launch import (
    clean_up,
    print_notes,
    raise_if_stopped,
    run_here,
)
from gradwire.harness.launch.patience import watchdog
from gradwire.harness.launch.stop import stop_requests
from gradwire.harness.launch.verdict import blamed_peer, describe
from gradwire.harness.launch.worker import join_process_group, prepare_process, train
from gradwire.harness.record.directory import FAILED, DirectoryLock, DivergedError, is_done, mark_failed
from gradwire.harness.runtime.errors import ConfigError, refused_as_config_error
from gradwire.harness.tracking.follow import tracked
from gradwire.harness.trainer.parts import prepare
from gradwire.harness.trainer.settings import RunConfig


def under_torchrun() -> bool:
    """True if torchrun (or accelerate launch, or srun with its variables) started this process."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def restarted_by_torchrun() -> bool:
    """True if `torchrun --max-restarts` has restarted the ranks after one of them failed."""
    return under_torchrun() and int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def run_torchrun_rank(config: RunConfig, directory: Path, draw: Callable[[], object] | None = None) -> None:
    """Trains as a rank of torchrun unless the run is done; all ranks use rank 0's `directory`, and rank 0
    calls `draw` as `run_here` does.

    Raises ConfigError, on all ranks alike, for what a user can fix.
    """
    if config.cluster.name == "virtual":  # a world of one
        run_here(config, directory, draw)
        return
    with stop_requests(at_once=True):
        others = os.environ.get("LOCAL_RANK", "0") != "0"  # one of a node looks
        refused_as_config_error(prepare, config, verified=others)
    rank = int(os.environ["RANK"])
    device = prepare_process(config.cluster, int(os.environ.get("LOCAL_RANK", "0")))
    join_process_group(config.cluster)
    try:
        _check_nodes(config)
        with stop_requests() as stop, _claimed_by_rank_0(config, directory, rank) as claim:
            if claim.done:
                return
            shared = claim.directory
            with _tracked_by_rank_0(config, shared, rank):
                with _rank_failure_recorded(shared, rank):
                    with watchdog(config.cluster.hang_s, rank, shared):
                        finished = train(config, shared, device, claim.checkpoint, stop)
                        if not finished:
                            stop.number_of_ranks = _agreed_signal(stop.number)
                    raise_if_stopped(shared, stop, finished)
                if draw is not None and rank == 0:
                    draw()
    finally:
        dist.destroy_process_group()


def _agreed_signal(number: int | None) -> int | None:
    """The signal that some rank has received, agreed on by all ranks, which end after the same step."""
    numbers: list[int | None] = [None] * dist.get_world_size()
    dist.all_gather_object(numbers, number)
    return next(filter(None, numbers), None)


def _check_nodes(config: RunConfig) -> None:
    """Raises ConfigError on all ranks if the launcher's variables give them different nodes."""
    nodes: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(nodes, launched_node(config.cluster))
    topology = config.topology.name
    refused_as_config_error(check_launched_nodes, nodes, topology if depends_on_nodes(topology) else None)


@dataclass(frozen=True)
class _DirectoryClaim:
    """Rank 0's message to all ranks about the directory that it has locked; `refusal` is the reason why they
    may not use it."""

    directory: Path
    done: bool = False
    checkpoint: Path | None = None
    refusal: str = ""


@contextmanager
def _claimed_by_rank_0(config: RunConfig, directory: Path, rank: int) -> Iterator[_DirectoryClaim]:
    """Locks and opens the directory on rank 0, and gives all ranks one answer.

    Raises ConfigError on all ranks if another run is using the directory, or if its contents may not be
    resumed.
    """
    lock: DirectoryLock | None = None
    claim = _DirectoryClaim(directory)
    if rank == 0:
        try:
            lock = DirectoryLock(directory)
            claim = _open(config, directory.absolute())
        except ValueError as error:
            claim = _DirectoryClaim(directory, refusal=str(error))
    try:
        answer = [claim]
        dist.broadcast_object_list(answer, src=0)
        if answer[0].refusal:
            raise ConfigError(answer[0].refusal)
        yield answer[0]
    finally:
        if lock is not None:
            if is_done(directory):  # else the other ranks may still be writing; the next attempt cleans
                clean_up(directory)
            lock.release()


def _open(config: RunConfig, directory: Path) -> _DirectoryClaim:
    if is_finished(config, directory):
        return _DirectoryClaim(directory, done=True)
    opened = open_run(config, directory)
    print_notes(opened)
    return _DirectoryClaim(directory, checkpoint=opened.checkpoint)


def _tracked_by_rank_0(config: RunConfig, directory: Path, rank: int) -> AbstractContextManager[None]:
    return tracked(config.tracking, config.mapping(), directory) if rank == 0 else nullcontext()


@contextmanager
def _rank_failure_recorded(directory: Path, rank: int) -> Iterator[None]:
    """Makes every rank that can access the directory record its failure; the loss of a peer does not
    overwrite another reason."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        if rank == 0:
            mark_failed(directory, str(interrupt) or "interrupted")
        raise
    except DivergedError as error:  # of all ranks alike
        if rank == 0:
            mark_failed(directory, str(error))
        raise
    except Exception as error:
        if blamed_peer(error) is None or not (directory / FAILED).exists():
            mark_failed(directory, f"rank {rank} failed: {describe(error)}")
        if isinstance(error, ValueError):  # this rank's alone: a ValueError of all is reported by rank 0
            raise RuntimeError(f"rank {rank} failed: {describe(error)}") from error
        raise
