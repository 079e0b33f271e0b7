"""Computes the rows of a simulated training, i.e. all passes and transmissions with their times, from its
settings.

ResNet50 comes in 1 to 6 blocks (AQGB Table 1, §5.2.6). The paper prints figures only for 4 blocks, and where
the others are split. Here a split block's parameters are divided by the number of parameters of its layers,
its times by their number of multiplications (He et al., "Deep residual learning for image recognition", Table
1).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from gradwire.harness.network.configured import make_links
from gradwire.harness.network.settings import SimulatedConfig
from gradwire.harness.runtime.progress import Progress
from gradwire.harness.studies.simulate.study import SimulateTask
from gradwire.harness.timing.simulate.blocks import BACKWARD, FORWARD, ComputeBlock, Variation, blocks_in_time
from gradwire.harness.timing.simulate.rounds import BroadcastScheme, RoundRows, train

Row = list[float]
"""Number of parameters, share of the forward pass, share of the backward pass."""

TABLE_1: tuple[Row, ...] = (
    [3.0e6, 0.419, 0.505],  # conv1 … conv4_1
    [5.6e6, 0.155, 0.142],  # conv4_2 … conv4_6
    [6.0e6, 0.165, 0.129],  # conv5_1
    [11.0e6, 0.261, 0.224],  # conv5_2 … fc1000
)

EARLIER = 1 / 2
"""The share of the first block's parameters in conv1 … conv3_4; the rest is in conv4_1."""

CONV4_1_OVER_CONV4_2 = 1.35
"""Ratio of multiplications; conv4_1 also projects its input to more channels."""

CONV5_2 = 4.5 / 11.0
"""conv5_2's share of the last block's parameters. conv5_3 has the same, and fc1000 has two million, which
take little time, so either half takes half of the block's time."""


def split(blocks: int) -> list[Row]:
    """ResNet50 in `blocks` blocks, in the form of `network.blocks`, in the order of the forward pass."""
    return [[round(parameters), *shares] for parameters, *shares in _split(blocks)]


def _split(blocks: int) -> list[Row]:
    first, second, third, last = TABLE_1
    if blocks == 1:
        return [_merged(TABLE_1)]
    if blocks == 3:
        return [list(first), list(second), _merged((third, last))]
    if blocks == 4:
        return [list(row) for row in TABLE_1]
    halves = [
        [CONV5_2 * last[0], last[1] / 2, last[2] / 2],
        [(1 - CONV5_2) * last[0], last[1] / 2, last[2] / 2],
    ]
    if blocks == 5:
        return [list(first), list(second), list(third), *halves]
    assert blocks == 6
    return [*_regrouped(first, second), list(third), *halves]


def _regrouped(first: Row, second: Row) -> list[Row]:
    """The first two blocks as three: conv1 … conv3_4; conv4_1 … conv4_3; conv4_4 … conv4_6."""
    one_of_five = [each / 5 for each in second]  # conv4_2 … conv4_6 are alike
    conv4_1 = [(1 - EARLIER) * first[0], *(CONV4_1_OVER_CONV4_2 * each for each in one_of_five[1:])]
    earlier = [of_block - own for of_block, own in zip(first, conv4_1, strict=True)]
    return [earlier, _merged((conv4_1, one_of_five, one_of_five)), _merged((one_of_five,) * 3)]


def _merged(rows: Sequence[Row]) -> Row:
    return [sum(column) for column in zip(*rows, strict=True)]


def blocks_of(config: SimulateTask) -> tuple[ComputeBlock, ...]:
    """The blocks of a resolved configuration: the network's own, else ResNet50's."""
    network = config.network
    assert isinstance(network, SimulatedConfig) and network.compute_s is not None
    rows = network.blocks or split(config.simulate.split or 0)
    return blocks_in_time(rows, network.compute_s, network.forward_share)


def simulated(config: SimulateTask) -> RoundRows:
    """Simulates a resolved configuration."""
    given, network, size = config.simulate, config.network, config.cluster.size
    assert isinstance(network, SimulatedConfig)
    blocks = blocks_of(config)
    times = compute_times(blocks, Variation.of(network, config.seed), size, given.seconds)
    scheme = BroadcastScheme(
        network.multicast,
        adaptive=given.scheme == "aqgb",
        bits=given.bits or 32,
        unhindered=given.scheme == "ideal",
        partition=given.partition,
    )
    if scheme.adaptive:
        assert given.floor is not None and given.margin_s is not None and given.gain is not None
        scheme = replace(scheme, floor=given.floor, margin_s=given.margin_s, gain=given.gain)
    with Progress("simulating", math.ceil(given.seconds), "s") as progress:
        return train(
            [block.parameters for block in blocks],
            times,
            make_links(network, size),
            scheme,
            until_s=given.seconds,
            on_progress=lambda seconds: progress.advance(number=math.floor(seconds) - progress.done),
        )


def compute_times(
    blocks: tuple[ComputeBlock, ...], variation: Variation, workers: int, seconds: float
) -> NDArray[np.float64]:
    """Seconds of each pass, (rounds, workers, 2, blocks), forward passes first, for enough rounds that every
    worker computes for `seconds`."""
    rounds, computed = list[NDArray[np.float64]](), np.zeros(workers)
    while computed.min() <= seconds:
        rounds.append(np.array(list(_round(blocks, variation, workers, len(rounds)))))
        computed += rounds[-1].sum(axis=(1, 2))
    return np.stack(rounds)


def _round(
    blocks: tuple[ComputeBlock, ...], variation: Variation, workers: int, number: int
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
