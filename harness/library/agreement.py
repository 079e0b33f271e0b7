"""Comparison of the ranks' settings before any rank sends a gradient.

Ranks use the key-value store that their process group was made with: each writes its settings there and reads
those of the others, and the first outcome that a rank stores, atomically, holds for all.

`all_gather_object` on a gloo group would be shorter, but has several drawbacks. It returns nothing before all
ranks have called it, so the reason why one rank refuses its arguments could not reach the others while any
rank is missing. A script on NCCL has no gloo group, and `new_group` is itself such a collective. If a rank is
missing or stopped, gloo's error names no rank, and a stopped store does not enforce the time limit; torch's
counters of groups then differ between ranks, so that the script's next `new_group` fails. `monitored_barrier`
names missing ranks on rank 0 only. Finally, the reason why a rank was lost must be found after it has become
unable to take part in a collective.
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
from gradwire.harness.runtime.threads import NoAnswerError, within

Statement = Mapping[str, str]
"""One rank's settings: name to value in words."""

STATED, READY, LEFT = "stated", "ready", "left"
"""The keys that each rank writes in a call: its statement, a note that it has read all others' statements,
and a note that it has left a refused call."""

OUTCOME, FAILED = "outcome", "failed"

POLL_S, LONGEST_POLL_S = 0.005, 0.2
"""Seconds between the first two polls of the store, and the longest interval; each interval is 1.5 times as
long as the one before. Python handles signals in between."""

PATIENCE_S = 5.0
"""Seconds that rank 0 waits for the others to read why a call is refused, because it often hosts the
store.
"""

SLACK_S = 1.0
"""Seconds beyond its limit that a call may take before the store is considered lost."""

MOST_NAMED = 3
"""The largest number of differences that a message lists; it only counts the others."""


@dataclass
class _OfGroup:
    """The state that all agreements of one process group share."""

    numbers: Iterator[int] = field(default_factory=count)
    written: list[tuple[PrefixStore, str]] = field(default_factory=list)
    """This rank's keys that are still in the store."""


_groups: WeakKeyDictionary[dist.ProcessGroup, _OfGroup] = WeakKeyDictionary()


class CallOutcome(NamedTuple):
    """The outcome of a call on all ranks, as stored by `rank`: agreement, a `refusal`, or ranks that were
    `missing` from a `phase`."""

    rank: int
    refusal: str | None = None
    missing: tuple[int, ...] = ()
    phase: str = READY


class Failure(NamedTuple):
    """The reason why a rank's synchronization ended; `peer` is the rank that it has lost, None if its own
    work failed."""

    reason: str
    peer: int | None


class Agreement:
    """The ranks of `group` and their calls of `what`, e.g. `attach()`.

    All ranks make these calls in the same order; each waits up to `timeout_s` seconds for the others. The
    timeout may be changed.
    """

    def __init__(self, group: dist.ProcessGroup, timeout_s: float, what: str) -> None:
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self._shared = _groups.setdefault(group, _OfGroup())
        prefix = f"gradwire/{group.group_name}/{next(self._shared.numbers)}"
        self._store = PrefixStore(prefix, _get_default_store())
        self.timeout_s, self._what, self._calls = timeout_s, what, count()

    def refuse(self, reason: str) -> None:
        """Refuses the call on all ranks; called instead of `agree`."""
        call = next(self._calls)

        def refuse() -> None:
            self._decide(call, CallOutcome(self.rank, refusal=reason))
            self._leave(call)

        with contextlib.suppress(ConnectionError, NoAnswerError):  # the others notice that a store is gone
            within(PATIENCE_S + SLACK_S, refuse)

    def agree(
        self, own: Statement, what: str | None = None, last_word: Callable[[], str | None] = lambda: None
    ) -> None:
        """Returns once all ranks have called this with the same statement. `last_word` is called after that;
        it may return a reason why this rank refuses after all.

        Raises ValueError on every rank if statements differ, and immediately if a rank has refused;
        TimeoutError naming the ranks that did not call it in time; ConnectionError if the store cannot be
        reached.
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
            with contextlib.suppress(ConnectionError, NoAnswerError):
                within(PATIENCE_S + SLACK_S, lambda: self._leave(call))
            raise

    def _agree(self, call: int, own: Statement, what: str, last_word: Callable[[], str | None]) -> None:
        deadline = time.monotonic() + self.timeout_s
        self._put(f"{call}/{STATED}/{self.rank}", json.dumps({**own, "call": what}))
        self._await_all(call, STATED, deadline, what)
        statements = [json.loads(self._get(f"{call}/{STATED}/{rank}")) for rank in range(self.size)]
        self._forget_before(call)
        difference = differences(statements)
        if difference is not None:
            raise ValueError(f"{what}: ranks disagree: {difference}; give all ranks the same")
        if (reason := last_word()) is not None:
            self._decide(call, CallOutcome(self.rank, refusal=reason))
            raise ValueError(f"{what}: {reason}")
        self._put(f"{call}/{READY}/{self.rank}", "")
        self._await_all(call, READY, deadline, what)
        self._decide(call, CallOutcome(self.rank))
        self._check(call, what)

    def _await_all(self, call: int, phase: str, deadline: float, what: str) -> None:
        """Returns once all ranks have written this phase's key. Raises the call's outcome if it is already
        decided, and decides it at the deadline."""
        keys = [f"{call}/{phase}/{rank}" for rank in range(self.size)]
        pause = POLL_S
        while not self._has(f"{call}/{OUTCOME}"):
            if self._has(*keys):
                return
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                missing = tuple(rank for rank, key in enumerate(keys) if not self._has(key))
                if missing:
                    self._decide(call, CallOutcome(self.rank, missing=missing, phase=phase))
                continue
            time.sleep(min(pause, remaining))
            pause = min(1.5 * pause, LONGEST_POLL_S)
        self._check(call, what)

    def _decide(self, call: int, outcome: CallOutcome) -> None:
        """Stores this as the call's outcome, unless it already has one."""
        key = f"{call}/{OUTCOME}"
        with _reached():
            self._store.compare_set(key, "", json.dumps(outcome))
        self._shared.written.append((self._store, key))

    def _check(self, call: int, what: str) -> None:
        """Raises the call's outcome, unless it is agreement."""
        rank, refusal, missing, phase = json.loads(self._get(f"{call}/{OUTCOME}"))
        if refusal is not None:
            raise ValueError(f"{what}: rank {rank} refuses: {refusal}")
        late = f"{what}: {_named(missing)} of {self.size}"
        if self.rank in missing:
            raise TimeoutError(f"{what}: rank {rank} has given up waiting for {_named(missing)}")
        if missing and phase == READY:
            raise TimeoutError(
                f"{late} called it and gave no answer within {self.timeout_s:g} s; has it ended?"
            )
        if missing:
            raise TimeoutError(
                f"{late} did not call it within {self.timeout_s:g} s; call it on every rank, in the same "
                "order, and give timeout_s= more if one is only late"
            )

    def _leave(self, call: int) -> None:
        """Ends a refused call on this rank. Rank 0 waits for the others, at most PATIENCE_S, because the
        store, and with it the reason, may disappear with its process."""
        self._put(f"{call}/{LEFT}/{self.rank}", "")
        end, pause = time.monotonic() + min(self.timeout_s, PATIENCE_S), POLL_S
        keys = [f"{call}/{LEFT}/{rank}" for rank in range(self.size)]
        while dist.get_rank() == 0 and not self._has(*keys) and time.monotonic() < end:
            time.sleep(pause)
            pause = min(1.5 * pause, LONGEST_POLL_S)

    def fail(self, reason: str, peer: int | None = None) -> None:
        """Records why this rank's synchronization ended, for ranks that lose this one; `peer` is the rank
        that it has lost."""
        words = json.dumps(Failure(reason, peer))
        with contextlib.suppress(RuntimeError, NoAnswerError):
            within(PATIENCE_S, lambda: self._store.set(f"{FAILED}/{self.rank}", words))

    def failures(self) -> dict[int, Failure]:
        """Returns the failures that other ranks have recorded so far."""
        found = dict[int, Failure]()

        def look() -> None:
            for rank in range(self.size):
                if rank != self.rank and self._store.check([f"{FAILED}/{rank}"]):
                    found[rank] = Failure(*json.loads(self._store.get(f"{FAILED}/{rank}")))

        with contextlib.suppress(RuntimeError, NoAnswerError):
            within(PATIENCE_S, look)
        return dict(found)

    def _put(self, key: str, value: str) -> None:
        with _reached():
            self._store.set(key, value)
        self._shared.written.append((self._store, key))

    def _get(self, key: str) -> bytes:
        with _reached():
            found: bytes = self._store.get(key)
        return found

    def _has(self, *keys: str) -> bool:
        with _reached():
            return bool(self._store.check(list(keys)))

    def _forget_before(self, call: int) -> None:
        """Removes this rank's keys of earlier calls from the store. All ranks have made this call, so they no
        longer need the older keys."""
        kept = []
        for store, key in self._shared.written:
            if store is self._store and key.startswith(f"{call}/"):
                kept.append((store, key))
                continue
            with contextlib.suppress(RuntimeError):  # not all stores can
                store.delete_key(key)
        self._shared.written = kept


@contextlib.contextmanager
def _reached() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # torch's DistStoreError, DistNetworkError
        words = (str(error).splitlines() or ["no reason given"])[0]
        raise ConnectionError(
            f"the process group's store, through which ranks agree, cannot be reached: {words}; has rank 0 "
            "ended? see its own error message"
        ) from error


def differences(statements: Sequence[Statement]) -> str | None:
    """Returns the settings in which ranks differ, e.g. `rank 1 has seed=1, the others 0`; None if there are
    none.

    If codecs differ, their options are not compared.
    """
    keys = dict.fromkeys(key for statement in statements for key in statement)
    differing = [key for key in keys if len({statement.get(key) for statement in statements}) > 1]
    if "codec" in differing:
        differing = [key for key in differing if not key.startswith("codec.")]
    listed = [
        _values_of(key, [statement.get(key) for statement in statements]) for key in differing[:MOST_NAMED]
    ]
    if len(differing) > MOST_NAMED:
        listed.append(f"and {len(differing) - MOST_NAMED} more settings differ")
    return "; ".join(listed) or None


def _values_of(key: str, values: Sequence[str | None]) -> str:
    (most, number), *_ = Counter(values).most_common(1)
    if len(values) > 2 and number > len(values) // 2:
        odd = {value: [rank for rank, each in enumerate(values) if each == value] for value in values}
        listed = [f"{_has(ranks)} {key}={_word(value)}" for value, ranks in odd.items() if value != most]
        return f"{', '.join(listed[:MOST_NAMED])}, the others {_word(most)}"
    listed = [f"rank {rank} has {key}={_word(value)}" for rank, value in enumerate(values)]
    return ", ".join(listed if len(listed) <= 4 else [*listed[:4], "…"])


def _has(ranks: Sequence[int]) -> str:
    return f"{_named(ranks)} {'has' if len(ranks) == 1 else 'have'}"


def _named(ranks: Sequence[int]) -> str:
    listed = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    return f"rank {listed}" if len(ranks) == 1 else f"ranks {listed}"


def _word(value: str | None) -> str:
    return "no value" if value is None else shortened(value)
