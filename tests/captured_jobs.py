"""Steps of several buckets between real workers, whose rounds are captured."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

import torch
from emulated_graph import RefusingGraph, RerunGraph, post_unless_capturing
from torch import Tensor

from gradwire.codecs.interface import Layout
from gradwire.codecs.native.call import Call
from gradwire.codecs.native.choice import using_kernels
from gradwire.codecs.registry import make_codec
from gradwire.harness.comm.collective.collectives import Fabric
from gradwire.harness.comm.topology.registry import make_schedule
from gradwire.harness.comm.transport.captured_rounds import CapturedRounds
from gradwire.harness.comm.transport.process import ProcessChannel
from gradwire.harness.comm.world.process import Connections, ProcessWorld
from gradwire.harness.parallel.synchronize import synchronize_buckets

CPU = torch.device("cpu")
STEPS, SIZES = 6, (3000, 517, 1200)
GRAPHS: dict[str, Callable[[], Any]] = {"rerun": RerunGraph, "refusing": RefusingGraph}

Trained = tuple[list[list[Tensor]], list[dict[str, int]], int, list[str]]
"""Means by step and bucket, bytes by phase of each step, launches, and what was logged."""


_run, _emulation = Call.run, threading.Lock()


def _one_at_a_time(call: Call) -> None:
    """The emulation has one device for all threads; launches, unlike rounds, do not take turns."""
    with _emulation:
        _run(call)


def gradient(step: int, bucket: int, rank: int) -> Tensor:
    return torch.randn(
        SIZES[bucket], generator=torch.Generator().manual_seed(100 * step + 10 * bucket + rank)
    )


def steps_of_rank(
    rank: int,
    size: int,
    codec: str,
    graphs: str | None,
    required: bool = False,
    spans: bool = False,
    moves: bool = False,
    kernels: str = "emulated",
) -> Trained:
    """Trains one rank; buckets keep their place in memory from step to step unless `moves` is true."""
    said = list[str]()
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("gradwire.harness.comm.transport.captured_rounds")
    logger.addHandler(handler)
    captured = None if graphs is None else CapturedRounds(GRAPHS[graphs], CPU, required=required)
    fabric = Fabric(partial(make_schedule, "ring"))
    world = ProcessWorld(fabric, CPU, Connections(timeout_s=30), spans=spans, captured=captured)
    made, means, sent = make_codec(codec), list[list[Tensor]](), list[dict[str, int]]()
    buckets = [torch.empty(numel) for numel in SIZES]
    kept = list[Tensor]()
    try:
        with (
            using_kernels(kernels),
            mock.patch.object(Call, "run", _one_at_a_time),
            mock.patch.object(ProcessChannel, "_post", post_unless_capturing),
        ):
            for step in range(STEPS):
                if moves:
                    kept += buckets
                    buckets = [torch.empty(numel) for numel in SIZES]
                for index, bucket in enumerate(buckets):
                    bucket.copy_(gradient(step, index, rank))
                own = [(Layout.flat(x.numel(), name=f"bucket{i}"), x) for i, x in enumerate(buckets)]
                program = synchronize_buckets(made, step, 5, size, own, check_hashes=False)
                means.append([mean.clone() for mean in world.run_step(step, {rank: program}).results[rank]])
                sent.append(dict(world.take_traffic()[rank].by_phase))
                made.end_step(step)
        return means, sent, 0 if captured is None else captured.launches, said
    finally:
        world.close()
        logger.removeHandler(handler)
