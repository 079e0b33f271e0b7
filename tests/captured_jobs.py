"""Steps of several buckets between real workers, whose rounds are captured."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

import torch
from emulated_graph import RefusingGraph, RerunGraph, post_unless_capturing, run_unless_capturing
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
from gradwire.harness.comm.world.process_captured import CapturedBuckets
from gradwire.harness.parallel.synchronize import synchronize_buckets
from gradwire.harness.timing.measure.spans import Span
from gradwire.harness.timing.trace.step import RankTrace

CPU = torch.device("cpu")
STEPS, SIZES = 6, (3000, 517, 1200)
GRAPHS: dict[str, Callable[[], Any]] = {"rerun": RerunGraph, "refusing": RefusingGraph}

Trained = tuple[list[list[Tensor]], list[dict[str, int]], int, list[str]]
"""Means by step and bucket, bytes by phase of each step, launches, and what was logged."""


_emulation = threading.Lock()


def _one_at_a_time(call: Call) -> None:
    """The emulation has one device for all threads; launches, unlike rounds, do not take turns."""
    with _emulation:
        run_unless_capturing(call)


def _world(captured: CapturedRounds | None, *, spans: bool = False, trace: bool = False) -> ProcessWorld:
    fabric = Fabric(partial(make_schedule, "ring"))
    return ProcessWorld(fabric, CPU, Connections(timeout_s=30), spans=spans, trace=trace, captured=captured)


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
    """Trains one rank; buckets keep their place in memory from step to step unless `moves` is true. `codec`
    is a name, followed by "+ef" for error feedback."""
    said = list[str]()
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("gradwire.harness.comm.transport.captured_rounds")
    logger.addHandler(handler)
    captured = None if graphs is None else CapturedRounds(GRAPHS[graphs], CPU, required=required)
    world = _world(captured, spans=spans)
    name, _, feedback = codec.partition("+")
    made, means, sent = make_codec(name, ef=bool(feedback)), list[list[Tensor]](), list[dict[str, int]]()
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


Timed = tuple[list[list[Span]], list[RankTrace | None], list[bool], CapturedBuckets | None]
"""By step: spans, trace, whether work was left out; and what the record says of captured rounds."""


def timed_steps_of_rank(
    rank: int, size: int, codec: str, graphs: str | None, trace: bool, every: int, steps: int = 8
) -> Timed:
    """Trains one rank, whose world records spans, and traces if asked to; marks are taken in one step of
    `every`, or as the ranks agree after step 8 if that is 0. Times are read as a run reads them."""
    captured = None if graphs is None else CapturedRounds(GRAPHS[graphs], CPU, required=False)
    world, made = _world(captured, spans=True, trace=trace), make_codec(codec)
    work, recorder = world._captured, world.recorders[rank]
    if work is not None and every:
        work.cost.every, work.cost.share = every, 0.0
    buckets = [torch.empty(numel) for numel in SIZES]
    spans, traces, gaps = list[list[Span]](), list[RankTrace | None](), list[bool]()
    try:
        with (
            using_kernels("emulated"),
            mock.patch.object(Call, "run", _one_at_a_time),
            mock.patch.object(ProcessChannel, "_post", post_unless_capturing),
        ):
            for step in range(steps):
                for index, bucket in enumerate(buckets):
                    bucket.copy_(gradient(step, index, rank))
                own = [(Layout.flat(x.numel(), name=f"bucket{i}"), x) for i, x in enumerate(buckets)]
                program = synchronize_buckets(made, step, 5, size, own, check_hashes=False)
                start = recorder.timestamp()
                world.run_step(step, {rank: program})
                end = recorder.timestamp()
                made.end_step(step)
                gaps.append(recorder.take_gap())
                notes = world.take_notes().get(rank)
                world.settle()
                spans.append([span for span in recorder.drain() if span.kind in ("codec", "comm")])
                assert all(start <= span.start <= span.end <= end for span in spans[-1]), "in this step"
                traces.append(None if notes is None else notes.resolve(start, end, recorder.seconds))
            world.agree_on_timing()
        return spans, traces, gaps, world.captured_buckets()
    finally:
        world.close()
