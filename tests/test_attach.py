"""The library's front door: a codec on anybody's DistributedDataParallel model."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import attach_jobs as jobs
import pytest
from pool import Workers

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "ddp.py"


@pytest.mark.parametrize(
    ("size", "codec", "topology", "options"),
    [
        (2, "dynamiq", "butterfly", {"bits": 5}),
        (3, "dynamiq", "ring", {"bits": 6, "overlap": False}),
        (3, "bf16", "butterfly", {"buckets": 1, "rate_mbit": 1000.0}),
        (2, "halves", "ring", {}),
        (2, "topk", "broadcast", {"fraction": 0.3, "ef": True}),
        (2, "powersgd", "ring", {"rank": 8}),
    ],
)
def test_replicas_stay_identical_and_learn(
    size: int, codec: str, topology: str, options: dict[str, object], workers: Workers
) -> None:
    steps = 15
    results = workers(size)(jobs.train, steps, codec, topology, options)
    assert len({weights for _, weights, _ in results}) == 1
    for losses, _, sent in results:
        assert losses[-1] < 0.6 * losses[0]
        assert sent > 0
    exact = workers(size)(jobs.train, steps, "fp32", "ring", {})
    for (losses, _, sent), (exact_losses, _, exact_sent) in zip(results, exact, strict=True):
        assert losses[-1] == pytest.approx(exact_losses[-1], rel=0.2)
        assert sent < 0.8 * exact_sent


def test_a_second_codec_is_refused(workers: Workers) -> None:
    for said in workers(2)(jobs.attach_twice):
        assert "register" in said


def test_wrong_arguments_are_refused_in_one_line(workers: Workers) -> None:
    expected = ["codec=zip", "DistributedDataParallel", "['bits']", "bits=0.1", "star"]
    for said in workers(2)(jobs.refusals):
        assert len(said) == len(expected)
        for line, part in zip(said, expected, strict=True):
            assert part in line
            assert "\n" not in line


def test_an_error_in_a_codec_surfaces_in_backward(workers: Workers) -> None:
    """On its rank as it was raised; the other rank waits no longer than it must."""
    (surfaced, original), _ = workers(2)(jobs.fail, {"fails_on_rank": 0})
    assert surfaced == "RuntimeError"
    assert "ValueError: the codec's own words" in original
    assert "in synchronize" in original


def test_a_result_that_does_not_fit_is_refused(workers: Workers) -> None:
    for surfaced, original in workers(2)(jobs.fail, {"shortens": True}):
        assert surfaced == "RuntimeError"
        assert re.search(r"codec returned torch.float32\[\d+\] for torch.float32\[\d+\]", original)


def test_hashes_find_the_rank_with_another_result(workers: Workers) -> None:
    for surfaced, original in workers(3)(jobs.fail, {"differs_on_rank": 1}):
        assert surfaced == "RuntimeError"
        assert "ranks [1] hold other gradients than rank 0" in original


def test_the_example_runs_under_torchrun(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    ran = subprocess.run(
        [*command, str(EXAMPLE)],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert ran.returncode == 0, ran.stderr
    first = re.search(r"step 0: loss (\S+)", ran.stdout)
    last = re.search(r"loss (\S+); rank 0 sent (\d+) bytes, in fp32 it would be (\d+)", ran.stdout)
    assert first is not None
    assert last is not None
    assert float(last[1]) < 0.5 * float(first[1])
    assert int(last[2]) < 0.3 * int(last[3])
    assert not list(tmp_path.iterdir())
