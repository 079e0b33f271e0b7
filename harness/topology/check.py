"""Checks a schedule exhaustively by executing it on sets of ranks instead of numbers."""

from __future__ import annotations

from collections import Counter, defaultdict, deque

from gradwire.harness.topology.schedule import Schedule, Send, Step

Content = dict[int, frozenset[int]]
"""What a message or a rank holds: chunk -> the ranks whose contributions are summed in it."""


class _Rank:
    def __init__(self, rank: int, num_chunks: int) -> None:
        self.sums: Content = {c: frozenset({rank}) for c in range(num_chunks)}
        self.ready: Content = {}
        self.sealed: Content = {}
        self.leaves: Content = {}
        self.encodes: Counter[int] = Counter()

    def outgoing(self, send: Send) -> Content:
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
        return content

    def incoming(self, content: Content, action: str, chunks: range) -> None:
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
    """AssertionError unless `schedule` is a correct all-reduce.

    Every contribution is counted exactly once in every chunk, every rank ends with every chunk of
    the same single sealing, stated contribution counts are right, each rank encodes a chunk at most
    once and each chunk is encoded `size` times in all, and no rank waits for a message never sent.
    """
    size, everyone = schedule.size, frozenset(range(schedule.size))
    ranks = [_Rank(r, schedule.num_chunks) for r in range(size)]
    links: dict[tuple[int, int], deque[Content]] = defaultdict(deque)
    position, posted = [0] * size, [False] * size
    progress = True
    while progress:
        progress = False
        for r in range(size):
            while position[r] < len(schedule.ranks[r]):
                step = schedule.ranks[r][position[r]]
                if not posted[r]:
                    for send in step.sends:
                        links[r, send.peer].append(ranks[r].outgoing(send))
                    posted[r] = progress = True
                if not all(links[receive.peer, r] for receive in step.receives):
                    break
                _receive(ranks[r], r, step, links)
                position[r], posted[r], progress = position[r] + 1, False, True
    stuck = [r for r in range(size) if position[r] < len(schedule.ranks[r])]
    assert not stuck, f"ranks {stuck} wait for messages that are never sent"
    assert not any(links.values()), "messages sent that nobody receives"
    _check_result(schedule, ranks, everyone)


def _receive(state: _Rank, rank: int, step: Step, links: dict[tuple[int, int], deque[Content]]) -> None:
    for receive in step.receives:
        assert links[receive.peer, rank], f"{receive} has no message of its own"
        content = links[receive.peer, rank].popleft()
        assert sorted(content) == list(receive.chunks), f"{receive} gets chunks {sorted(content)}"
        covered = [c for _, chunks in receive.actions for c in chunks]
        assert covered == list(receive.chunks), f"{receive} acts on {covered}"
        for action, chunks in receive.actions:
            state.incoming(content, action, chunks)


def _check_result(schedule: Schedule, ranks: list[_Rank], everyone: frozenset[int]) -> None:
    if schedule.size == 1:
        assert not schedule.ranks[0], "one rank has nothing to send"
        return
    total: Counter[int] = Counter()
    for r, state in enumerate(ranks):
        wrong = [c for c in range(schedule.num_chunks) if state.sealed.get(c) != everyone]
        assert not wrong, f"rank {r} ends without the full sum of chunks {wrong}"
        assert max(state.encodes.values()) == 1, f"rank {r} encodes a chunk twice"
        total.update(state.encodes)
    assert set(total.values()) == {schedule.size}, "each chunk is encoded once by every worker"


def chunks_sent(schedule: Schedule) -> list[int]:
    """Chunks each rank sends in all: the balance of the load."""
    return [sum(len(send.chunks) for step in steps for send in step.sends) for steps in schedule.ranks]
