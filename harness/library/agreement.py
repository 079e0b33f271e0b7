"""Ranks compare their settings before any of them sends a gradient.

They use the key-value store that their process group was made with. It needs no other rank to be listening,
so ranks that disagree, refuse their arguments or never arrive can be told apart and named.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, _get_default_store

from gradwire.codecs.wording import shortened
from gradwire.harness.runtime.within import NoAnswerError, within

Statement = Mapping[str, str]
"""One rank's settings: name to value in words."""

REFUSED, MISSING, FAILED = "refused", "missing", "failed"
SAID, READ, TOLD = "said", "read", "told"

ENDED_BY = {SAID: REFUSED, READ: MISSING}
"""What one rank writes to end a phase for all of them."""

POLL_S, LONGEST_POLL_S = 0.005, 0.2
"""Seconds between the first two looks into the store, and the longest time between later ones, each of which
is 1.5 times as long as the one before. Python handles signals in between."""

PATIENCE_S = 5.0
"""Seconds that rank 0 stays for the others to read why a call is refused, since it often serves the store."""

SLACK_S = 1.0
"""Seconds that a call may take longer than its limit before the store counts as gone."""

MOST_NAMED = 3
"""Most differences that a message lists; it gives the number of the others."""


@dataclass
class _OfGroup:
    """What the agreements of one process group share."""

    numbers: Iterator[int] = field(default_factory=count)
    written: list[tuple[PrefixStore, str]] = field(default_factory=list)
    """This rank's keys that are still in the store."""


_groups: WeakKeyDictionary[dist.ProcessGroup, _OfGroup] = WeakKeyDictionary()


class Failure(NamedTuple):
    """Why a rank's synchronization ended; `peer` is the rank it has lost, None if it failed by itself."""

    reason: str
    peer: int | None


def origin(peer: int, failures: Mapping[int, Failure]) -> dict[int, Failure]:
    """The failures of other ranks that explain why `peer` was lost.

    These are the failures of ranks that failed by themselves. If there are none, it is the failure of the
    last rank in the chain of ranks that have lost each other: it names the one that has gone silent.
    """
    own = {rank: failure for rank, failure in failures.items() if failure.peer is None}
    if own:
        return own
    chain: list[int] = []
    following: int | None = peer
    while following is not None and following in failures and following not in chain:
        chain.append(following)
        following = failures[following].peer
    return {rank: failures[rank] for rank in chain[-1:]}


class Agreement:
    """The ranks of `group` from one call of `what` on, e.g. `attach()`. All of them call it in the same
    order; each waits `timeout_s` seconds for the others, which may be set anew."""

    def __init__(self, group: dist.ProcessGroup, timeout_s: float, what: str) -> None:
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self._shared = _groups.setdefault(group, _OfGroup())
        prefix = f"gradwire/{group.group_name}/{next(self._shared.numbers)}"
        self._store = PrefixStore(prefix, _get_default_store())
        self.timeout_s, self._what, self._calls = timeout_s, what, count()

    def refuse(self, reason: str) -> None:
        """Tells the others that this rank does not take part, instead of `agree`."""
        call = next(self._calls)
        with contextlib.suppress(ConnectionError, NoAnswerError):  # a store that is gone: they will notice
            within(PATIENCE_S + SLACK_S, lambda: self._refuse(call, reason))

    def _refuse(self, call: int, reason: str) -> None:
        self._put(f"{call}/{REFUSED}", {"rank": str(self.rank), "reason": reason})
        self._leave(call)

    def agree(
        self, own: Statement, what: str | None = None, last_word: Callable[[], str | None] = lambda: None
    ) -> None:
        """Returns once all ranks have called this with the same statement. `last_word` is asked when they
        have: a reason why this rank does not take part after all.

        Raises ValueError on every rank if they differ, and at once if one has refused; TimeoutError naming
        the ranks that did not call it in time; ConnectionError if the store cannot be reached.
        """
        what, call = what or self._what, next(self._calls)
        try:
            within(self.timeout_s + SLACK_S, lambda: self._agree(call, own, what, last_word))
        except NoAnswerError:
            raise ConnectionError(
                f"{what}: the process group's store, through which ranks agree, has not answered within "
                f"{self.timeout_s:g} s; is the process that serves it, rank 0 as a rule, stopped?"
            ) from None
        except ValueError:
            with contextlib.suppress(NoAnswerError):
                within(PATIENCE_S + SLACK_S, lambda: self._leave(call))
            raise

    def _agree(self, call: int, own: Statement, what: str, last_word: Callable[[], str | None]) -> None:
        deadline = time.monotonic() + self.timeout_s
        statements = self._exchange(call, SAID, {**own, "call": what}, deadline, what)
        self._forget_before(call)
        difference = differences(statements)
        if difference is not None:
            raise ValueError(f"{what}: ranks disagree: {difference}; give all ranks the same")
        reason = last_word()
        last = {} if reason is None else {"rank": str(self.rank), "reason": reason}
        for told in self._exchange(call, READ, last, deadline, what):  # nobody has given up meanwhile
            if told:
                own_words = reason is not None and told["rank"] == str(self.rank)
                raise ValueError(f"{what}: {reason}") if own_words else _end_told(SAID, told, what)

    def _leave(self, call: int) -> None:
        """Ends a refused call on this rank. Rank 0 waits until the others know, at most PATIENCE_S, because
        the store, and with it the reason, may disappear with its process."""
        keys = [f"{call}/{TOLD}/{rank}" for rank in self._others()]
        end, pause = time.monotonic() + min(self.timeout_s, PATIENCE_S), POLL_S
        with contextlib.suppress(ConnectionError):
            self._put(f"{call}/{TOLD}/{self.rank}", {})
            while dist.get_rank() == 0 and keys and not self._has(*keys) and time.monotonic() < end:
                time.sleep(pause)
                pause = min(1.5 * pause, LONGEST_POLL_S)

    def fail(self, reason: str, peer: int | None = None) -> None:
        """Records why this rank's synchronization ended, for ranks that lose it; `peer` is the rank that it
        has lost itself."""
        words = json.dumps(Failure(reason, peer))
        with contextlib.suppress(RuntimeError, NoAnswerError):
            within(PATIENCE_S, lambda: self._store.set(f"{FAILED}/{self.rank}", words))

    def failures(self) -> dict[int, Failure]:
        """What other ranks have recorded with `fail` by now."""
        found = dict[int, Failure]()
        with contextlib.suppress(RuntimeError, NoAnswerError):
            within(PATIENCE_S, lambda: self._look_for_failures(found))
        return dict(found)

    def _look_for_failures(self, found: dict[int, Failure]) -> None:
        for rank in self._others():
            if self._store.check([f"{FAILED}/{rank}"]):
                found[rank] = Failure(*json.loads(self._store.get(f"{FAILED}/{rank}")))

    def _others(self) -> list[int]:
        return [rank for rank in range(self.size) if rank != self.rank]

    def _put(self, key: str, statement: Statement) -> None:
        with _reached():
            self._store.set(key, json.dumps(dict(statement)))
        self._shared.written.append((self._store, key))

    def _get(self, key: str) -> Statement:
        with _reached():
            found: Statement = json.loads(self._store.get(key))
        return found

    def _has(self, *keys: str) -> bool:
        with _reached():
            return bool(self._store.check(list(keys)))

    def _forget_before(self, call: int) -> None:
        """Removes this rank's keys of earlier calls from the store. All ranks have made this call, so they
        have read what they needed."""
        kept = []
        for store, key in self._shared.written:
            if store is self._store and key.startswith(f"{call}/"):
                kept.append((store, key))
                continue
            with contextlib.suppress(RuntimeError):  # not all stores can
                store.delete_key(key)
        self._shared.written = kept

    def _exchange(self, call: int, phase: str, own: Statement, deadline: float, what: str) -> list[Statement]:
        """Every rank's statement in this phase of a call, in rank order."""
        self._put(f"{call}/{phase}/{self.rank}", own)
        ended = f"{call}/{ENDED_BY[phase]}"
        keys = {rank: f"{call}/{phase}/{rank}" for rank in self._others()}
        pause = POLL_S
        while True:
            if self._has(ended):
                raise _end_told(phase, self._get(ended), what)
            if not keys or self._has(*keys.values()):
                break
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                self._give_up(call, phase, [rank for rank, key in keys.items() if not self._has(key)], what)
            time.sleep(min(pause, max(remaining, 0.0)))
            pause = min(1.5 * pause, LONGEST_POLL_S)
        found = {rank: self._get(key) for rank, key in keys.items()} | {self.rank: own}
        return [found[rank] for rank in range(self.size)]

    def _give_up(self, call: int, phase: str, missing: Sequence[int], what: str) -> None:
        if not missing:  # the last one has just come
            return
        self._put(f"{call}/{MISSING}", {"rank": str(self.rank), "missing": _named(missing)})
        late = f"{what}: {_named(missing)} of {self.size}"
        if phase == READ:
            raise TimeoutError(
                f"{late} called it and gave no answer within {self.timeout_s:g} s; has it ended?"
            )
        raise TimeoutError(
            f"{late} did not call it within {self.timeout_s:g} s; call it on every rank, in the same order, "
            "and give timeout_s= more if one is only late"
        )


@contextlib.contextmanager
def _reached() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # torch's DistStoreError, DistNetworkError
        words = (str(error).splitlines() or ["no reason given"])[0]
        raise ConnectionError(
            f"the process group's store, through which ranks agree, cannot be reached: {words}; has rank 0 "
            "ended? its own error says why"
        ) from error


def _end_told(phase: str, told: Statement, what: str) -> Exception:
    if phase == SAID:
        return ValueError(f"{what}: rank {told['rank']} refuses: {told['reason']}")
    return TimeoutError(f"{what}: rank {told['rank']} has given up waiting for {told['missing']}")


def differences(statements: Sequence[Statement]) -> str | None:
    """Says in which settings ranks differ and who has what: `rank 1 has seed=1, the others 0`; None if they
    agree.

    If codecs differ, their options are not compared.
    """
    keys = dict.fromkeys(key for statement in statements for key in statement)
    differing = [key for key in keys if len({statement.get(key) for statement in statements}) > 1]
    if "codec" in differing:
        differing = [key for key in differing if not key.startswith("codec.")]
    told = [_told(key, [statement.get(key) for statement in statements]) for key in differing[:MOST_NAMED]]
    if len(differing) > MOST_NAMED:
        told.append(f"and {len(differing) - MOST_NAMED} more settings differ")
    return "; ".join(told) or None


def _told(key: str, values: Sequence[str | None]) -> str:
    (most, number), *_ = Counter(values).most_common(1)
    if len(values) > 2 and number > len(values) // 2:
        odd = {value: [rank for rank, each in enumerate(values) if each == value] for value in values}
        told = [f"{_has(ranks)} {key}={_word(value)}" for value, ranks in odd.items() if value != most]
        return f"{', '.join(told[:MOST_NAMED])}, the others {_word(most)}"
    told = [f"rank {rank} has {key}={_word(value)}" for rank, value in enumerate(values)]
    return ", ".join(told if len(told) <= 4 else [*told[:4], "…"])


def _has(ranks: Sequence[int]) -> str:
    return f"{_named(ranks)} {'has' if len(ranks) == 1 else 'have'}"


def _named(ranks: Sequence[int]) -> str:
    listed = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    return f"rank {listed}" if len(ranks) == 1 else f"ranks {listed}"


def _word(value: str | None) -> str:
    return "no value" if value is None else shortened(value)
