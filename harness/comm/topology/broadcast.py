"""Broadcast: every rank sends its own encoded gradient to all others; nothing is encoded twice (AQGB §III).

The error does not grow with the number of hops, the bytes grow with the number of ranks. Every rank decodes
the same messages in the order of the ranks, so results are bit-identical. (The MX formats are an exception:
their sums stay in the element format, so they are rounded at every addition.)
"""

from __future__ import annotations

from gradwire.harness.comm.topology.schedule import Receive, Schedule, Send, Step


def broadcast(size: int) -> Schedule:
    """A schedule of one step with one chunk, in which every rank sends to all others."""
    everything = range(1)
    steps = []
    for rank in range(size):
        others = [peer for peer in range(size) if peer != rank]
        sends = tuple(Send(peer, everything, 1, "leaf") for peer in others)
        receives = tuple(Receive(peer, everything, 1, (("collect", everything),)) for peer in others)
        steps.append((Step("all_gather", sends, receives),) if others else ())
    return Schedule("broadcast", size, 1, tuple(steps))
