"""Ranks compare their settings before any of them sends a gradient.

They do so through the key-value store that their process group was made with: it needs no other rank to be
listening, so that ranks which disagree, refuse their arguments or never come can be told apart and named.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import count
from weakref import WeakKeyDictionary

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, _get_default_store

from gradwire.codecs.fields import shortened

Statement = Mapping[str, str]
"""One rank's settings: name to value in words."""

REFUSED, MISSING, FAILED = "refused", "missing", "failed"
SAID, READ = "said", "read"

SLICE_S = 1.0
"""Seconds of waiting after which Python may look for signals."""

MOST_NAMED = 3
"""Differences that a message lists; it says how many more there are."""

_numbers: WeakKeyDictionary[dist.ProcessGroup, Iterator[int]] = WeakKeyDictionary()


class Agreement:
    """The ranks of `group` from one call of `what` on, e.g. `attach()`, which all of them make in the same
    order; each waits `timeout_s` seconds for the others."""

    def __init__(self, group: dist.ProcessGroup, timeout_s: float, what: str) -> None:
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        number = next(_numbers.setdefault(group, count()))
        self._store = PrefixStore(f"gradwire/{group.group_name}/{number}", _get_default_store())
        self._timeout_s, self._what, self._calls = timeout_s, what, count()

    def refuse(self, reason: str) -> None:
        """Tell the others that this rank does not take part, instead of `agree`."""
        with contextlib.suppress(RuntimeError):  # a store that is gone: they will notice
            self._put(next(self._calls), SAID, {REFUSED: reason})

    def agree(self, own: Statement, what: str | None = None) -> None:
        """Returns once all ranks have called this with the same statement.

        Raises ValueError on every rank where they differ or one has refused, TimeoutError naming the
        ranks that did not call it in time.
        """
        what, call = what or self._what, next(self._calls)
        deadline = time.monotonic() + self._timeout_s
        statements = self._exchange(call, SAID, own, deadline, what)
        refusals = {rank: each[REFUSED] for rank, each in enumerate(statements) if REFUSED in each}
        for rank, reason in refusals.items():
            raise ValueError(f"{what}: rank {rank} refuses: {reason}")
        difference = differences(statements)
        if difference is not None:
            raise ValueError(f"{what}: ranks disagree: {difference}; give all ranks the same")
        self._exchange(call, READ, {}, deadline, what)  # nobody has given up meanwhile

    def fail(self, reason: str) -> None:
        """Leave the reason why this rank's synchronization ended, for ranks that lose it."""
        with contextlib.suppress(RuntimeError):
            self._store.set(f"{FAILED}/{self.rank}", reason)

    def failures(self) -> dict[int, str]:
        """What other ranks have left by `fail`, now."""
        found = {}
        with contextlib.suppress(RuntimeError):
            for rank in self._others():
                if self._store.check([f"{FAILED}/{rank}"]):
                    found[rank] = self._store.get(f"{FAILED}/{rank}").decode()
        return found

    def _others(self) -> list[int]:
        return [rank for rank in range(self.size) if rank != self.rank]

    def _put(self, call: int, phase: str, statement: Statement) -> None:
        self._store.set(f"{call}/{phase}/{self.rank}", json.dumps(dict(statement)))

    def _exchange(self, call: int, phase: str, own: Statement, deadline: float, what: str) -> list[Statement]:
        """Every rank's statement in this phase of a call, in rank order."""
        self._put(call, phase, own)
        found = {self.rank: own}
        for rank in self._others():
            statement = self._await(f"{call}/{phase}/{rank}", deadline)
            if statement is not None:
                found[rank] = statement
        missing = [rank for rank in self._others() if rank not in found]
        if missing:
            self._put(call, READ, {MISSING: _named(missing)})
            raise TimeoutError(
                f"{what}: {_named(missing)} of {self.size} did not call it within {self._timeout_s:g} s; "
                "call it on every rank, in the same order"
            )
        for rank, statement in found.items():
            if MISSING in statement:
                raise TimeoutError(f"{what}: rank {rank} has given up waiting for {statement[MISSING]}")
        return [found[rank] for rank in range(self.size)]

    def _await(self, key: str, deadline: float) -> Statement | None:
        while True:
            remaining = max(deadline - time.monotonic(), 0.0)
            try:
                self._store.wait([key], timedelta(seconds=max(min(remaining, SLICE_S), 0.001)))
                statement: Statement = json.loads(self._store.get(key))
                return statement
            except RuntimeError:  # torch's DistStoreError: not there yet, or the store is gone
                if not remaining:
                    return None


def differences(statements: Sequence[Statement]) -> str | None:
    """In which settings ranks differ and who has what, `rank 1 has seed=1, the others 0`; None if in none.

    Where codecs differ their options are not compared.
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
