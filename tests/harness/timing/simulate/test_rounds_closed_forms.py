"""Broadcast rounds of several blocks agree with results worked out by hand."""

from __future__ import annotations

import random

import numpy as np
import pytest

from gradwire.harness.network.links import bytes_per_second, star
from gradwire.harness.timing.simulate.rounds import (
    BACKWARD,
    FORWARD,
    STAGE_ONE,
    BroadcastScheme,
    Floats,
    RoundRows,
    train,
)

VALUES = (3_000_000, 5_600_000, 6_000_000, 11_000_000)
FORWARD_S = np.array([0.419, 0.155, 0.165, 0.261]) * 0.365 * 1.5
BACKWARD_S = np.array([0.505, 0.142, 0.129, 0.224]) * 0.635 * 1.5
"""ResNet50 in four blocks (AQGB Table 1), 1.5 s a round."""

ADAPTIVE = BroadcastScheme(multicast=True, adaptive=True)


def alike(rounds: int, workers: int, forward: Floats, backward: Floats) -> Floats:
    shape = (rounds, workers, 2, len(forward))
    return np.broadcast_to(np.stack([forward, backward]), shape).copy()


def ends(rows: RoundRows, worker: int = 0) -> Floats:
    """The ends of a worker's rounds."""
    return rows.end[(rows.kinds == BACKWARD) & (rows.block == 0) & (rows.worker == worker)]


def arrival(block: int, appears: list[float], sending: list[float]) -> float:
    """The arrival of a block: newer ones, of smaller numbers, that appear before then go first."""
    at = appears[block] + sending[block]
    while True:
        newer = sum(sending[other] for other in range(block) if appears[other] < at)
        if appears[block] + sending[block] + newer <= at:
            return at
        at = appears[block] + sending[block] + newer


def length_of_round(forward: Floats, backward: Floats, sending: list[float]) -> float:
    """The time from one backward pass to the next, where all workers are alike."""
    blocks = len(forward)
    appears = [float(backward[block:].sum()) for block in range(blocks)]
    at = appears[0]
    for block in range(blocks):
        at = max(at, arrival(block, appears, sending)) + forward[block]
    return at


@pytest.mark.parametrize("seed", range(20))
def test_rounds_of_drawn_clusters_and_blocks(seed: int) -> None:
    drawn = random.Random(seed)
    workers, blocks, bits = drawn.randint(2, 12), drawn.randint(1, 6), drawn.choice([1, 4, 8, 32])
    forward = np.array([drawn.uniform(0.01, 1) for _ in range(blocks)])
    backward = np.array([drawn.uniform(0.01, 1) for _ in range(blocks)])
    values = [drawn.randint(10**4, 10**7) for _ in range(blocks)]
    links = star(workers, 10 ** drawn.uniform(5.5, 9), 0.0)
    sending = [(workers - 1) * size * bits / 8 / links.rates[0] for size in values]
    expected = length_of_round(forward, backward, sending)
    one_value_each = blocks * (workers - 1) * bits / 8 / links.rates[0]  # before newer blocks can begin
    for multicast in (True, False):
        scheme = BroadcastScheme(multicast, adaptive=False, bits=bits, partition=1)
        rows = train(values, alike(4, workers, forward, backward), links, scheme, until_s=1e9)
        for worker in range(workers):
            assert np.diff(ends(rows, worker)) == pytest.approx(expected, rel=1e-9, abs=one_value_each)


@pytest.mark.parametrize("seed", range(20))
def test_a_worker_that_is_slower_sets_the_pace(seed: int) -> None:
    """Its gradients are the last, and have all links to themselves: those of the others are there."""
    drawn = random.Random(seed)
    workers, slow = drawn.randint(2, 8), drawn.uniform(3, 5)
    forward, backward = np.array([drawn.uniform(0.1, 1)]), np.array([drawn.uniform(0.1, 1)])
    compute = alike(4, workers, forward, backward)
    compute[:, -1] *= slow
    size = drawn.randint(1, 1000)
    links = star(workers, 1e6, 0.0)
    rows = train([size], compute, links, BroadcastScheme(multicast=True, adaptive=False), until_s=1e9)
    expected = slow * float(forward[0] + backward[0]) + size * 4 / 1e6
    assert np.diff(ends(rows, workers - 1)) == pytest.approx(expected, rel=1e-9)


def test_adaptive_links_are_busy_from_the_first_gradient_to_the_last_forward_pass() -> None:
    """AQGB on the paper's cluster: a round takes as long as at 4 bits, 1.572 s, and for 1.216 s of it the
    links are busy. A margin takes off as much."""
    links, exposed = star(16, bytes_per_second(2500), 0.0), 15 * VALUES[0] * 4 / 2.5e9
    length = float(FORWARD_S.sum() + BACKWARD_S.sum()) + exposed
    for margin_s in (0.0, 0.02):
        compute = alike(140, 16, FORWARD_S, BACKWARD_S)
        rows = train(VALUES, compute, links, BroadcastScheme(True, True, margin_s=margin_s))
        own = ends(rows)[40:100]
        assert np.diff(own) == pytest.approx(length, abs=1e-3)
        assert np.diff(own).mean() == pytest.approx(length, abs=1e-4)
        sent = rows.bytes[(rows.kinds >= STAGE_ONE) & (rows.round >= 41) & (rows.round < 100)].sum()
        busy = sent * 15 / 16 / bytes_per_second(2500) / 59
        expected = length - FORWARD_S[-1] - BACKWARD_S[-1] - margin_s
        assert expected == pytest.approx(1.216 - margin_s, abs=1e-3)
        assert busy == pytest.approx(expected, abs=1e-3)


def test_the_same_arguments_give_the_same_rows() -> None:
    compute = alike(20, 5, FORWARD_S, BACKWARD_S) * np.random.default_rng(3).uniform(0.9, 1.1, (20, 5, 2, 4))
    found = [train(VALUES, compute, star(5, 3e8, 1e-4), ADAPTIVE, until_s=20.0) for _ in (0, 1)]
    for column in ("kinds", "worker", "round", "block", "start", "end", "bytes", "ratio", "rate"):
        assert np.array_equal(getattr(found[0], column), getattr(found[1], column), equal_nan=True)


def test_one_worker_sends_nothing_and_waits_for_nothing() -> None:
    rows = train(VALUES, alike(5, 1, FORWARD_S, BACKWARD_S), star(1, 1.0, 0.0), ADAPTIVE)
    assert set(rows.kinds.tolist()) == {FORWARD, BACKWARD}
    assert rows.start[1:].tolist() == rows.end[:-1].tolist()
    assert ends(rows)[-1] == pytest.approx(7.5)
