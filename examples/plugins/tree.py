"""A binary tree, a topology whose load is not balanced: sums go up to rank 0, the result comes down again.

PYTHONPATH=examples/plugins python run.py size=tiny topology=tree:tree
"""

from __future__ import annotations

from gradwire.harness.comm.topology.schedule import Action, Receive, Schedule, Send, Source, Step


def tree(size: int) -> Schedule:
    """Rank r's parent is (r − 1) // 2; one chunk; the root seals it. Leaves send less than the others."""
    return Schedule("tree", size, 1, tuple(_steps(rank, size) for rank in range(size)), balanced=False)


def _below(rank: int, n: int) -> int:
    """Ranks of the subtree that begins at `rank`."""
    return 0 if rank >= n else 1 + _below(2 * rank + 1, n) + _below(2 * rank + 2, n)


def _steps(rank: int, n: int) -> tuple[Step, ...]:
    whole, parent = range(1), (rank - 1) // 2
    children = [child for child in (2 * rank + 1, 2 * rank + 2) if child < n]
    steps: list[Step] = []
    for child in children:
        action: Action = "partial" if child != children[-1] else "inner" if rank else "sink"
        receive = Receive(child, whole, _below(child, n), ((action, whole),))
        steps.append(Step("reduce_scatter", (), (receive,)))
    if rank:
        source: Source = "inner" if children else "leaf"
        steps.append(Step("reduce_scatter", (Send(parent, whole, _below(rank, n), source),)))
        steps.append(Step("all_gather", (), (Receive(parent, whole, n, (("gather", whole),)),)))
    if children:
        steps.append(Step("all_gather", tuple(Send(child, whole, n, "sealed") for child in children)))
    return tuple(steps)
