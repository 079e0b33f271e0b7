"""Reports of failed ranks, and which of the ranks is the cause.

When one rank is lost the others fail with it a moment later: their errors name the peer they lost. The
cause is a rank killed by a signal, else one that ended without a report, else one in whose surroundings
something is wrong, else one whose error blames nobody, else one that is silent while the others time out
on it.
"""

from __future__ import annotations

import json
import signal
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from gradwire.harness.record.files import write_atomically


@dataclass(frozen=True)
class Report:
    """Why a rank ended: the exception's type and first line, and the peer it blames.

    `waited`: the error says that somebody else was lost or late.
    """

    rank: int
    text: str
    peer: int | None
    waited: bool


def blamed_peer(error: BaseException) -> int | None:
    """The `.peer` of the error, or of the one it arose from: cleaning up may have failed in turn."""
    for link in _chain(error):
        peer = getattr(link, "peer", None)
        if isinstance(peer, int):
            return peer
    return None


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and those it came after, newest first."""
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
    """Leave `rank<rank>.json` in `folder`, whole or not at all: the writer may be killed any moment."""
    peer = blamed_peer(error)
    report = {
        "text": describe(error),
        "peer": peer,
        "waited": peer is not None or "timed out" in str(error).lower(),
        "traceback": "".join(traceback.format_exception(error)),
    }
    write_atomically(folder / f"rank{rank}.json", json.dumps(report))


def read_reports(folder: Path) -> list[Report]:
    """The reports of failed ranks, by time of failure."""
    paths = sorted(folder.glob("rank*.json"), key=lambda path: path.stat().st_mtime_ns)
    loaded = [(int(path.stem.removeprefix("rank")), json.loads(path.read_text())) for path in paths]
    return [Report(rank, entry["text"], entry["peer"], entry["waited"]) for rank, entry in loaded]


def tracebacks(folder: Path) -> str:
    """All failed ranks' tracebacks as one text."""
    paths = sorted(folder.glob("rank*.json"))
    return "\n".join(f"{path.stem}\n{json.loads(path.read_text())['traceback']}" for path in paths)


def verdict(codes: Mapping[int, int | None], folder: Path, troubles: Mapping[int, str] | None = None) -> str:
    """One line that names the rank at fault, given each rank's exit code (None: still running).

    `troubles`: what is wrong around a rank, such as its link being down, where anything is.
    """
    reports = read_reports(folder)
    killed = [
        f"rank {rank} was killed by {_signal(-code)}" for rank, code in codes.items() if code and code < 0
    ]
    if killed:
        return "; ".join(killed)
    reported = {report.rank for report in reports}
    unreported = [(rank, code) for rank, code in codes.items() if code and rank not in reported]
    if unreported:
        return "; ".join(f"rank {rank} ended with exit code {code}" for rank, code in unreported)
    if troubles:
        consequence = f" ({reports[0].text})" if reports else ""
        return "; ".join(f"rank {rank} failed: {reason}" for rank, reason in troubles.items()) + consequence
    cause = next((report for report in reports if not report.waited), None)
    silent = [rank for rank, code in codes.items() if code is None]
    if cause is None and silent:
        blamed = {report.peer for report in reports}
        names = ", ".join(f"rank {rank}" for rank in silent if rank in blamed) or ", ".join(
            f"rank {rank}" for rank in silent
        )
        return f"{names} hung: no answer within cluster.timeout_s ({reports[0].text})"
    cause = cause or reports[0]
    return f"rank {cause.rank} failed: {cause.text}"


def _signal(number: int) -> str:
    if number == signal.SIGKILL:
        return "SIGKILL (out of memory?)"
    try:
        return signal.Signals(number).name
    except ValueError:  # real-time signals have no names
        return f"signal {number}"
