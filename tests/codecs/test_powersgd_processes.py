"""Real processes: the same bits as in one process, and the same training as with torch's own hook."""

from __future__ import annotations

from typing import Any

import powersgd_jobs as jobs
import pytest
import torch
from pool import Workers

from gradwire.harness.comm.topology.registry import TOPOLOGIES

STEPS = 25


@pytest.mark.parametrize(
    ("size", "topology", "rank", "rate", "feedback"),
    [
        (2, "ring", 1, 1.0, True),
        (2, "butterfly", 2, 1.0, True),
        (3, "ring", 4, 1.0, True),
        (2, "broadcast", 4, 2.5, True),
        (2, "ring", 2, 1.0, False),
    ],
)
def test_training_is_that_of_the_hook_of_torch(
    size: int, topology: str, rank: int, rate: float, feedback: bool, workers: Workers
) -> None:
    """All parameters after every step, several buckets, with layers that stay uncompressed at the rate."""
    ours_options: dict[str, Any] = {"rank": rank, "min_compression_rate": rate, "feedback": feedback}
    torch_options = {
        "matrix_approximation_rank": rank,
        "min_compression_rate": rate,
        "use_error_feedback": feedback,
    }
    ours = workers(size)(jobs.train_ours, STEPS, topology, ours_options)
    theirs = workers(size)(jobs.train_torch, STEPS, torch_options)
    (expected, buckets), moved = theirs[0], []
    assert buckets > 1
    for history in ours:
        for step, (own, other) in enumerate(zip(history, expected, strict=True)):
            moved.append(float((other - expected[0]).abs().max()))
            assert float((own - other).abs().max()) < 1e-5, f"step {step}"
    assert max(moved) > 0.05, "the training went somewhere"


def test_the_comparison_tells_variants_apart(workers: Workers) -> None:
    """Another rank, no feedback or no warm start makes a difference of over a hundred times the tolerance."""
    (expected, _), _ = workers(2)(
        jobs.train_torch, STEPS, {"matrix_approximation_rank": 2, "min_compression_rate": 1}
    )
    for options in ({"rank": 1}, {"feedback": False}, {"warm_start": False}):
        history, _ = workers(2)(jobs.train_ours, STEPS, "ring", {"rank": 2, **options})
        assert torch.equal(history[0], expected[0])
        assert float((history[-1] - expected[-1]).abs().max()) > 1e-3, options


@pytest.mark.parametrize("topology", sorted(TOPOLOGIES))
@pytest.mark.parametrize("options", [{"rank": 2}, {"rank": 4, "start_step": 1}])
def test_real_processes_compute_the_bits_of_the_virtual_cluster(
    topology: str, options: dict[str, Any], workers: Workers
) -> None:
    size, steps = 3, 3
    cluster = jobs.Cluster(size, topology, **options)
    expected = []
    for step in range(steps):
        means = cluster.step(jobs.gradients_of(size, step), jobs.BUCKETS)
        expected += [jobs.flat(means, names)[0] for names in jobs.BUCKETS]
    for found in workers(size)(jobs.step_really, topology, options, steps):
        assert all(torch.equal(own, other) for own, other in zip(found, expected, strict=True))
