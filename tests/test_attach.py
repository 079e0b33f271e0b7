"""The library's front door: a codec on any DistributedDataParallel model."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import attach_jobs as jobs
import numpy as np
import pytest
from pool import Workers
from warm import python

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


def test_wrong_arguments_are_refused_in_one_line(workers: Workers) -> None:
    """The command line's rules refuse them, and the ranks may try again."""
    for found in workers(2)(jobs.refusals):
        for line, (arguments, part) in zip(found, jobs.WRONG, strict=True):
            assert line.startswith("ValueError: "), (arguments, line)
            assert part in line, arguments
            assert "\n" not in line
            assert len(line) <= 300


def test_models_that_cannot_have_a_codec_are_refused_with_the_remedy(workers: Workers) -> None:
    expected = [
        "got Net; wrap it first: model = DistributedDataParallel(model)",
        "attach first, then compile: attach(model); model = torch.compile(model)",
        "attach() needs a DistributedDataParallel model, got str",
        "already has a communication hook; call detach()",
        "this codec instance serves another model; make one for each",
        "0 has sparse gradients, codecs take dense ones; set sparse=False",
        "0.weight has complex gradients, codecs take real ones; keep it as real numbers",
        "got torch.float64, as last.weight has; convert such parameters, or name them in exclude=",
        "got torch.float64, as middle.weight has; convert",
        "too much for sums of 2 gradients; give it more bits, or buckets larger than 4737 coordinates",
        "codec=fp32 takes float32, bfloat16 and float16 gradients, got torch.float64, as last.weight has",
        "largest bucket has 20 coordinates, and with codec.bits=5 and 2 workers it takes 1792 to compress",
    ]
    for found in workers(2)(jobs.wrong_models):
        for line, part in zip(found, expected, strict=True):
            assert line.startswith("ValueError: ")
            assert part in line


def test_parameters_that_ddp_ignores_are_not_asked_about(workers: Workers) -> None:
    assert workers(2)(jobs.with_ignored_parameters) == [("nothing", True)] * 2


@pytest.mark.parametrize(
    ("ddp", "said"),
    [
        ({}, "ValueError: 2657 coordinates"),  # the first pass has one bucket for each dtype
        ({"static_graph": True}, "ValueError: 2657 coordinates"),
        ({"find_unused_parameters": True}, "nothing"),
        ({"find_unused_parameters": True, "bucket_cap_mb": None}, "ValueError: 2657 coordinates"),
    ],
)
def test_the_buckets_of_the_first_pass_are_asked_about(
    ddp: dict[str, Any], said: str, workers: Workers
) -> None:
    for asked, made, text in workers(2)(jobs.asked_about, ddp):
        assert asked == made
        assert text == said


def test_models_that_ddp_does_not_reduce_are_refused_with_the_remedy(workers: Workers) -> None:
    expected = [
        "it has no hook for its reduce-scatter; use fully_shard() and gradwire.shard_hooks(), or wrap the",
        "that fully_shard() or replicate() has made; use gradwire.shard_hooks() for it",
        "optimize_ddp='python_reducer' calls no communication hook with buckets; leave",
    ]
    for found in workers(2)(jobs.models_of_other_kinds):
        for line, part in zip(found, expected, strict=True):
            assert line.startswith("ValueError: attach()")
            assert part in line
            assert "\n" not in line


ARGUMENTS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, {"codec": "bf16"}, "codec=bf16"),
    ({"codec": "mxfp8"}, {"codec": "thc"}, "codec=thc"),
    ({"bits": 4}, {"bits": 5}, "codec.bits=5"),
    ({"bits": np.float32(4)}, {"bits": np.float32(5)}, "codec.bits=5.0"),
    ({"codec": jobs.Scaled(np.float32(1.0))}, {"codec": jobs.Scaled(np.float32(2.0))}, "codec.factor=2.0"),
    ({"codec": jobs.Scaled(Fraction(1, 2))}, {"codec": jobs.Scaled(object())}, "factor cannot be compared"),
    ({"widths": [2, 4, 8]}, {"widths": [2, 8]}, "codec.widths=[2, 8]"),
    ({"rounding": "independent"}, {}, "codec.rounding=correlated"),
    ({"codec": "mxfp8"}, {"codec": "mxfp8", "ef": True}, "codec.ef=True"),
    ({"exclude": ["*.bias"]}, {"exclude": ["*bias"]}, "codec.exclude=[*bias]"),
    ({"codec": jobs.Scaled(1.0)}, {"codec": jobs.Scaled(2.0)}, "codec.factor=2.0"),
    ({"codec": jobs.Halves()}, {"codec": jobs.Halves(shortens=True)}, "codec.shortens=True"),
    ({"topology": "ring"}, {"topology": "butterfly"}, "topology=butterfly"),
    ({"seed": 0}, {"seed": 1}, "seed=1"),
    ({"overlap": True}, {"overlap": False}, "overlap=False"),
    ({"buckets": 2}, {"buckets": 1}, "buckets=1"),
    ({"segments": 1}, {"segments": 4}, "segments=4"),
    ({"timeout_s": 20.0}, {"timeout_s": 10.0}, "timeout_s=10.0"),
    ({}, {"rate_mbit": 1000.0}, "rate_mbit=1000.0"),
    ({}, {"ranks_per_node": 1}, "ranks_per_node=1"),
    ({}, {"check_hashes": True}, "check_hashes=True"),
    ({}, {"ranks_per_node": 4}, "refuses: ranks_per_node=4 does not divide world size="),
    ({}, {"bits": 0.1}, "refuses: codec.bits=0.1: choose"),
    ({}, {"seed": -1}, "refuses: seed=-1: choose"),
]
"""The usual arguments, those of one rank, and all ranks' error."""


@pytest.mark.parametrize(("size", "odd"), [(2, 0), (2, 1), (3, 1)])
def test_all_ranks_refuse_what_they_do_not_have_alike(size: int, odd: int, workers: Workers) -> None:
    cases = [(usual, other) for usual, other, _ in ARGUMENTS]
    for rank, found in enumerate(workers(size)(jobs.disagree, cases, odd)):
        for (text, waited), (usual, other, part) in zip(found, ARGUMENTS, strict=True):
            assert text.startswith("ValueError: "), (usual, other, text)
            assert (part if rank != odd else part.removeprefix("refuses: ")) in text
            if "refuses" in part or "cannot" in part:
                assert rank == odd or f"attach(): rank {odd} refuses" in text
            elif size == 3:
                assert f"rank {odd} has" in text
                assert ", the others " in text
            else:
                assert "rank 0 has" in text
                assert "rank 1 has" in text
            assert "\n" not in text
            assert waited < 20


def test_models_in_different_orders_are_told_apart(workers: Workers) -> None:
    for swapped, wrapped_otherwise in workers(2)(jobs.other_models):
        assert "rank 0 has model=6 parameters" in swapped
        assert "DistributedDataParallel's gradient_as_bucket_view=True" in wrapped_otherwise


def test_ranks_that_do_not_attach_are_named(workers: Workers) -> None:
    *waiting, (late, after) = workers(3)(jobs.absent)
    for text, waited in waiting:
        assert text.startswith("TimeoutError: attach(): rank 2 of 3 did not call it within 1 s; call it on")
        assert waited >= 1
    assert "has given up waiting for rank 2" in late
    assert after < 20


@pytest.mark.parametrize(("first", "reason"), [({"bits": 99}, "codec.bits=99"), ({"seed": 1}, "seed=1")])
def test_rank_0_stays_until_the_others_know_why(first: dict[str, Any], reason: str, workers: Workers) -> None:
    """Its process often serves the store that they read it from."""
    (text, _, left), *others = workers(2)(jobs.refused_by_the_first, first)
    assert reason in text
    for other, came, _ in others:
        assert other.startswith("ValueError: attach(): ")
        assert reason in other
        assert came < left


def test_a_refusal_is_told_at_once_though_a_rank_is_absent(workers: Workers) -> None:
    (text, waited), *_ = workers(3)(jobs.refused_and_absent)
    assert text.startswith("ValueError: attach(): rank 1 refuses: codec.bits=99")
    assert waited < 30


@pytest.mark.parametrize("ddp", [{}, {"static_graph": True}])
def test_an_error_in_a_codec_surfaces_in_backward(ddp: dict[str, Any], workers: Workers) -> None:
    """Its rank raises the original error; the other rank waits no longer than it must, and gets the
    reason."""
    (surfaced, original), (other, _) = workers(2)(jobs.fail, {"fails_on_rank": 0}, ddp)
    assert surfaced == "SynchronizationError: rank 0, step 0: ValueError: the codec's own words"
    assert "ValueError: the codec's own words" in original
    assert "in synchronize" in original
    assert other.startswith("SynchronizationError: rank 1, step 0: rank 1 lost rank 0: ")
    assert "(rank 0 had failed: ValueError: the codec's own words)" in other


@pytest.mark.parametrize("at", [0, 2])
@pytest.mark.parametrize("ddp", [{}, {"static_graph": True}, {"find_unused_parameters": True}])
def test_every_later_pass_raises_the_error_again(ddp: dict[str, Any], at: int, workers: Workers) -> None:
    """The error is not that of PyTorch's reducer, whose assertion fails because the pass before did not
    end."""
    for rank, (first, after, evaluated, trains_on) in enumerate(workers(2)(jobs.fail_again, ddp, at)):
        assert first == f"SynchronizationError: rank {rank}, step {at}: ValueError: the codec's own words"
        assert after == dict.fromkeys(after, first)
        assert evaluated
        assert trains_on


def test_a_result_that_does_not_fit_is_refused(workers: Workers) -> None:
    for surfaced, original in workers(2)(jobs.fail, {"shortens": True}, {}):
        assert re.search(r"codec returned torch.float32\[\d+\] for torch.float32\[\d+\]", surfaced)
        assert "codec returned" in original


def test_hashes_find_the_rank_with_another_result(workers: Workers) -> None:
    for surfaced, _ in workers(3)(jobs.fail, {"differs_on_rank": 1}, {}):
        assert "ranks [1] hold other gradients than rank 0" in surfaced


def test_the_example_runs_under_torchrun(tmp_path: Path) -> None:
    arguments = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    ran = python(tmp_path, *arguments, str(EXAMPLE))
    assert ran.returncode == 0, ran.stderr
    first = re.search(r"step 0: loss (\S+)", ran.stdout)
    last = re.search(r"loss (\S+); rank 0 sent (\d+) bytes, in fp32 it would be (\d+)", ran.stdout)
    assert first is not None
    assert last is not None
    assert float(last[1]) < 0.5 * float(first[1])
    assert int(last[2]) < 0.3 * int(last[3])
    assert not list(tmp_path.iterdir())
