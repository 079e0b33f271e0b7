"""The engine of broadcast rounds in plain Python: what the compiled one is compared with, row by row.

It follows the rules of `harness.timing.simulate.rounds`; with floats both give the same bytes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Any

from reference_flows import SLACK, Flows
from reference_records import NAN, Averages, OwnBlock, Row, Sending

from gradwire.harness.network.links import Links
from gradwire.harness.timing.simulate.rounds import BACKWARD, FORWARD, STAGE_ONE, STAGE_TWO
from gradwire.harness.timing.trace.step import Urgency

COMPUTED, FLOWN, DELIVERED, CLOSED, DUE, CHANGED = range(6)


class Training:
    """The arguments are those of `rounds.train`."""

    def __init__(
        self,
        values: Sequence[int],
        compute: Any,
        links: Links,
        *,
        multicast: bool,
        adaptive: bool,
        bits: int = 32,
        unhindered: bool = False,
        partition: int = 1024,
        floor: float = 0.125,
        margin_s: float = 0.02,
        gain: float = 0.3,
        until_s: float = 200.0,
    ) -> None:
        self._values, self._compute = list(values), compute.tolist()
        self._rounds, self._size, _, self._blocks = compute.shape
        self._adaptive, self._bits, self._unhindered = adaptive, bits, unhindered
        self._partition, self._floor, self._margin = partition, floor, margin_s
        self._until, self._changes, self._flows = until_s, links.changes, Flows(links)
        workers = range(self._size)
        others = [[other for other in workers if other != worker] for worker in workers]
        pairs = [[links.route(worker, other) for other in others[worker]] for worker in workers]
        self._latency = [max((route.latency_s for route in own), default=0.0) for own in pairs]
        if unhindered or self._size == 1:
            self._routes: list[list[tuple[int, ...]]] = [[] for _ in workers]
        elif multicast:
            self._routes = [[links.multicast(worker, others[worker]).links] for worker in workers]
        else:
            self._routes = [[route.links for route in own] for own in pairs]
        self._copies = len(self._routes[0])
        self._rate, self._appears, self._ready = (Averages(gain) for _ in range(3))
        self._told: dict[tuple[int, int, int], float] = {}
        self._heap: list[tuple[float, int, int, int, int]] = []
        self._count = 0
        self.rows: list[Row] = []
        self._round, self._step = [0] * self._size, [0] * self._size
        self._row: list[Row | None] = [None] * self._size
        self._idle = [False] * self._size
        self._free_at, self._began = [0.0] * self._size, [0.0] * self._size
        self._own = [[OwnBlock() for _ in range(self._blocks)] for _ in workers]
        self._sending: list[Sending | None] = [None] * self._size
        self._delivered_at: dict[tuple[int, int, int], float] = {}
        self._closed: dict[tuple[int, int, int], int] = {}

    def run(self) -> list[Row]:
        for index, change in enumerate(self._changes):
            self._push(change.at_s, CHANGED, index)
        for worker in range(self._size):
            self._go_on(worker, 0.0)
        self._foretell(0.0)
        while self._heap and self._heap[0][0] <= self._until:
            now = self._heap[0][0]
            while self._heap and self._heap[0][0] == now:
                _, _, kind, index, version = heappop(self._heap)
                self._handle(kind, index, version, now)
            self._foretell(now)
        for worker, sending in enumerate(self._sending):
            if sending is not None:
                sending.row.bytes = self._carried_by_all(worker, self._until)
        return self.rows

    def _push(self, at: float, kind: int, index: int, version: int = 0) -> None:
        self._count += 1
        heappush(self._heap, (at, self._count, kind, index, version))

    def _foretell(self, now: float) -> None:
        for at, flow, version in self._flows.settle(now):
            self._push(at, FLOWN, flow, version)

    def _handle(self, kind: int, index: int, version: int, now: float) -> None:
        worker, block = divmod(index, self._blocks)
        if kind == CHANGED:
            self._flows.rescale(self._changes[index].factor)
        elif kind == COMPUTED:
            self._computed(index, now)
        elif kind == FLOWN:
            self._flown(index, version, now)
        elif kind == DUE:
            self._due(worker, block, version, now)
        else:
            for other in range(self._size):
                if other != worker:
                    self._arrived(kind, other, block, version, now)

    # ---- computation ----

    def _go_on(self, worker: int, now: float) -> None:
        step, number = self._step[worker], self._round[worker]
        self._free_at[worker] = now
        if number == self._rounds:
            return
        if step == self._blocks:
            self._begin_backward(worker, now)
        needs = step < self._blocks and number > 0 and not self._unhindered
        self._idle[worker] = needs and self._closed.get((worker, step, number - 1), 0) < self._size
        if not self._idle[worker]:
            self._compute_next(worker, now)

    def _compute_next(self, worker: int, now: float) -> None:
        step, number = self._step[worker], self._round[worker]
        is_forward = step < self._blocks
        block = step if is_forward else 2 * self._blocks - 1 - step
        if is_forward and number > 0 and not self._unhindered:
            place = worker, block, number - 1
            ready = max(self._free_at[worker], self._delivered_at.get(place, 0.0))
            self._ready.see((worker, block), ready - self._began[worker])
        row = Row(FORWARD if is_forward else BACKWARD, worker, number, block, now)
        self.rows.append(row)
        self._row[worker] = row
        seconds = self._compute[number][worker][0 if is_forward else 1][block]
        self._push(now + seconds, COMPUTED, worker)

    def _computed(self, worker: int, now: float) -> None:
        step = self._step[worker]
        self._step[worker] += 1
        row = self._row[worker]
        assert row is not None
        row.end = now
        if step >= self._blocks:
            block = 2 * self._blocks - 1 - step
            self._appears.see((worker, block), now - self._began[worker])
            self._appeared(worker, block, now)
        if step + 1 == 2 * self._blocks:
            self._step[worker] = 0
            self._round[worker] += 1
        self._go_on(worker, now)

    def _begin_backward(self, worker: int, now: float) -> None:
        number = self._round[worker]
        self._began[worker] = now
        for block in range(self._blocks):
            self._told[worker, number, block] = self._ready[worker, block]
        for block in range(self._blocks):
            told = [self._told.get((other, number - 1, block), NAN) for other in range(self._size)]
            known = self._adaptive and not any(each != each for each in told)
            deadline = max([0.0, *told]) if known else NAN
            self._own[worker][block] = OwnBlock(now + deadline, not known)
            if known:
                due = max(now, now + deadline - self._margin)
                self._push(due, DUE, worker * self._blocks + block, number)

    # ---- what is sent ----

    def _appeared(self, worker: int, block: int, now: float) -> None:
        own = self._own[worker][block]
        own.has_appeared, own.pending = True, self._values[block]
        if not own.pending or not self._copies:
            self._deliver(worker, block, now)
        if self._sending[worker] is None:
            self._send_next(worker, now)
        elif own.pending:
            self._give_way(worker, now)

    def _send_next(self, worker: int, now: float) -> None:
        blocks = self._own[worker]
        waiting = [number for number, own in enumerate(blocks) if own.has_appeared and not own.is_delivered]
        if not waiting:
            if blocks[0].has_appeared:
                self._refine(worker, now)
            return
        pending, newest = sum(blocks[number].pending for number in waiting), waiting[0]
        ratio = self._bits / 32
        if self._adaptive:
            ratio = self._floor
            coming = [number for number, own in enumerate(blocks) if not own.has_appeared]
            if coming:
                left = self._began[worker] + self._appears[worker, coming[-1]] - now
                wanted = self._rate[worker] * left / (32 * float(pending))
                ratio = min(1.0, wanted) if wanted > self._floor else self._floor
        bits = math.ceil(32 * ratio) if self._adaptive else self._bits
        self._send(worker, newest, STAGE_ONE, blocks[newest].pending, bits, ratio, now)

    def _refine(self, worker: int, now: float) -> None:
        for number, own in enumerate(self._own[worker]):
            while not own.is_closed:
                remaining = float(sum(values * (32 - bits) for values, bits in own.parts[own.refined :]))
                if not remaining > 0:
                    self._close(worker, number, now)
                    break
                values, had = own.parts[own.refined]
                ratio = self._rate[worker] * (own.deadline - now) / remaining
                ratio = ratio if ratio < 1.0 else 1.0
                bits = math.ceil(ratio * float(32 - had))
                if bits > 0:
                    self._send(worker, number, STAGE_TWO, values, bits, ratio, now)
                    return
                if had == 32:
                    own.refined += 1
                else:
                    self._close(worker, number, now)

    def _send(
        self, worker: int, block: int, stage: int, values: int, bits: int, ratio: float, now: float
    ) -> None:
        row = Row(stage, worker, self._round_of(worker), block, now, bits)
        row.ratio, row.rate = ratio, self._rate[worker]
        self.rows.append(row)
        num_bytes = values * bits / 8
        self._sending[worker] = Sending(row, block, stage, values, bits, self._copies, num_bytes, now)
        for copy, route in enumerate(self._routes[worker]):
            flow = worker * self._copies + copy
            self._flows.start(flow, flow, route, num_bytes, now, Urgency(stage - STAGE_ONE))

    def _give_way(self, worker: int, now: float) -> None:
        own = self._sending[worker]
        assert own is not None
        boundary = self._partition * own.bits / 8
        furthest = max(self._carried(worker, copy, now) for copy in range(self._copies))
        partitions = math.ceil(max(0.0, furthest) / boundary - SLACK)
        stop = partitions * boundary
        if stop >= own.bytes:
            return
        for copy in range(self._copies):
            self._flows.shorten(worker * self._copies + copy, own.bytes - stop)
        own.bytes, own.values = stop, partitions * self._partition

    def _carried(self, worker: int, copy: int, now: float) -> float:
        own, flow = self._sending[worker], worker * self._copies + copy
        assert own is not None
        left = self._flows.left(flow, now) if self._flows.is_active(flow) else 0
        carried: float = own.bytes - left
        return carried

    def _carried_by_all(self, worker: int, now: float) -> float:
        total = 0.0
        for copy in range(self._copies):
            total += self._carried(worker, copy, now)
        return total

    def _flown(self, flow: int, version: int, now: float) -> None:
        if not self._flows.finish(flow, version, now):
            return
        worker = flow // self._copies
        own = self._sending[worker]
        assert own is not None
        own.open -= 1
        if own.open:
            return
        self._sent(worker, own.bytes, now)
        self._send_next(worker, now)

    def _sent(self, worker: int, num_bytes: float, now: float) -> None:
        own = self._sending[worker]
        assert own is not None
        own.row.values_sent, own.row.bytes = own.values, self._carried_by_all(worker, now)
        own.row.end = now
        if now > own.began:
            self._rate.see(worker, 8 * num_bytes / (now - own.began))
        self._sending[worker] = None
        block = self._own[worker][own.block]
        if own.stage == STAGE_TWO:
            block.refined += 1
            return
        if own.values:
            block.parts.append((own.values, own.bits))
        block.pending -= own.values
        if not block.pending:
            self._deliver(worker, own.block, now)

    # ---- what arrives ----

    def _deliver(self, worker: int, block: int, now: float) -> None:
        self._own[worker][block].is_delivered = True
        self._tell_all(DELIVERED, worker, block, now)
        if self._own[worker][block].is_due:
            self._close(worker, block, now)

    def _due(self, worker: int, block: int, number: int, now: float) -> None:
        own, sending = self._own[worker][block], self._sending[worker]
        if own.is_closed or self._round_of(worker) != number:
            return
        own.is_due = True
        if not own.is_delivered:
            return
        refined = sending is not None and sending.block == block
        if refined:
            self._stop(worker, now)
        self._close(worker, block, now)
        if refined:
            self._send_next(worker, now)

    def _stop(self, worker: int, now: float) -> None:
        own = self._sending[worker]
        assert own is not None
        least = own.bytes
        for copy in range(self._copies):
            least = min(least, self._carried(worker, copy, now))
        boundary = self._partition * own.bits / 8
        own.values = min(own.values, self._partition * math.floor(least / boundary + SLACK))
        self._sent(worker, least, now)
        for copy in range(self._copies):
            flow = worker * self._copies + copy
            if self._flows.is_active(flow):
                self._flows.stop(flow, now)

    def _close(self, worker: int, block: int, now: float) -> None:
        self._own[worker][block].is_closed = True
        self._tell_all(CLOSED, worker, block, now)

    def _tell_all(self, kind: int, worker: int, block: int, now: float) -> None:
        number = self._round_of(worker)
        if self._latency[worker]:
            self._push(now + self._latency[worker], kind, worker * self._blocks + block, number)
            self._arrived(kind, worker, block, number, now)
            return
        for other in range(self._size):
            self._arrived(kind, other, block, number, now)

    def _arrived(self, kind: int, worker: int, block: int, number: int, now: float) -> None:
        place = worker, block, number
        if kind == DELIVERED:
            self._delivered_at[place] = now
            return
        self._closed[place] = self._closed.get(place, 0) + 1
        waits = self._idle[worker] and self._step[worker] == block
        if self._closed[place] == self._size and waits and self._round[worker] == number + 1:
            self._idle[worker] = False
            self._compute_next(worker, now)

    def _round_of(self, worker: int) -> int:
        return self._round[worker] - (1 if self._step[worker] < self._blocks else 0)
