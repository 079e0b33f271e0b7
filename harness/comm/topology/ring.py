"""Ring all-reduce: n − 1 reduce-scatter hops to the right neighbour, then n − 1 all-gather hops.

Chunk c starts at rank c, travels right collecting every rank's contribution, and is sealed by rank
c − 1 (mod n). All links carry one chunk in every step (DynamiQ §2.2).
"""

from __future__ import annotations

from gradwire.harness.comm.topology.schedule import Action, Phase, Receive, Schedule, Send, Source, Step


def ring(size: int) -> Schedule:
    """The ring over `size` ranks, `size` chunks."""
    steps = [tuple(_steps(rank, size)) for rank in range(size)]
    return Schedule("ring", size, size, tuple(steps))


def _steps(rank: int, size: int) -> list[Step]:
    steps = []
    for hop in range(size - 1):
        last = hop == size - 2
        steps.append(
            _step(
                "reduce_scatter",
                rank,
                size,
                hop,
                hop + 1,
                "inner" if hop else "leaf",
                "sink" if last else "inner",
            )
        )
    for hop in range(size - 1, 2 * (size - 1)):
        steps.append(_step("all_gather", rank, size, hop, size, "sealed", "gather"))
    return steps


def _step(phase: Phase, rank: int, size: int, hop: int, workers: int, source: Source, action: Action) -> Step:
    """At hop h a rank sends chunk (rank − h) to its right and receives (rank − h − 1) from its left."""
    sent, received = (rank - hop) % size, (rank - hop - 1) % size
    return Step(
        phase,
        (Send((rank + 1) % size, range(sent, sent + 1), workers, source),),
        (
            Receive(
                (rank - 1) % size,
                range(received, received + 1),
                workers,
                ((action, range(received, received + 1)),),
            ),
        ),
    )
