"""Broadcast rounds: the compiled engine is the one in plain Python, and both have the closed forms."""

from __future__ import annotations

import random
import time
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from reference_rounds import Training

from gradwire.harness.network.links import Change, Links, bytes_per_second, star, uplinks
from gradwire.harness.timing.simulate import rounds
from gradwire.harness.timing.simulate.rounds import (
    BACKWARD,
    FORWARD,
    STAGE_ONE,
    STAGE_TWO,
    BroadcastScheme,
    Floats,
    RoundRows,
    train,
)

VALUES = (3_000_000, 5_600_000, 6_000_000, 11_000_000)
FORWARD_S = np.array([0.419, 0.155, 0.165, 0.261]) * 0.365 * 1.5
BACKWARD_S = np.array([0.505, 0.142, 0.129, 0.224]) * 0.635 * 1.5
"""ResNet50 in four blocks (AQGB Table 1), 1.5 s a round."""

WORKERS, SECONDS, MBIT = 16, 200.0, 2500.0


def times(rounds: int, workers: int, forward: Floats = FORWARD_S, backward: Floats = BACKWARD_S) -> Floats:
    shape = (rounds, workers, 2, len(forward))
    return np.broadcast_to(np.stack([forward, backward]), shape).copy()


def paper(**given: Any) -> RoundRows:
    """The paper's cluster without jitter."""
    links = star(WORKERS, bytes_per_second(MBIT), 0.0)
    scheme = BroadcastScheme(multicast=True, **given)
    return train(VALUES, times(140, WORKERS), links, scheme, until_s=SECONDS)


def round_ends(rows: RoundRows, worker: int = 0) -> Floats:
    last = (rows.kinds == BACKWARD) & (rows.block == 0) & (rows.worker == worker)
    return rows.end[last & (rows.end <= SECONDS)]


def completed(rows: RoundRows, workers: int = WORKERS) -> int:
    return min(len(round_ends(rows, worker)) for worker in range(workers))


def utilization(rows: RoundRows) -> float:
    """The share of what a receiver's link could carry: copies of all others' transmissions."""
    sent = float(rows.bytes[rows.kinds >= STAGE_ONE].sum())
    return sent * (WORKERS - 1) / WORKERS / (SECONDS * bytes_per_second(MBIT))


@pytest.mark.parametrize(
    ("given", "rounds", "used"),
    [
        ({"adaptive": False, "bits": 32}, (38, 38), 0.93),
        ({"adaptive": False, "bits": 4}, (127, 127), 0.39),
        ({"adaptive": True}, (126, 127), 0.77),
    ],
)
def test_the_papers_cluster(given: dict[str, Any], rounds: tuple[int, int], used: float) -> None:
    begun = time.process_time()
    rows = paper(**given)
    assert time.process_time() - begun < 10
    assert rounds[0] <= completed(rows) <= rounds[1]
    assert utilization(rows) == pytest.approx(used, abs=0.02)


def test_its_rounds_take_what_the_closed_forms_say() -> None:
    """Uncompressed, the link is busy from the first gradient on: 15 copies of 819.2 Mbit, and the last
    block's passes. At 4 bits only the first block's gradients are waited for."""
    rate = MBIT * 1e6
    none, four = (np.diff(round_ends(paper(adaptive=False, bits=bits))) for bits in (32, 4))
    busy = 15 * sum(VALUES) * 32 / rate
    assert none[1:] == pytest.approx(busy + FORWARD_S[3] + BACKWARD_S[3], rel=1e-9)
    assert none[1] == pytest.approx(5.2715, abs=1e-4)
    exposed = 15 * VALUES[0] * 4 / rate
    assert four == pytest.approx(FORWARD_S.sum() + BACKWARD_S.sum() + exposed, rel=1e-9)
    assert four[1] == pytest.approx(1.572, abs=1e-3)
    ends = round_ends(paper(adaptive=True))
    assert (ends[-1] - ends[20]) / (len(ends) - 21) == pytest.approx(1.572, abs=2e-3)


def test_closed_forms_of_drawn_clusters() -> None:
    """One block overlaps with nothing: a round is computation, and every other worker's copy after it."""
    drawn = random.Random(1)
    for _ in range(20):
        workers, bits = drawn.randint(2, 12), drawn.randint(1, 32)
        rate, size = 10 ** drawn.uniform(5, 9), drawn.randint(1, 10**7)
        forward, backward = drawn.uniform(0.01, 2), drawn.uniform(0.01, 2)
        multicast = drawn.random() < 0.5
        rows = train(
            [size],
            times(4, workers, np.array([forward]), np.array([backward])),
            star(workers, rate, 0.0),
            BroadcastScheme(multicast, adaptive=False, bits=bits),
            until_s=1e9,
        )
        ends = rows.end[(rows.kinds == BACKWARD) & (rows.worker == 0)]
        sent = (workers - 1) * size * bits / 8 / rate
        assert np.diff(ends) == pytest.approx(forward + backward + sent, rel=1e-9)
        assert ends[0] == pytest.approx(forward + backward)


def test_perfect_overlap_hides_all_but_the_first_block() -> None:
    scheme = BroadcastScheme(multicast=True, adaptive=False)
    rows = train([0, 10], times(3, 2, np.ones(2), np.ones(2)), star(2, 1e6, 0.0), scheme)
    assert round_ends(rows).tolist() == [4.0, 8.0, 12.0]


def test_refinement_fills_the_links_and_never_more_than_all_bits() -> None:
    rows = paper(adaptive=True)
    refined = rows.kinds == STAGE_TWO
    assert refined.any() and rows.bits_sent[refined].min() >= 1
    first = rows.kinds == STAGE_ONE
    assert (rows.ratio[first] >= 0.125).all() and (rows.bits_sent[first] >= 4).all()
    for worker, number, block in ((0, 50, 0), (3, 60, 2), (15, 70, 3)):
        own = (rows.worker == worker) & (rows.round == number) & (rows.block == block)
        bits = (rows.bits_sent * rows.values_sent)[own & (rows.kinds >= STAGE_ONE)].sum()
        assert 4 * VALUES[block] <= bits <= 32 * VALUES[block]
        assert rows.values_sent[own & first].sum() == VALUES[block], "the first stage has every value"


def test_with_jitter_adaptive_rounds_keep_up_with_4_bits() -> None:
    generator = np.random.default_rng(5)
    compute = times(140, WORKERS) * generator.uniform(0.9, 1.1, (140, WORKERS, 2, 4))
    links = star(WORKERS, bytes_per_second(MBIT), 50e-6)
    found = [
        completed(train(VALUES, compute, links, BroadcastScheme(True, adaptive, bits=4)))
        for adaptive in (False, True)
    ]
    assert found[1] >= 0.95 * found[0] > 100


def drawn_training(drawn: random.Random) -> tuple[list[int], Floats, Links, dict[str, Any], float]:
    workers, blocks = drawn.choice([1, 2, 3, 4, 6]), drawn.randint(1, 5)
    values = [drawn.choice([0, drawn.randint(1, 5000), drawn.randint(1, 10**6)]) for _ in range(blocks)]
    shape = (drawn.randint(1, 8), workers, 2, blocks)
    compute = np.array(
        [drawn.choice([0.0, *[drawn.uniform(0.01, 0.5)] * 9]) for _ in range(int(np.prod(shape)))]
    )
    links = star(workers, 10 ** drawn.uniform(4, 7), drawn.choice([0.0, 1e-4, 0.01]))
    if drawn.random() < 0.5:
        moments = sorted(drawn.uniform(0, 5) for _ in range(3))
        links = replace(links, changes=tuple(Change(at, drawn.choice([0.25, 0.5, 3.0])) for at in moments))
    return (
        values,
        compute.reshape(shape),
        links,
        {
            "multicast": drawn.random() < 0.5,
            "adaptive": drawn.random() < 0.7,
            "bits": drawn.choice([1, 4, 32]),
            "unhindered": drawn.random() < 0.05,
            "partition": drawn.choice([1, 256, 1024, 10**7]),
            "floor": drawn.choice([0.0625, 0.125, 0.375, 1.0]),
            "margin_s": drawn.choice([0.0, 0.02, 0.3]),
            "gain": drawn.choice([0.3, 1.0]),
        },
        drawn.choice([2.0, 20.0, 1e9]),
    )


def test_compiled_and_plain_are_alike_row_by_row() -> None:
    drawn, refined, rows = random.Random(7), 0, 0
    for _ in range(300):
        values, compute, links, given, until_s = drawn_training(drawn)
        ours = train(values, compute, links, BroadcastScheme(**given), until_s=until_s)
        theirs = Training(values, compute, links, **given, until_s=until_s).run()
        assert len(ours.kinds) == len(theirs)
        for column in fields(RoundRows):
            expected = np.array([getattr(row, column.name) for row in theirs])
            assert np.array_equal(getattr(ours, column.name), expected, equal_nan=True), (column.name, given)
        refined, rows = refined + int((ours.kinds == STAGE_TWO).sum()), rows + len(theirs)
    assert refined > 100 and rows > 5000
    paper_rows = paper(adaptive=True)
    links = star(WORKERS, bytes_per_second(MBIT), 0.0)
    plain = Training(VALUES, times(140, WORKERS)[:6], links, multicast=True, adaptive=True).run()
    assert [row.start for row in plain][:400] == paper_rows.start[:400].tolist()


def test_more_rows_than_expected_are_all_there(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = paper(adaptive=True)
    monkeypatch.setattr("gradwire.harness.timing.simulate.rounds.FIRST_ROWS", 7)
    assert len(paper(adaptive=True).kinds) == len(whole.kinds) > 10_000
    assert set(whole.kinds.tolist()) == {FORWARD, BACKWARD, STAGE_ONE, STAGE_TWO}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"floor": 0.0}, "floor=0.0; choose a number above 0 and up to 1"),
        ({"gain": 1.5}, "gain=1.5; choose"),
        ({"bits": 33}, "bits=33 and partition=1024; choose 1 to 32"),
        ({"values": [1, 2]}, "do not fit 2 blocks"),
        ({"values": [-1]}, "a block has -1 values; choose 0 or more"),
        ({"compute": times(1, 2, np.array([-1.0]), np.array([1.0]))}, "times of computation must be finite"),
        ({"links": star(2, 0.0, 0.0)}, "rates of links must be above 0"),
    ],
)
def test_refusals(given: dict[str, Any], words: str) -> None:
    usual = {"values": [1], "compute": times(1, 2, np.ones(1), np.ones(1)), "links": star(2, 1.0, 0.0)}
    cluster = {key: given.get(key, value) for key, value in usual.items()}
    scheme = {key: value for key, value in given.items() if key not in usual}
    with pytest.raises(ValueError, match=words):
        train(**cluster, scheme=BroadcastScheme(multicast=True, adaptive=False, **scheme))


def test_progress_is_reported_while_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "LOOK_S", 1e-3)
    told = list[float]()
    compute = np.full((20_000, 2, 2, 2), 0.005)
    links = uplinks(2, 1e6, 0.0)
    scheme = BroadcastScheme(multicast=False, adaptive=False)
    rows = train([100, 100], compute, links, scheme, until_s=300.0, on_progress=told.append)
    assert told == sorted(told) and told[0] > 0 and told[-1] <= rows.start[-1]
