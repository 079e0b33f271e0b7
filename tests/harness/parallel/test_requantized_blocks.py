"""Runs of AQGB that requantize what is left of a block: the same in every world, interrupted or not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pool import Workers
from recorded import loads, outcome
from training_jobs import tiny_run, train_all_virtually, train_rank

from gradwire.codecs.aqgb.pieces import pieces_of
from gradwire.harness.record.runs import load_run

SIZE, STEPS = 3, 8
AQGB = (
    *("codec=aqgb", "codec.leftovers=requantized", "codec.margin_s=0", "codec.partition=256"),
    *("parallel=blocks", "parallel.bucket_cap_mb=25", "parallel.num_blocks=3", "topology=broadcast"),
    *(f"cluster.workers={SIZE}", "train.log_every=1", f"train.steps={STEPS}"),
)
NETWORK = (
    *("cluster=virtual", "network=simulated", "network.rate_mbit=2", "network.codec_times=none"),
    *("network.compute_s=0.2", "network.blocks=[[1,0.3,0.7],[1,0.3,0.1],[1,0.4,0.2]]"),
)
"""After a short backward pass of the second block comes a long one: the last block is left over at few bits,
and goes on at more."""
BASES = [(), ("codec.base=plain", "codec.rounding=stochastic")]


def rows(directory: Path) -> list[dict[str, Any]]:
    return [loads(line) for line in (directory / "steps.jsonl").read_text().splitlines()]


def decisions(directory: Path) -> list[dict[str, Any]]:
    return [loads(line) for line in (directory / "decisions.jsonl").read_text().splitlines()[1:]]


def bits_of_last_block(row: dict[str, Any]) -> list[int]:
    return [piece.bits for piece in pieces_of(row["first"], row["split"], 0, 0)]


@pytest.fixture(scope="module", params=BASES, ids=["embedded", "plain"])
def run(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[tuple[str, ...], Path]:
    """The settings of a base, and a run with it."""
    directory = tmp_path_factory.mktemp("requantized")
    train_all_virtually(tiny_run(*AQGB, *request.param, *NETWORK), str(directory))
    return request.param, directory


def test_what_is_left_goes_on_with_more_bits_and_is_refined(run: tuple[tuple[str, ...], Path]) -> None:
    planned = [row for row in decisions(run[1]) if row["first"]]
    assert any(bits[0] < bits[1] for bits in map(bits_of_last_block, planned) if len(bits) > 1)
    assert any(row["more"][0] for row in planned if len(bits_of_last_block(row)) > 1)
    assert all(row["split"][0] % 256 == 0 for row in planned)


def test_kept_leftovers_are_another_run(run: tuple[tuple[str, ...], Path], tmp_path: Path) -> None:
    base, whole = run
    kept = tiny_run(*AQGB, *base, *NETWORK, "codec.leftovers=kept")
    train_all_virtually(kept, str(tmp_path))
    assert "split" not in decisions(tmp_path)[-1]
    assert [row["loss"] for row in rows(tmp_path)] != [row["loss"] for row in rows(whole)]


def test_an_interruption_changes_neither_bits_nor_times(
    run: tuple[tuple[str, ...], Path], tmp_path: Path
) -> None:
    """It comes where blocks are refined, and their collectives still under way."""
    (base, whole), stopped = run, 6
    assert sum(decisions(whole)[stopped - 2]["more"])
    config = tiny_run(*AQGB, *base, *NETWORK)
    for stop_after in (stopped, None):
        train_all_virtually(config, str(tmp_path), stop_after)
    assert load_run(tmp_path).done.resumed_after == [stopped]
    assert decisions(tmp_path) == decisions(whole)
    assert rows(tmp_path) == rows(whole)
    assert outcome(tmp_path) == outcome(whole)


def test_real_equals_virtual(run: tuple[tuple[str, ...], Path], tmp_path: Path, workers: Workers) -> None:
    """Real workers that follow the decisions send the same pieces and refinements."""
    base, whole = run
    config = tiny_run(*AQGB, *base, f"codec.decisions={whole / 'decisions.jsonl'}")
    workers(SIZE)(train_rank, config, str(tmp_path))
    ours, theirs = (
        [(row["loss"], row["grad_norm"], row.get("vnmse")) for row in rows(directory)]
        for directory in (tmp_path, whole)
    )
    assert ours == theirs
