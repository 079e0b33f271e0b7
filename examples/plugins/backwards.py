"""A topology from outside: a ring all-reduce whose messages go to the rank before.

PYTHONPATH=examples/plugins python run.py size=tiny topology=backwards:backwards
"""

from __future__ import annotations

from gradwire.harness.comm.topology.schedule import Action, Receive, Schedule, Send, Source, Step


def backwards(size: int) -> Schedule:
    """2(n - 1) steps over n chunks: chunk c begins at rank c - 1 and is complete at rank c."""
    return Schedule("backwards", size, max(size, 1), tuple(_steps(rank, size) for rank in range(size)))


def _steps(rank: int, n: int) -> tuple[Step, ...]:
    before, after = (rank - 1) % n, (rank + 1) % n
    steps: list[Step] = []
    for hop in range(n - 1):  # reduce-scatter: sums of 1 to n gradients
        out, came = range((rank + 1 + hop) % n, (rank + 1 + hop) % n + 1), (rank + 2 + hop) % n
        source: Source = "leaf" if hop == 0 else "inner"
        action: Action = "sink" if hop == n - 2 else "inner"
        chunks = range(came, came + 1)
        receive = Receive(after, chunks, hop + 1, ((action, chunks),))
        steps.append(Step("reduce_scatter", (Send(before, out, hop + 1, source),), (receive,)))
    for hop in range(n - 1):  # all-gather: the sealed sums go round
        sent, came = (rank + hop) % n, (rank + 1 + hop) % n
        out, chunks = range(sent, sent + 1), range(came, came + 1)
        receive = Receive(after, chunks, n, (("gather", chunks),))
        steps.append(Step("all_gather", (Send(before, out, n, "sealed"),), (receive,)))
    return tuple(steps)
