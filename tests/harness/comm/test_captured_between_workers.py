"""Captured rounds between real workers: which are launched, their results, and failures."""

from __future__ import annotations

import pytest
import torch
from captured_jobs import SIZES, STEPS, steps_of_rank
from emulation import NOT_BUILT
from pool import Workers

from gradwire.codecs.native.loading import library
from gradwire.harness.comm.transport.captured_rounds import SETTLING
from gradwire.harness.comm.transport.launch_watch import end_process

pytestmark = pytest.mark.skipif(library("emulated") is None, reason=NOT_BUILT)


@pytest.mark.parametrize("codec", ["fp32", "dynamiq", "mxfp8"])
@pytest.mark.parametrize("size", [2, 3])
def test_launches_between_workers_give_what_rounds_give(codec: str, size: int, workers: Workers) -> None:
    """Means and bytes of every step; three buckets for two threads, of which each keeps to its own."""
    expected = workers(size)(steps_of_rank, codec, None)
    found = workers(size)(steps_of_rank, codec, "rerun")
    for (means, sent, count, said), (wanted, wanted_sent, none, _) in zip(found, expected, strict=True):
        assert (count, none, said) == ((STEPS - SETTLING) * len(SIZES), 0, [])
        assert sent == wanted_sent and all(sum(step.values()) > 0 for step in sent)
        for own, other in zip(means, wanted, strict=True):
            assert all(
                torch.equal(a.view(torch.int32), b.view(torch.int32)) for a, b in zip(own, other, strict=True)
            )


def test_a_round_that_cannot_be_captured_runs_as_it_is(workers: Workers) -> None:
    expected = workers(2)(steps_of_rank, "dynamiq", None)
    for (means, sent, count, said), (wanted, wanted_sent, _, _) in zip(
        workers(2)(steps_of_rank, "dynamiq", "refusing"), expected, strict=True
    ):
        assert count == 0 and sent == wanted_sent
        assert said == [
            "gradwire: rounds do not run as CUDA graphs, because one cannot be captured: operation not "
            "permitted when stream is capturing"
        ]
        assert all(
            torch.equal(a, b)
            for own, other in zip(means, wanted, strict=True)
            for a, b in zip(own, other, strict=True)
        )


def test_required_graphs_fail_in_one_line(workers: Workers) -> None:
    with pytest.raises(
        Exception, match="a round cannot be captured in a CUDA graph: operation not permitted"
    ):
        workers(2)(steps_of_rank, "fp32", "refusing", True)


@pytest.mark.parametrize(("given", "codec"), [({"moves": True}, "fp32"), ({}, "powersgd")])
def test_what_is_not_captured(given: dict[str, bool], codec: str, workers: Workers) -> None:
    """Rounds of buckets that move, and of codecs that do not allow it."""
    arguments = (False, False, given.get("moves", False))
    for _, _, count, said in workers(2)(steps_of_rank, codec, "rerun", *arguments):
        assert (count, said) == (0, [])


def test_required_graphs_refuse_a_codec_that_allows_none(workers: Workers) -> None:
    with pytest.raises(Exception, match="captured in a CUDA graph: codec=powersgd does not do the same"):
        workers(2)(steps_of_rank, "powersgd", "rerun", True)


def test_a_launch_that_does_not_end_ends_the_process(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ended = list[int]()
    monkeypatch.setattr("os._exit", ended.append)
    end_process(3, 120.0)
    assert ended == [1]
    assert "rank 3: a captured round has not completed within 120 s" in caplog.text
