"""One real worker: synchronizes again and again, and records how long each round took."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path

from omegaconf import DictConfig
from torch import Tensor

from gradwire.codecs.native.choice import using_kernels
from gradwire.harness.comm.world.process import ProcessWorld
from gradwire.harness.files.writing import write_atomically
from gradwire.harness.launch.worker import joined_process_group
from gradwire.harness.network.shaped.namespace import Entrance
from gradwire.harness.runtime.heartbeat import COMPLETE, beat
from gradwire.harness.studies.allreduce.subject import WARM_UP, Rounds
from gradwire.harness.trainer.parts import build_world

FILE = "measured.json"


def measure_rank(
    config: DictConfig, folder: Path, rendezvous: Path, entrances: Sequence[Entrance] | None, rank: int
) -> None:
    """Rank 0 writes `measured.json` to `folder`: per round and rank, the seconds, those of codec work, and
    the bytes sent, by phase."""
    entrance = None if entrances is None else entrances[rank]
    with (
        joined_process_group(config, rank, rendezvous, entrance) as device,
        using_kernels(config.kernels.name),
    ):
        world = build_world(config, device)
        assert isinstance(world, ProcessWorld)
        try:
            rounds = Rounds(config, rank, device)
            for number in range(WARM_UP):
                _round(world, rounds, number)
            world.traffic[rank].by_phase.clear()
            found = [_round(world, rounds, WARM_UP + number) for number in range(config.allreduce.repeats)]
            sent = float(world.traffic[rank].total)
            rows = world.gather({rank: [sent, *(value for pair in found for value in pair)]})
            if rank == 0:
                write_atomically(folder / FILE, json.dumps(rows))
                beat(COMPLETE)
        finally:
            world.close()


def _round(world: ProcessWorld, rounds: Rounds, number: int) -> tuple[float, float]:
    """Returns the seconds from all ranks being ready until this one has the mean, and those of codec work."""
    beat("rounds")
    recorder = world.recorders[world.rank]
    world.gather({world.rank: [0.0]})
    recorder.drain()
    future: Future[Tensor] = Future()
    start = time.perf_counter()
    numel = rounds.numel
    world.submit(rounds.synchronization(number), "allreduce", future, coordinates=numel)
    future.result()
    seconds = time.perf_counter() - start
    rounds.end(number)
    world.take_notes()
    codec = sum(span.end - span.start for span in recorder.drain() if span.kind == "codec")
    return seconds, codec
