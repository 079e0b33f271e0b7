"""Codecs that decide, attached to a script's model: by its times, recorded, followed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attach_decisions_jobs as jobs
import pytest
from pool import Workers
from recorded import loads


def rows(path: Path) -> list[dict[str, Any]]:
    return [loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("overlap", [True, False])
def test_a_following_run_is_the_run_that_decided_by_the_clock(
    overlap: bool, tmp_path: Path, workers: Workers
) -> None:
    path = tmp_path / "decisions.jsonl"
    first, second = workers(2)(jobs.by_the_clock, str(path), overlap)
    assert first == second, "ranks are alike"
    (weights, decision), followed, (other, _) = first
    assert followed == (weights, decision)
    assert other != weights
    header, *made = rows(path)
    assert header["steps"] is None and header["settings"]["codec"] == "clock_driven"
    assert [row["step"] for row in made] == [1, 2, 3, 4, 5]
    assert made[0]["millionths"] == 0, "nothing was seen before the first step"
    assert len({row["millionths"] for row in made}) > 2
    assert decision == {key: value for key, value in made[3].items() if key != "step"}


def test_a_record_goes_on_where_a_run_is_resumed_or_taken_back(tmp_path: Path, workers: Workers) -> None:
    paths = [tmp_path / name for name in ("whole", "resumed", "rolled back")]
    workers(2)(jobs.recorded_again, *map(str, paths))
    whole, *others = map(rows, paths)
    assert [row["step"] for row in whole[1:]] == [1, 2, 3, 4, 5]
    assert len({tuple(row["mu"]) for row in whole[1:]}) > 2
    assert others == [whole, whole]


def test_decisions_of_another_run_are_refused_on_all_ranks(tmp_path: Path, workers: Workers) -> None:
    foreign = tmp_path / "foreign.jsonl"
    foreign.write_text('{"steps": 0, "settings": {"seed": 0, "codec.name": "mxfp8"}}\n')
    path = f"codec.decisions={tmp_path}/decisions.jsonl"
    another = f"{path} belongs to another run, with "
    expected = [
        f"{tmp_path}/none cannot be read: no such file or directory",
        f"{tmp_path}/decisions.jsonl has decisions for 2 steps, and step 3 comes next; record them from the",
        f"{another}seed=0, this one has seed=1; give the decisions of a run with the same settings",
        f"{another}codec=mxfp8, this one has codec=mxfp4",
        f"{another}topology=ring ",
        f"codec.decisions={foreign} belongs to another run, with DistributedDataParallel's bucket_bytes_cap=",
        f"codec.decisions={tmp_path}/none cannot be read: no such file or directory",
        f"{path}: codec=bf16 makes no decisions; leave it out",
        "codec.decisions=3: ",
        "ranks disagree: rank 0 has codec.decisions=",
        f"{another}DistributedDataParallel's bucket_bytes_cap=",
        "record_decisions(): codec=bf16 makes no decisions; leave it out",
        f"{tmp_path}/decisions.jsonl exists already; give another file, or remove it",
        f"step 2: ValueError: {path} has no decision for step 3, only for 1 to 2",
    ]
    for rank, found in enumerate(workers(2)(jobs.refusals, str(tmp_path), str(foreign))):
        for text, part in zip(found, expected, strict=True):
            assert part in text
            assert text.startswith(("ValueError: ", f"SynchronizationError: rank {rank}, "))
            assert "\n" not in text
