"""Checks a schedule exhaustively by executing it on sets of ranks instead of numbers."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Sequence

from gradwire.harness.comm.topology.schedule import Receive, Schedule, Send, Step, last_needed

Content = dict[int, frozenset[int]]
"""Contents of a message or a rank: chunk to the ranks whose contributions are summed in it."""

InFlight = dict[tuple[int, int], deque[Content]]
"""Messages under way, in the order sent: (source, destination) -> contents."""


class _PacedRank:
    """One rank that posts every step as early as it may and receives every message as late as it may."""

    def __init__(self, rank: int, schedule: Schedule) -> None:
        self.rank, self.steps, self._segments = rank, schedule.ranks[rank], schedule.segments
        self._needed = last_needed(self.steps)
        self._posted = self._received = 0
        self.sums: Content = {c: frozenset({rank}) for c in range(schedule.num_chunks)}
        self.ready: Content = {}
        self.sealed: Content = {}
        self.leaves: Content = {}
        self.encodes: Counter[int] = Counter()
        self.sent: Counter[tuple[int, frozenset[int]]] = Counter()

    def advance(self, in_flight: InFlight) -> bool:
        """Posts or receives one step; returns False if it must wait for a message or has ended."""
        if self._posted < len(self.steps):
            step = self.steps[self._posted]
            if self._received > max(self._needed[self._posted], self._posted - self._segments):
                for send in step.sends:
                    in_flight[self.rank, send.peer].append(self._outgoing(send))
                self._posted += 1
                return True
        return self._receive(in_flight)

    def _receive(self, in_flight: InFlight) -> bool:
        if self._received == self._posted:
            return False
        step = self.steps[self._received]
        if not all(in_flight[receive.peer, self.rank] for receive in step.receives):
            return False
        for receive in step.receives:
            content = in_flight[receive.peer, self.rank].popleft()
            assert sorted(content) == list(receive.chunks), f"{receive} gets chunks {sorted(content)}"
            for action, chunks in receive.actions:
                self._incoming(content, action, chunks)
        self._received += 1
        return True

    @property
    def ended(self) -> bool:
        return self._received == len(self.steps)

    def _outgoing(self, send: Send) -> Content:
        if send.source == "leaf":
            for c in send.chunks:
                if c not in self.leaves:  # a leaf may go to several peers, encoded once
                    self.encodes[c] += 1
                    self.leaves[c] = self.sums.pop(c)
            content = {c: self.leaves[c] for c in send.chunks}
        else:
            store = self.ready if send.source == "inner" else self.sealed
            assert set(send.chunks) <= store.keys(), f"{send} forwards bytes that are not ready"
            content = {c: store[c] for c in send.chunks}
        counts = {len(content[c]) for c in send.chunks}
        if send.source != "sealed":
            assert counts == {send.workers}, f"{send} states {send.workers} contributions, has {counts}"
        self.sent.update(content.items())
        return content

    def _incoming(self, content: Content, action: str, chunks: range) -> None:
        for c in chunks:
            if action == "gather":
                assert c not in self.sealed, f"chunk {c} gathered twice"
                self.sealed[c] = content[c]
                continue
            if action == "collect":
                self.sealed.setdefault(c, self.leaves[c])
                assert not self.sealed[c] & content[c], f"chunk {c}: {content[c]} collected twice"
                self.sealed[c] |= content[c]
                continue
            assert not self.sums[c] & content[c], f"chunk {c}: {self.sums[c] & content[c]} counted twice"
            self.sums[c] |= content[c]
            if action != "partial":
                self.encodes[c] += 1
                (self.ready if action == "inner" else self.sealed)[c] = self.sums.pop(c)


def check_schedule(schedule: Schedule) -> None:
    """Raises AssertionError unless `schedule` is a correct all-reduce.

    Every contribution is counted exactly once in every chunk. All ranks end with the same sealed version of
    every chunk. Stated contribution counts are right. Each rank encodes a chunk at most once, and each chunk
    is encoded `size` times in all. Between two ranks messages are received in the order they are sent. No
    rank waits for a message that is never sent, whether as many steps are in flight as allowed or each step
    waits for its own messages only.
    """
    for steps in schedule.ranks:
        _check_form(steps)
    ranks, in_flight = _executed(schedule)
    stuck = [state.rank for state in ranks if not state.ended]
    assert not stuck, f"ranks {stuck} wait for messages that are never sent"
    assert not any(in_flight.values()), "messages sent that no rank receives"
    _check_result(schedule, ranks)
    _check_one_by_one(schedule)


def _executed(schedule: Schedule) -> tuple[list[_PacedRank], InFlight]:
    """All ranks after their steps, or where they are stuck, and the messages that no rank has received."""
    ranks = [_PacedRank(r, schedule) for r in range(schedule.size)]
    in_flight: InFlight = defaultdict(deque)
    while sum(rank.advance(in_flight) for rank in ranks):
        pass
    return ranks, in_flight


def carried_sums(schedule: Schedule) -> Counter[tuple[int, frozenset[int]]]:
    """Counts how often each partial sum is sent: (chunk, the ranks that have contributed) to messages.

    `schedule` must be correct, and its messages must hold partial sums.
    """
    ranks, _ = _executed(schedule)
    return sum((rank.sent for rank in ranks), Counter[tuple[int, frozenset[int]]]())


def _check_form(steps: Sequence[Step]) -> None:
    """Checks what the executor assumes about a rank's steps."""
    carriers: dict[int, range] = {}
    for step in steps:
        for peers in ([send.peer for send in step.sends], [receive.peer for receive in step.receives]):
            assert len(peers) == len(set(peers)), f"two messages between the same ranks in {step}"
        for send in step.sends:
            if send.source == "inner":
                assert {carriers.setdefault(c, send.chunks) for c in send.chunks} == {send.chunks}, (
                    f"{send} has chunks of another message"
                )
    for step in steps:
        for receive in step.receives:
            _check_actions(receive, carriers)


def _check_actions(receive: Receive, carriers: dict[int, range]) -> None:
    """Checks the actions of one receive; `carriers` gives the message that carries on a chunk's sum once it
    is encoded."""
    covered = [c for _, chunks in receive.actions for c in chunks]
    assert covered == list(receive.chunks), f"{receive} acts on {covered}"
    for action, chunks in receive.actions:
        if action in ("gather", "collect"):
            assert len(receive.actions) == 1, f"{receive} does other things with a sealed message"
        if action == "inner":
            assert len({carriers.get(c) for c in chunks}) == 1, f"{receive} encodes into several messages"


def _check_one_by_one(schedule: Schedule) -> None:
    """Checks the schedule as NCCL runs it: a step is one group of messages, and the next step waits for the
    whole group."""
    position = [0] * schedule.size
    waiting = [_messages(schedule, r, 0) for r in range(schedule.size)]
    progress = True
    while progress:
        progress = False
        for r, steps in enumerate(schedule.ranks):
            for message in sorted(waiting[r]):
                peer = sum(message) - r
                if message in waiting[peer]:
                    waiting[r].remove(message)
                    waiting[peer].remove(message)
                    progress = True
            if not waiting[r] and position[r] < len(steps):
                position[r] += 1
                waiting[r] = _messages(schedule, r, position[r])
                progress = True
    stuck = [r for r, steps in enumerate(schedule.ranks) if position[r] < len(steps)]
    assert not stuck, f"ranks {stuck} wait for each other when steps follow one another"


def _messages(schedule: Schedule, rank: int, index: int) -> set[tuple[int, int]]:
    """(source, destination) of the messages of a rank's step; none after its last."""
    steps = schedule.ranks[rank][index : index + 1]
    sent = {(rank, send.peer) for step in steps for send in step.sends}
    return sent | {(receive.peer, rank) for step in steps for receive in step.receives}


def _check_result(schedule: Schedule, ranks: list[_PacedRank]) -> None:
    if schedule.size == 1:
        assert not schedule.ranks[0], "one rank has nothing to send"
        return
    everyone, total = frozenset(range(schedule.size)), Counter[int]()
    for r, state in enumerate(ranks):
        wrong = [c for c in range(schedule.num_chunks) if state.sealed.get(c) != everyone]
        assert not wrong, f"rank {r} ends without the full sum of chunks {wrong}"
        assert max(state.encodes.values()) == 1, f"rank {r} encodes a chunk twice"
        total.update(state.encodes)
    assert set(total.values()) == {schedule.size}, "each chunk is encoded once by every worker"


def chunks_sent(schedule: Schedule) -> list[int]:
    """The number of chunks that each rank sends in total, which shows how balanced the load is."""
    return [sum(len(send.chunks) for step in steps for send in step.sends) for steps in schedule.ranks]
