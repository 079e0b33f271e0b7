"""The benchmark's all-reduces, as the ranks run them in processes that are already there."""

from __future__ import annotations

from functools import partial

import torch

from gradwire.harness.comm.collective.collectives import Fabric
from gradwire.harness.comm.topology.registry import make_schedule
from gradwire.harness.comm.world.process import ProcessWorld
from gradwire.harness.studies.bench.bus import BusSettings, _rounds


def rounds(rank: int, size: int, settings: BusSettings) -> list[list[float]]:
    """Every rank's row, as `measure_rank` writes it."""
    device = torch.device("cpu")
    world = ProcessWorld(Fabric(partial(make_schedule, "butterfly")), device)
    try:
        taken = [value for row in _rounds(settings, world, device) for value in row]
        return world.gather({rank: taken})
    finally:
        world.close()
