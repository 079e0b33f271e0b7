"""Virtual worlds on a simulated clock where computation takes times that a test gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gradwire.harness.comm.collective.collectives import Fabric
from gradwire.harness.comm.world.virtual import VirtualWorld
from gradwire.harness.network.links import Links
from gradwire.harness.timing.measure.work_clock import HostClock
from gradwire.harness.timing.simulate.clock import SimulatedClock
from gradwire.harness.timing.simulate.codec_times import NoTimes


class Passing:
    """A wall clock that moves only when a test moves it."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def passes(self, seconds: float) -> None:
        self.now += seconds


class MarkedBy(HostClock):
    """A clock of work whose marks are what a function returns, in seconds."""

    def __init__(self, read: Callable[[], float]) -> None:
        super().__init__()
        self.mark = read


def given_world(size: int, fabric: Fabric, links: Links, **clock: Any) -> tuple[VirtualWorld, Passing]:
    """A world in which only what is said to pass takes time, and the links."""
    passing = Passing()
    simulated = SimulatedClock(links, codec_times=NoTimes(), **clock)
    world = VirtualWorld(
        size, fabric, torch.device("cpu"), clock=simulated, debug=True, work_clock=MarkedBy(passing)
    )
    return world, passing
