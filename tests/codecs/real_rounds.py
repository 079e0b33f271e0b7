"""The steps of `codec_rounds.Cluster.train`, between real workers."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import torch
import toy_codec
from codec_rounds import MODEL, TAIL, gradients
from torch import Tensor

from gradwire.codecs.interface import Round
from gradwire.codecs.registry import codec_classes, make_codec
from gradwire.harness.comm.collective.collectives import Fabric
from gradwire.harness.comm.topology.registry import make_schedule
from gradwire.harness.comm.world.interface import Submission
from gradwire.harness.comm.world.process import Connections, ProcessWorld
from gradwire.harness.parallel.synchronize import synchronization

assert toy_codec.Toy.name in codec_classes()


def train_rank_for_real(
    rank: int, size: int, topology: str, codec: str, options: dict[str, Any], steps: int
) -> tuple[list[list[Tensor]], dict[str, int], dict[str, Tensor]]:
    """One rank's means by step and bucket, the bytes it sent by phase, and its codec's state."""
    world = ProcessWorld(
        Fabric(lambda n: make_schedule(topology, n)), torch.device("cpu"), Connections(timeout_s=30)
    )
    made, means = make_codec(codec, **options), []
    try:
        for step in range(steps):
            futures: list[Future[Tensor]] = []
            for index, layout in enumerate((MODEL, TAIL)):
                x = gradients(layout, size, step)[rank]
                this_round = Round(step, layout, rank, size, 0, index)
                futures.append(Future())
                collective = synchronization(made, x, this_round, check_hashes=True)
                world.submit(collective, Submission(f"bucket{index}", 0), futures[-1])
            means.append([future.result(30) for future in futures])
            made.end_step(step)
        return means, dict(world.traffic[rank].by_phase), made.state_dict()
    finally:
        world.close()
