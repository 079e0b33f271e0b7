"""Memory pools of captured rounds: which graphs share one."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
import torch
from emulated_graph import EmulatedGraph

from gradwire.codecs.arithmetic.random import Key
from gradwire.codecs.interface import Capture
from gradwire.harness.comm.transport.captured_rounds import (
    Capturable,
    CapturedRound,
    CapturedRounds,
    Identity,
)
from gradwire.harness.comm.transport.channel import Traffic
from gradwire.harness.comm.transport.graph import CudaGraph, GraphPool

CPU = torch.device("cpu")


class Doubling(Capturable):
    """The round of a bucket, which doubles it."""

    def __init__(self, x: torch.Tensor, form: int = 0) -> None:
        self.x, self.form = x, form

    @property
    def key(self) -> Key:
        return 0, 0

    def refusal(self) -> str | None:
        return None

    def identity(self) -> Identity | str:
        return Identity("doubled", self.x.data_ptr(), self.form)

    def captured(self, capture: Capture) -> Any:
        return self


class Kept:
    """Captured rounds whose graphs are kept."""

    def __init__(self) -> None:
        self.graphs = list[EmulatedGraph]()
        self.rounds = CapturedRounds(self._make, CPU, required=True)

    def _make(self) -> EmulatedGraph:
        self.graphs.append(EmulatedGraph())
        return self.graphs[-1]

    def capture(self, bucket: torch.Tensor, name: str, communicator: int, *, marked: bool = False) -> Any:
        """Captures the bucket's round and returns its graph."""
        due = None
        while due is None:
            due = self.rounds.due(Doubling(bucket), name, communicator, marked=marked)
        due.capture(lambda given, traffic: bucket * 2, Traffic())
        return due, self.graphs[-1]


def test_rounds_that_follow_one_another_share_memory() -> None:
    """Those of a communicator, with marks and without; others run at the same time."""
    kept, buckets = Kept(), [torch.ones(3), torch.ones(4)]
    _, first = kept.capture(buckets[0], "a", 0)
    _, marked = kept.capture(buckets[0], "a", 0, marked=True)
    _, second = kept.capture(buckets[1], "b", 0)
    _, beside = kept.capture(buckets[1], "b", 1)
    assert first is not marked and isinstance(first.pool, GraphPool)
    assert first.pool is marked.pool is second.pool is not beside.pool
    kept.rounds.forget()
    _, later = kept.capture(buckets[0], "a", 0)
    assert later.pool is not first.pool, "that has ended with its graphs"


def test_messages_of_another_form_are_captured_anew() -> None:
    """At once, and counted; the capture of before is not kept."""
    rounds, bucket, due = CapturedRounds(EmulatedGraph, CPU, required=True), torch.ones(3), None
    while due is None:
        due = rounds.due(Doubling(bucket), "a", 0)
    assert rounds.due(Doubling(bucket), "a", 0) is due and rounds.recaptured == 0
    other = rounds.due(Doubling(bucket, form=1), "a", 0)
    assert other is not None and other is not due and list(rounds) == [other]
    assert rounds.due(Doubling(bucket, form=1), "a", 0) is other and rounds.recaptured == 1
    back = rounds.due(Doubling(bucket), "a", 0)
    assert back is not due and back is not other and rounds.recaptured == 2


def test_captures_of_a_rank_that_captures_no_more_leave_memory() -> None:
    """All of them, because none is launched any more; the reason stays."""
    rounds = CapturedRounds(EmulatedGraph, CPU, required=False)
    bucket, due = torch.ones(3), None
    while due is None:
        due = rounds.due(Doubling(bucket), "a", 0)
    rounds.discard_failed()
    assert list(rounds) == [due] and rounds.is_open
    rounds.fail(torch.OutOfMemoryError("CUDA out of memory"))
    rounds.discard_failed()
    assert not list(rounds) and not rounds.is_open
    assert rounds.due(Doubling(bucket), "a", 0) is None
    assert rounds.reasons == {"a": "CUDA out of memory"}


def test_a_launch_finds_garbage_where_another_may_have_been() -> None:
    """The emulated graph shows what a shared pool does: only what a launch makes itself is there."""
    kept, bucket = Kept(), torch.ones(3)
    due, _ = kept.capture(bucket, "a", 0)
    due.launch((1, 2))
    assert due.result.tolist() == [2, 2, 2]
    remembered = torch.ones(3)

    def counting(given: Capture, traffic: Traffic) -> torch.Tensor:
        seen.append(torch.empty(3))
        return seen[0].add_(remembered)

    seen = list[torch.Tensor]()
    wrong = CapturedRound(EmulatedGraph(), CPU)
    wrong.capture(counting, Traffic())
    wrong.launch((1, 2))
    first = wrong.result.clone()
    wrong.launch((1, 2))
    assert torch.equal(wrong.result, first), "nothing is left of the launch before"


def test_graphs_of_a_pool_are_captured_into_it(monkeypatch: pytest.MonkeyPatch) -> None:
    handles, given = count(), list[Any]()

    class Fake:
        def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
            given.append((pool, capture_error_mode))

        def capture_end(self) -> None:
            given.append("end")

    monkeypatch.setattr("torch.cuda.CUDAGraph", Fake)
    monkeypatch.setattr("torch.cuda.graph_pool_handle", lambda: (0, next(handles)))
    pool = GraphPool()
    for own in (pool, pool, None):
        CudaGraph().capture(lambda: None, own)
    mode = "thread_local"
    assert given[::2] == [((0, 0), mode), ((0, 0), mode), ((0, 1), mode)]
    assert given[1::2] == ["end"] * 3

    def fail() -> None:
        raise ValueError("the work's own words")

    with pytest.raises(ValueError, match="own words"):
        CudaGraph().capture(fail, pool)
    assert given[-1] == "end", "a capture is never left open"
