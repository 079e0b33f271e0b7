"""Runs of AQGB that requantize what is left of a block: the same in every world, interrupted or not."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from given_times import MarkedBy
from pool import Workers
from recorded import loads, outcome
from training_jobs import opened, tiny_run, train_all_virtually, train_rank

from gradwire.codecs.aqgb.pieces import pieces_of
from gradwire.harness.record.runs import load_run

SIZE, STEPS = 3, 12
AQGB = (
    *("codec=aqgb", "codec.leftovers=requantized", "codec.margin_s=0", "codec.partition=256"),
    *("parallel=blocks", "parallel.bucket_cap_mb=25", "parallel.num_blocks=3", "topology=broadcast"),
    *(f"cluster.workers={SIZE}", "train.log_every=1", f"train.steps={STEPS}"),
)
NETWORK = ("cluster=virtual", "network=simulated", "network.rate_mbit=20", "network.codec_times=none")
PLAIN = ("codec.base=plain", "codec.rounding=stochastic")
TICK = 1 / 1024


def rows(directory: Path) -> list[dict[str, Any]]:
    return [loads(line) for line in (directory / "steps.jsonl").read_text().splitlines()]


def decisions(directory: Path) -> list[dict[str, Any]]:
    return [loads(line) for line in (directory / "decisions.jsonl").read_text().splitlines()[1:]]


def split_blocks(directory: Path) -> list[set[int]]:
    """The bits of each block that was sent in pieces of different bits."""
    found = []
    for row in decisions(directory):
        first, split = row["first"], row["split"]
        for block in range(len(first)):
            bits = {piece.bits for piece in pieces_of(first, split, block, 0)}
            if len(bits) > 1:
                found.append(bits)
    return found


@pytest.fixture(scope="module", autouse=True)
def computing_takes_as_long_each_time() -> Iterator[None]:
    """In the virtual world every look at the clock comes a 1024th of a second after the one before."""
    ticks = count()
    with pytest.MonkeyPatch.context() as patch:
        clock = MarkedBy(lambda: next(ticks) * TICK)
        patch.setattr("gradwire.harness.comm.world.virtual.make_work_clock", lambda device: clock)
        yield


@pytest.mark.parametrize("given", [(), PLAIN], ids=["embedded", "plain"])
def test_leftovers_are_sent_with_other_bits_and_an_interruption_changes_nothing(
    given: tuple[str, ...], tmp_path: Path
) -> None:
    config = tiny_run(*AQGB, *given, *NETWORK)
    train_all_virtually(config, str(tmp_path / "whole"))
    assert split_blocks(tmp_path / "whole"), "some block was sent in pieces"
    assert any(sum(row["more"]) for row in decisions(tmp_path / "whole")), "some block was refined"
    stopped = 9
    for stop_after in (stopped, None):
        train_all_virtually(config, str(tmp_path / "parts"), stop_after)
    assert load_run(tmp_path / "parts").done.resumed_after == [stopped]
    assert decisions(tmp_path / "parts") == decisions(tmp_path / "whole")
    assert rows(tmp_path / "parts") == rows(tmp_path / "whole")
    assert outcome(tmp_path / "parts") == outcome(tmp_path / "whole")
    kept = tiny_run(*AQGB, *given, *NETWORK, "codec.leftovers=kept")
    train_all_virtually(kept, str(tmp_path / "kept"))
    assert [row["loss"] for row in rows(tmp_path / "kept")] != [
        row["loss"] for row in rows(tmp_path / "whole")
    ]


@pytest.mark.parametrize("given", [(), PLAIN], ids=["embedded", "plain"])
def test_real_equals_virtual_that_follows_it(
    given: tuple[str, ...], tmp_path: Path, workers: Workers
) -> None:
    """Real links are slow enough for a plan; some senders may run out of time, which is on record."""
    config = tiny_run(*AQGB, *given, "network=paced", "network.rate_mbit=20")
    real, run = tmp_path / "real", workers(SIZE)
    assert run(train_rank, config, str(real), None, 5) == [False] * SIZE
    assert run(train_rank, config, str(real), opened(config, real)) == [True] * SIZE
    assert split_blocks(real), "some block was sent in pieces"
    following = (f"codec.decisions={real / 'decisions.jsonl'}", "cluster=virtual")
    train_all_virtually(tiny_run(*AQGB, *given, *following), str(tmp_path / "virtual"))
    ours, theirs = (
        [(row["loss"], row["grad_norm"], row.get("vnmse")) for row in rows(tmp_path / name)]
        for name in ("virtual", "real")
    )
    assert ours == theirs
