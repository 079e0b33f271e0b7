"""Ring all-reduce: n − 1 reduce-scatter hops to the right neighbour, then n − 1 all-gather hops.

Chunk c starts at rank c, travels right collecting every rank's contribution, and is sealed by rank
c − 1 (mod n). All links carry one chunk in every step (DynamiQ §2.2).
"""

from __future__ import annotations

from gradwire.harness.comm.topology.schedule import Action, Phase, Receive, Schedule, Send, Source, Step


def ring(size: int) -> Schedule:
    """The ring over `size` ranks, `size` chunks."""
    return Schedule("ring", size, size, tuple(_steps(rank, size) for rank in range(size)))


def _steps(rank: int, size: int) -> tuple[Step, ...]:
    """At hop h a rank sends chunk (rank − h) to its right and receives (rank − h − 1) from its left."""
    steps, hops = [], size - 1
    for hop in range(2 * hops):
        sent, received = (rank - hop) % size, (rank - hop - 1) % size
        phase: Phase = "reduce_scatter" if hop < hops else "all_gather"
        source: Source = "leaf" if hop == 0 else "inner" if hop < hops else "sealed"
        action: Action = "inner" if hop < hops - 1 else "sink" if hop == hops - 1 else "gather"
        workers, to, came = min(hop + 1, size), range(sent, sent + 1), range(received, received + 1)
        send = Send((rank + 1) % size, to, workers, source)
        receive = Receive((rank - 1) % size, came, workers, ((action, came),))
        steps.append(Step(phase, (send,), (receive,)))
    return tuple(steps)
