"""From the settings to the rows of a simulated training: who computes and sends what, and when.

ResNet50 comes in 1 to 6 blocks (AQGB Table 1, §5.2.6). The paper prints the 4 blocks, says where it splits
the others, and prints no figures of these. Here a split block's parameters and times are divided as its
layers' are: parameters by their number, times by multiplications (He et al., "Deep residual learning for
image recognition", Table 1)."""

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
"""Parameters, share of the forward pass, share of the backward pass."""

TABLE_1: tuple[Row, ...] = (
    [3.0e6, 0.419, 0.505],  # conv1 … conv4_1
    [5.6e6, 0.155, 0.142],  # conv4_2 … conv4_6
    [6.0e6, 0.165, 0.129],  # conv5_1
    [11.0e6, 0.261, 0.224],  # conv5_2 … fc1000
)

EARLIER = 1 / 2
"""The share of the first block's parameters that conv1 … conv3_4 have; conv4_1 has the rest."""

CONV4_1_OVER_CONV4_2 = 1.35
"""Multiplications: conv4_1 also projects its input to more channels."""

CONV5_2 = 4.5 / 11.0
"""Its share of the last block's parameters. conv5_3 has as many, and fc1000 two millions, which take little
time: either half takes half of the block's."""


def split(blocks: int) -> list[Row]:
    """ResNet50 in so many blocks, as `network.blocks`, in the order of the forward pass."""
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
    """conv1 … conv3_4; conv4_1 … conv4_3; conv4_4 … conv4_6."""
    one_of_five = [each / 5 for each in second]  # conv4_2 … conv4_6 are alike
    conv4_1 = [(1 - EARLIER) * first[0], *(CONV4_1_OVER_CONV4_2 * each for each in one_of_five[1:])]
    earlier = [of_block - own for of_block, own in zip(first, conv4_1, strict=True)]
    return [earlier, _merged((conv4_1, one_of_five, one_of_five)), _merged((one_of_five,) * 3)]


def _merged(rows: Sequence[Row]) -> Row:
    return [sum(column) for column in zip(*rows, strict=True)]


def blocks_of(config: SimulateTask) -> tuple[ComputeBlock, ...]:
    """The blocks of a resolved configuration: those of the network, else ResNet50's."""
    network = config.network
    assert isinstance(network, SimulatedConfig) and network.compute_s is not None
    rows = network.blocks or split(config.simulate.split or 0)
    return blocks_in_time(rows, network.compute_s, network.forward_share)


def simulated(config: SimulateTask) -> RoundRows:
    """The rows of a resolved configuration."""
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
    """Seconds of each pass (rounds, workers, 2, blocks), forward passes first: as many rounds as make every
    worker compute for `seconds`."""
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
