"""Collects the reports of failed ranks and decides which rank is the cause.

When one rank is lost, the others fail a moment later, and their errors name the peer they lost. The cause is
the first of these that exists: a rank killed by a signal, one that ended without a report, one whose
surroundings failed, one whose error a user has to fix, one that is stopped while others fail, one whose error
blames no other rank, one that does not respond while the others time out on it. If no rank fails and none
makes progress, the cause is the stopped ranks, or all of them if none is stopped.
"""

from __future__ import annotations

import json
import signal
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from gradwire.harness.files.reading import read_text
from gradwire.harness.files.structured import read_json
from gradwire.harness.files.writing import write_atomically
from gradwire.harness.launch.stacks import STOPPED
from gradwire.harness.record.attempts import RankEnd
from gradwire.harness.runtime.heartbeat import Heartbeat

REMEDY = "run it again"
"""The remedy where a rank's own report is damaged."""

CRASHES = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT})
"""Signals that a process causes itself."""

MOST_NAMED = 8
"""The largest number of ranks that a line names one by one."""


class Cause(Enum):
    """The kind of failure that ended the processes; it determines whether another attempt may succeed."""

    OUTSIDE = "outside"
    """Killed, stopped, disconnected or lost: not caused by the run's own computation."""
    OWN = "own"
    """An error or a crash of the code, which may or may not recur in the same steps."""
    FINAL = "final"
    """An error that a user has to fix, or a final result: every attempt would end in this way."""


@dataclass(frozen=True)
class FailureVerdict:
    """One line that names the ranks at fault, the kind of failure, and these ranks' ends."""

    text: str
    cause: Cause
    ends: tuple[RankEnd, ...] = ()


@dataclass(frozen=True)
class Report:
    """A report of why a rank ended: the exception's type and first line, and the peer it blames.

    `waited` is set if the error says that another rank was lost or late, `final` if a user has to fix
    something or training has diverged. `missed` describes what the blamed peer did not do.
    """

    rank: int
    text: str
    peer: int | None
    waited: bool
    final: bool
    missed: str


def blamed_peer(error: BaseException) -> int | None:
    """The `.peer` of the error, or of the error that caused it, because cleaning up may have raised another
    one."""
    for link in _chain(error):
        peer = getattr(link, "peer", None)
        if isinstance(peer, int):
            return peer
    return None


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and the errors that led to it, newest first."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or link.__context__


def describe(error: BaseException) -> str:
    """An exception's type and first line."""
    return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"


def write_report(folder: Path, rank: int, error: BaseException) -> None:
    """Writes `rank<rank>.json` to `folder` whole or not at all, because the writer may be killed at any
    moment."""
    peer = blamed_peer(error)
    waited = any(getattr(link, "waited", False) for link in _chain(error))
    report = {
        "text": describe(error),
        "peer": peer,
        "waited": peer is not None or waited or "timed out" in str(error).lower(),
        "final": getattr(error, "final", isinstance(error, ValueError)),
        "missed": getattr(error, "missed", "no answer within cluster.timeout_s"),
        "traceback": "".join(traceback.format_exception(error)),
    }
    write_atomically(folder / f"rank{rank}.json", json.dumps(report))


def read_reports(folder: Path) -> list[Report]:
    """The reports of failed ranks, by time of failure."""
    paths = sorted(folder.glob("rank*.json"), key=lambda path: path.stat().st_mtime_ns)
    loaded = [(int(path.stem.removeprefix("rank")), _read(path)) for path in paths]
    names = ("text", "peer", "waited", "final", "missed")
    return [Report(rank, *(entry[name] for name in names)) for rank, entry in loaded]


def _read(path: Path) -> dict[str, Any]:
    """Reads what `write_report` has written."""
    report: dict[str, Any] = read_json(path, remedy=REMEDY, inside=path.parent)
    return report


def write_stacks(folder: Path, stacks: Mapping[int, str]) -> None:
    """Keep the stacks of ranks that had to be ended, for `tracebacks`."""
    for rank, text in stacks.items():
        write_atomically(folder / f"ended{rank}.txt", text)


def tracebacks(folder: Path) -> str:
    """All failed ranks' tracebacks, and the stacks of those that hung, as one text."""
    paths = sorted(folder.glob("rank*.json"))
    failed = [f"{path.stem}\n{_read(path)['traceback']}" for path in paths]
    hung = [
        f"rank{path.stem.removeprefix('ended')}, which was still running\n{read_text(path, remedy=REMEDY)}"
        for path in sorted(folder.glob("ended*.txt"))
    ]
    return "\n".join(failed + hung)


def rank_name(rank: int) -> str:
    """The name of a process in a verdict."""
    return f"rank {rank}"


Name = Callable[[int], str]


def verdict(
    codes: Mapping[int, int | None],
    folder: Path,
    troubles: Mapping[int, str] | None = None,
    states: Mapping[int, str] | None = None,
    name: Name = rank_name,
) -> FailureVerdict:
    """Decides which rank is at fault, from each rank's exit code (None: still running).

    `troubles` describes failures around a rank, such as a link that is down. `states` gives the reasons why
    running ranks cannot run, e.g. that they were stopped.
    """
    reports = read_reports(folder)
    killed = {rank: -code for rank, code in codes.items() if code and code < 0}
    if killed:
        text = "; ".join(f"{name(rank)} was killed by {_signal(number)}" for rank, number in killed.items())
        ends = tuple(RankEnd(rank, signal=_signal_name(number)) for rank, number in killed.items())
        return FailureVerdict(text, Cause.OWN if set(killed.values()) & CRASHES else Cause.OUTSIDE, ends)
    reported = {report.rank for report in reports}
    unreported = [(rank, code) for rank, code in codes.items() if code and rank not in reported]
    if unreported:
        text = "; ".join(f"{name(rank)} ended with exit code {code}" for rank, code in unreported)
        return FailureVerdict(
            text, Cause.OWN, tuple(RankEnd(rank, exit_code=code) for rank, code in unreported)
        )
    if troubles:
        consequence = f" ({reports[0].text})" if reports else ""
        text = "; ".join(f"{name(rank)} failed: {reason}" for rank, reason in troubles.items())
        return FailureVerdict(text + consequence, Cause.OUTSIDE, tuple(map(RankEnd, troubles)))
    cause = next((report for report in reports if not report.waited), None)
    silent = [rank for rank, code in codes.items() if code is None]
    stopped = [rank for rank in silent if (states or {}).get(rank) in STOPPED]
    if stopped and not any(report.final for report in reports):  # whatever the others made of it
        waited = next((report for report in reports if report.waited), reports[0])
        return _silence(stopped, waited, states or {}, name)
    if cause is None and silent:
        blamed = {report.peer for report in reports}
        return _silence([rank for rank in silent if rank in blamed] or silent, reports[0], states or {}, name)
    found = cause or reports[0]
    kind = Cause.FINAL if found.final else Cause.OUTSIDE if found.waited else Cause.OWN
    end = RankEnd(found.rank, exit_code=codes.get(found.rank))
    return FailureVerdict(f"{name(found.rank)} failed: {found.text}", kind, (end,))


def _silence(ranks: Sequence[int], report: Report, states: Mapping[int, str], name: Name) -> FailureVerdict:
    """Blames the ranks that others have waited for in vain."""
    why = "".join(f", {name(rank)} is {states[rank]}" for rank in ranks if states.get(rank))
    missed = report.missed if report.waited else f"no answer when {name(report.rank)} failed"
    text = f"{_names(ranks, name)} hung: {missed}{why} ({report.text})"
    return FailureVerdict(text, Cause.OUTSIDE, tuple(map(RankEnd, ranks)))


def hang_verdict(
    beats: Mapping[int, Heartbeat],
    states: Mapping[int, str],
    quiet_s: float,
    bound: str,
    name: Name = rank_name,
) -> FailureVerdict:
    """Decides which ranks are at fault when none of the running ranks makes progress: those that cannot run
    according to `states`, or else all.

    `beats` holds the last heartbeat of each rank, `bound` the reason why `quiet_s` seconds are too many.
    """
    held = {rank: text for rank, text in states.items() if text}
    blamed = {rank: beats[rank] for rank in (held or beats)}
    doing: dict[str, list[int]] = {}
    for rank, beat in blamed.items():
        doing.setdefault(f"{held.get(rank, 'waiting')} in {beat}", []).append(rank)
    if len(doing) == 1:
        what = next(iter(doing))
    else:
        what = "; ".join(f"{_names(ranks, name)} {text}" for text, ranks in list(doing.items())[:MOST_NAMED])
    quiet = f"no progress for {quiet_s:.0f} s ({bound})"
    text = f"{_names(list(blamed), name)} hung: {what}, {quiet}"
    return FailureVerdict(text, Cause.OUTSIDE, tuple(map(RankEnd, blamed)))


def lingering_text(
    codes: Mapping[int, int | None], states: Mapping[int, str], leave_s: float, name: Name = rank_name
) -> str:
    """Describes what went wrong with ranks after the record was complete; empty if nothing did.

    Ranks that are still running had `leave_s` seconds to end.
    """
    parts = []
    for rank, code in codes.items():
        if code is None:
            state = f", {states[rank]}" if states.get(rank) else ""
            parts.append(f"{name(rank)} had not ended after {leave_s:g} s{state}, and was killed")
        elif code:
            end = f"was killed by {_signal(-code)}" if code < 0 else f"ended with exit code {code}"
            parts.append(f"{name(rank)} {end}")
    return "; ".join(parts)


def _names(ranks: Sequence[int], name: Name) -> str:
    more = f" and {len(ranks) - MOST_NAMED} more" if len(ranks) > MOST_NAMED else ""
    return ", ".join(name(rank) for rank in ranks[:MOST_NAMED]) + more


def _signal(number: int) -> str:
    return f"{_signal_name(number)}{' (out of memory?)' * (number == signal.SIGKILL)}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # real-time signals have no names
        return f"signal {number}"
