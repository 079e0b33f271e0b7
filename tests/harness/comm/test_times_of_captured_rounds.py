"""Times of captured rounds between real workers: the spans and traces that rounds leave, in the steps whose
launches pass marks."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from captured_jobs import SIZES, steps_of_rank, timed_steps_of_rank
from emulation import NOT_BUILT
from pool import Workers

from gradwire.codecs.native.loading import library
from gradwire.harness.comm.transport.captured_rounds import SETTLING
from gradwire.harness.timing.measure.spans import Span
from gradwire.harness.timing.trace.step import Operation, Part, Post, Wait, Work

pytestmark = pytest.mark.skipif(library("emulated") is None, reason=NOT_BUILT)


def kinds(spans: list[Span]) -> Counter[tuple[str, int]]:
    """The number of spans of each kind and number of bytes."""
    return Counter((span.kind, span.bytes) for span in spans)


def without_times(operations: tuple[Operation, ...]) -> list[Operation]:
    found = list[Operation]()
    for each in operations:
        if isinstance(each, Post):
            found.append(each._replace(at=0.0))
        elif isinstance(each, Wait):
            found.append(each._replace(start=0.0, end=0.0))
        else:
            parts = tuple(Part(part.label, part.share, 0.0) for part in each.parts)
            found.append(Work(0.0, 0.0, parts))
    return found


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("trace", [False, True])
@pytest.mark.parametrize("codec", ["fp32", "dynamiq"])
def test_steps_with_marks_leave_what_rounds_leave(
    codec: str, trace: bool, every: int, workers: Workers
) -> None:
    """Spans and operations of a step, all within it; a step without marks says that it lacks some."""
    expected = workers(2)(timed_steps_of_rank, codec, None, trace, every)
    found = workers(2)(timed_steps_of_rank, codec, "rerun", trace, every)
    for (spans, traces, gaps, about), (wanted, wanted_traces, none, nothing) in zip(
        found, expected, strict=True
    ):
        assert nothing is None and not any(none)
        assert gaps == [step >= SETTLING and (step + 1) % every > 0 for step in range(len(gaps))]
        assert about is not None and (about.captured, about.spans_every) == (len(SIZES), every)
        assert about.refused == {} and about.marks >= 8 * len(SIZES)
        for own, other, gap in zip(spans, wanted, gaps, strict=True):
            assert not own if gap else kinds(own) == kinds(other)
        for own, other, gap in zip(traces, wanted_traces, gaps, strict=True):
            assert (own is None) == (other is None) == (not trace)
            if own is None or other is None or gap:
                continue
            assert [task.bucket for task in own.tasks] == [task.bucket for task in other.tasks]
            for task, like in zip(own.tasks, other.tasks, strict=True):
                assert without_times(task.operations) == without_times(like.operations)
                times = [at for each in task.operations for at in moments(each)]
                assert times == sorted(times)


def moments(operation: Operation) -> list[float]:
    if isinstance(operation, Post):
        return [operation.at]
    return [operation.start, operation.end]


def test_ranks_agree_on_the_steps_with_marks(workers: Workers) -> None:
    """From the times of launches of both kinds; the largest share of any rank counts on all."""
    found = [about for *_, about in workers(2)(timed_steps_of_rank, "dynamiq", "rerun", True, 0)]
    assert found[0] is not None and found[0].spans_every is not None
    assert found[0].marks_share is not None and found[0].marks_share >= 0
    assert found[1] is not None and found[1].spans_every == found[0].spans_every
    assert found[1].marks_share == found[0].marks_share


@pytest.mark.parametrize("codec", ["dynamiq", "qsgd+ef", "mxfp8+ef"])
def test_bytes_with_marks_are_those_without(codec: str, workers: Workers) -> None:
    """Also of codecs that remember something: the graph with marks and the other one share it."""
    expected = workers(2)(steps_of_rank, codec, None)
    found = workers(2)(steps_of_rank, codec, "rerun", False, True)
    for (means, sent, count, said), (wanted, wanted_sent, *_) in zip(found, expected, strict=True):
        assert count > 0 and said == [] and sent == wanted_sent
        for own, other in zip(means, wanted, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(own, other, strict=True))
