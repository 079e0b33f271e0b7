"""From the settings to the rows of a simulated training: who computes and sends what, and when."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from gradwire.harness.network.configured import make_links
from gradwire.harness.network.settings import SimulatedConfig
from gradwire.harness.runtime.progress import Progress
from gradwire.harness.studies.simulate.settings import SimulateTask
from gradwire.harness.studies.simulate.splits import split
from gradwire.harness.timing.simulate.blocks import BACKWARD, FORWARD, Block, Variation, blocks_in_time
from gradwire.harness.timing.simulate.rounds import Rows, train


def blocks_of(config: SimulateTask) -> tuple[Block, ...]:
    """The blocks of a resolved configuration: those of the network, else ResNet50's."""
    network = config.network
    assert isinstance(network, SimulatedConfig) and network.compute_s is not None
    rows = network.blocks or split(config.simulate.split or 0)
    return blocks_in_time(rows, network.compute_s, network.forward_share)


def simulated(config: SimulateTask) -> Rows:
    """The rows of a resolved configuration."""
    given, network, size = config.simulate, config.network, config.cluster.size
    assert isinstance(network, SimulatedConfig)
    blocks = blocks_of(config)
    times = compute_times(blocks, Variation.of(network, config.seed), size, given.seconds)
    adaptive = given.scheme == "aqgb"
    chosen = {}
    if adaptive:
        assert given.floor is not None and given.margin_s is not None and given.gain is not None
        chosen = {"floor": given.floor, "margin_s": given.margin_s, "gain": given.gain}
    with Progress("simulating", math.ceil(given.seconds), "s") as progress:
        return train(
            [block.parameters for block in blocks],
            times,
            make_links(network, size),
            multicast=network.multicast,
            adaptive=adaptive,
            bits=given.bits or 32,
            unhindered=given.scheme == "ideal",
            partition=given.partition,
            until_s=given.seconds,
            told=lambda seconds: progress.advance(number=math.floor(seconds) - progress.done),
            **chosen,
        )


def compute_times(
    blocks: tuple[Block, ...], variation: Variation, workers: int, seconds: float
) -> NDArray[np.float64]:
    """Seconds of each pass (rounds, workers, 2, blocks), forward passes first: as many rounds as make every
    worker compute for `seconds`."""
    rounds, computed = list[NDArray[np.float64]](), np.zeros(workers)
    while computed.min() <= seconds:
        rounds.append(np.array(list(_round(blocks, variation, workers, len(rounds)))))
        computed += rounds[-1].sum(axis=(1, 2))
    return np.stack(rounds)


def _round(
    blocks: tuple[Block, ...], variation: Variation, workers: int, number: int
) -> Iterator[list[list[float]]]:
    for rank in range(workers):
        yield [
            [
                variation.block_factor(number, rank, at, direction) * seconds
                for at, seconds in enumerate(times)
            ]
            for direction, times in (
                (FORWARD, [block.forward_s for block in blocks]),
                (BACKWARD, [block.backward_s for block in blocks]),
            )
        ]
