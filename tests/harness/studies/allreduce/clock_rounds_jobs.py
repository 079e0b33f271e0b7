"""Rounds of a codec that decides by the clock, on pool workers."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from clock_codec import ClockDriven

from gradwire.codecs.wrappers.decisions import decision_of
from gradwire.harness.comm.collective.collectives import Fabric
from gradwire.harness.comm.topology.registry import make_schedule
from gradwire.harness.comm.world.process import ProcessWorld
from gradwire.harness.studies.allreduce.rounds import Rounds, _round
from gradwire.harness.studies.allreduce.settings import AllReduceTask


def decided(rank: int, size: int, config: AllReduceTask) -> list[Any]:
    """What follows from each of some rounds between real workers."""
    assert config.codec == {"name": ClockDriven.name}
    device = torch.device("cpu")
    world = ProcessWorld(Fabric(partial(make_schedule, "ring")), device, trace=True)
    try:
        rounds, found = Rounds(config, rank, device), []
        for number in range(4):
            _round(world, rank, rounds, number)
            found.append(decision_of(rounds.codec))
        return found
    finally:
        world.close()
