"""The spans of a rank's step on the timeline that breakdown, overlap and bandwidth are made from."""

from __future__ import annotations

from collections.abc import Iterator

from gradwire.harness.timing.measure.timeline import Span
from gradwire.harness.timing.trace.phases import MEASURE
from gradwire.harness.timing.trace.step import Post, RankTrace, TaskTrace, Wait, Work


def spans(trace: RankTrace) -> list[Span]:
    """Computation, codec work and messages, real or simulated."""
    return [*compute_spans(trace), *(span for task in trace.tasks for span in task_spans(task))]


def compute_spans(trace: RankTrace) -> Iterator[Span]:
    """One span per bucket, up to its gradient's being ready, and the update."""
    start = 0.0
    for bucket, ready in enumerate(trace.ready):
        passes = "backward" if bucket else "forward, backward"
        yield Span("compute", start, ready, 0, f"{passes} until bucket {bucket}")
        start = ready
    if trace.update_s:
        yield Span("compute", trace.end - trace.update_s, trace.end, 0, "update")


def task_spans(task: TaskTrace) -> Iterator[Span]:
    """`codec` for each piece of work, `comm` from each post until its completion was seen."""
    posts: list[Post] = [operation for operation in task.operations if isinstance(operation, Post)]
    for operation in task.operations:
        if isinstance(operation, Work) and operation.end > operation.start:
            yield Span("codec", operation.start, operation.end, 0, f"bucket {task.bucket}")
        elif isinstance(operation, Wait):
            post = posts[operation.number]
            if post.phase != MEASURE:
                sent = sum(num_bytes for _, num_bytes in post.sends)
                yield Span("comm", post.at, operation.end, sent, post.phase)
