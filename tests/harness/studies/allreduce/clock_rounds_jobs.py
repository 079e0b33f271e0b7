"""Rounds of `task=allreduce` on pool workers."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from clock_codec import ClockDriven

from gradwire.codecs.wrappers.decisions import decision_of
from gradwire.harness.comm.collective.collectives import Fabric
from gradwire.harness.comm.nodes import num_nodes
from gradwire.harness.comm.topology.registry import make_schedule
from gradwire.harness.comm.world.process import ProcessWorld
from gradwire.harness.studies.allreduce.rounds import _round, make_rounds, measure_rounds
from gradwire.harness.studies.allreduce.study import AllReduceTask


def decided(rank: int, size: int, config: AllReduceTask) -> list[Any]:
    """The codec's decision after each of some rounds between real workers."""
    assert config.codec == {"name": ClockDriven.name}
    device = torch.device("cpu")
    world = ProcessWorld(Fabric(partial(make_schedule, "ring")), device, trace=True)
    try:
        rounds, found = make_rounds(config, world)[rank], []
        for number in range(4):
            _round(world, rank, rounds, number)
            found.append(decision_of(rounds.codec))
        return found
    finally:
        world.close()


def measured(rank: int, size: int, config: AllReduceTask) -> dict[str, list[list[float]]]:
    """All ranks' rows of each part of the rounds."""
    nodes = num_nodes(config.cluster, config.network)
    fabric = Fabric(partial(make_schedule, "ring"), num_nodes=nodes)
    world = ProcessWorld(fabric, torch.device("cpu"), spans=True)
    try:
        return measure_rounds(config, world, rank)
    finally:
        world.close()
