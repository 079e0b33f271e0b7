"""Rounds of training whose gradients are broadcast in blocks, event by event, without tensors (AQGB §4).

Each worker computes forward passes of all blocks, first to last, then backward passes, last to first. The
gradients of a backward pass are sent to all other workers in two stages. Transmissions share links max-min
fairly; stage one takes precedence over stage two.

- Stage one: the newest block goes first. When a newer one appears, the current transmission ends with its
  current partition, and the rest of that block follows later, with the number of bits decided then. Fixed
  bits are the same for all values. With adaptive bits all undelivered data is to be delivered before the next
  block appears: ratio = rate · time / undelivered, between the floor and 1; at the floor once no more blocks
  appear, and as long as nothing is known.
- Stage two, only with adaptive bits: once stage one is complete, further bits of each block in the order of
  the forward passes, ratio = rate · time until the deadline / bits that are left. It ends `margin_s` before
  the deadline, or when all bits are sent.
- A worker keeps, as moving averages: when its blocks appear, when its forward passes could use a block (the
  pass before has ended, and the last byte of stage one has arrived: not when they actually do, which would
  postpone deadlines for ever), and the rate of its broadcasts. With its backward pass it broadcasts the
  second; a block's deadline is the latest that any worker sent in the round before.
- A forward pass begins when all workers have closed the block, i.e. send no more of it. In round 0 it does
  not wait. There is no other barrier.

The engine is compiled (`csrc/simulator/rounds.cpp`). Tests compare it, row by row and bit for bit, with a
reference in plain Python (`tests/harness/timing/simulate/reference_rounds.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from threading import Event, Thread
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gradwire.codecs.native import call
from gradwire.harness.network.links import LinkRoute, Links
from gradwire.harness.timing.simulate.engine import CPU, network_fields, require_engine

FORWARD, BACKWARD, STAGE_ONE, STAGE_TWO = range(4)
"""The kinds of rows: a block's forward or backward pass, or a part of a block that is sent."""

FIRST_ROWS, MOST_FIRST_ROWS = 1 << 14, 1 << 22
"""The initial capacity in rows, and its limit; a run with more rows is simulated again with enough
capacity.
"""

ROWS_PER_BLOCK = 6
"""Capacity in rows per block and worker's round: two passes and some transmissions."""

LOOK_S = 0.5
"""Seconds between two checks of a simulation's progress."""

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class RoundRows:
    """The passes and transmissions of a run, in the order in which they began: one entry of each column for
    each.

    `kinds` are FORWARD, …; `round` is the one whose gradients are sent. For transmissions there are the bits
    of each value (`bits_sent`), the values of whole partitions (`values_sent`), the `bytes` of all copies,
    including interrupted ones, the `ratio` that the bits were computed from, and the `rate` that the sender
    expected in bits per second, NaN until it had an estimate. Times are in seconds; `end` is NaN for entries
    that had not ended when the run did.
    """

    kinds: Integers
    worker: Integers
    round: Integers
    block: Integers
    bits_sent: Integers
    values_sent: Integers
    start: Floats
    end: Floats
    bytes: Floats
    ratio: Floats
    rate: Floats


WHOLE = ("kinds", "worker", "round", "block", "bits_sent", "values_sent")
"""The columns of integers."""


@dataclass(frozen=True)
class BroadcastScheme:
    """The settings by which workers send their gradients. Without `multicast` a broadcast is a message to
    each other worker; `unhindered` workers send nothing, and no forward pass waits."""

    multicast: bool
    adaptive: bool
    bits: int = 32
    unhindered: bool = False
    partition: int = 1024
    floor: float = 0.125
    margin_s: float = 0.02
    gain: float = 0.3


def train(
    values: Sequence[int],
    compute: Floats,
    links: Links,
    scheme: BroadcastScheme,
    *,
    until_s: float = 200.0,
    on_progress: Callable[[float], None] | None = None,
) -> RoundRows:
    """Simulates `until_s` seconds of training a model of blocks with `values` values each, in the order of
    the forward pass. `on_progress` is called from time to time, from another thread, with the simulated
    seconds so far.

    `compute`, (rounds, workers, 2, blocks): seconds of each forward pass, then of each backward pass; a
    worker that has computed all rounds stops.

    Raises ValueError for impossible arguments: no workers or blocks, times that are negative or not finite,
    rates that are not above 0, ratios outside of (0, 1], bits outside of 1 to 32; Also raises ValueError
    without the library.
    """
    engine = require_engine("task=simulate")
    rounds, workers, _, blocks = compute.shape
    _check(values, compute, scheme)
    routes, latencies = _routes(links, workers, scheme)
    given = {
        **network_fields(links, routes),
        "latencies": np.array(latencies, np.float64),
        "workers": workers,
        "blocks": blocks,
        "rounds": rounds,
        "adaptive": scheme.adaptive,
        "bits": scheme.bits,
        "unhindered": scheme.unhindered,
        "partition": scheme.partition,
        "floor": scheme.floor,
        "margin": scheme.margin_s,
        "gain": scheme.gain,
        "until": until_s,
        "copies": len(routes) // workers,
        "values": np.array(values, np.int64),
        "compute": np.ascontiguousarray(compute, np.float64).reshape(-1),
    }
    del given["serial"]
    room = min(max(FIRST_ROWS, ROWS_PER_BLOCK * rounds * workers * blocks), MOST_FIRST_ROWS)
    found = np.zeros(1, np.int64)
    while True:
        rows: dict[str, Any] = {
            field.name: np.zeros(room, np.int64) if field.name in WHOLE else np.full(room, np.nan)
            for field in fields(RoundRows)
        }
        arguments = {**given, **rows, "rows": room, "found": found}
        tensors = {
            name: (torch.from_numpy(value), value.size)
            for name, value in arguments.items()
            if isinstance(value, np.ndarray)
        }
        with _looked_at(rows["start"], on_progress):
            call.run(engine, "train", CPU, **(arguments | tensors))
        count = int(found[0])
        if count <= room:
            return RoundRows(**{name: column[:count] for name, column in rows.items()})
        room = count


@contextmanager
def _looked_at(starts: Floats, on_progress: Callable[[float], None] | None) -> Iterator[None]:
    """Calls `on_progress` with the latest of the ascending `starts`, as the engine fills them in."""
    if on_progress is None:
        yield
        return
    ended = Event()

    def look() -> None:
        while not ended.wait(LOOK_S):
            begun = int(np.count_nonzero(~np.isnan(starts)))
            if begun:
                on_progress(float(starts[begun - 1]))

    thread = Thread(target=look, name="progress of a simulation")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _check(values: Sequence[int], compute: Floats, scheme: BroadcastScheme) -> None:
    rounds, workers, directions, blocks = compute.shape
    if workers < 1 or blocks < 1 or directions != 2 or len(values) != blocks:
        raise ValueError(f"times of shape {compute.shape} do not fit {len(values)} blocks")
    if min(values) < 0:
        raise ValueError(f"a block has {min(values)} values; choose 0 or more")
    if not (np.isfinite(compute) & (compute >= 0)).all():
        raise ValueError("times of computation must be finite, and 0 or more")
    if not 1 <= scheme.bits <= 32 or scheme.partition < 1:
        raise ValueError(
            f"bits={scheme.bits} and partition={scheme.partition}; choose 1 to 32, and 1 or more"
        )
    for name, ratio in (("floor", scheme.floor), ("gain", scheme.gain)):
        if not 0 < ratio <= 1:
            raise ValueError(f"{name}={ratio}; choose a number above 0 and up to 1")


def _routes(links: Links, workers: int, scheme: BroadcastScheme) -> tuple[list[LinkRoute], list[float]]:
    """The routes of each worker, worker by worker, and the latency until its messages have arrived
    everywhere."""
    others = [[other for other in range(workers) if other != worker] for worker in range(workers)]
    pairs = [[links.route(worker, other) for other in others[worker]] for worker in range(workers)]
    latencies = [max((route.latency_s for route in own), default=0.0) for own in pairs]
    if scheme.unhindered or workers == 1:
        return [], latencies
    if scheme.multicast:
        return [links.multicast(worker, others[worker]) for worker in range(workers)], latencies
    return [route for own in pairs for route in own], latencies
