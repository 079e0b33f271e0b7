"""The state of processes: stacks on request, process states, and attached debuggers."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path

SIGNAL = signal.SIGUSR1
"""The signal on which a rank writes the stacks of all its threads, even while stuck in C code. It is blocked
until the rank can handle it."""

DUMP_S = 5.0
"""Seconds to wait for stacks."""

DEBUGGERS = ("/pdb.py", "/bdb.py", "/pydevd", "/debugpy/")
"""Parts of file names on a thread's stack that indicate a debugger."""

STATES = {
    "T": "stopped (state T)",
    "t": "held by a debugger (state t)",
    "D": "waiting for a disk or a file system that does not answer (state D)",
}
"""States in /proc/<pid>/stat in which a process cannot make progress, whatever its code does."""

STOPPED = (STATES["T"], STATES["t"])
"""The states that a signal or a debugger has caused, and that only another signal or the debugger ends."""


def answer_requests(folder: Path, rank: int) -> None:
    """Makes this process write its stacks to `folder` on every `SIGNAL`, and unblocks the signal."""
    file = _path(folder, rank).open("w")  # stays open: nothing can be opened when the signal comes
    faulthandler.register(SIGNAL, file=file, all_threads=True)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {SIGNAL})


def state(pid: int) -> str:
    """The reason why a process cannot run; empty if there is none or it is unknown."""
    with contextlib.suppress(OSError, IndexError):
        letter = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return STATES.get(letter, "")
    return ""


def is_stopped(pid: int) -> bool:
    """True if a process is stopped by a signal or a debugger, so that it does not respond."""
    return state(pid) in STOPPED


def dumped_stacks(pids: Mapping[int, int], folder: Path) -> dict[int, str]:
    """The stacks of running ranks, by rank, or the reason why there are none: stopped processes cannot write
    them."""
    before = {rank: _size(folder, rank) for rank in pids}
    states = {rank: state(pid) for rank, pid in pids.items()}
    asked = [rank for rank in pids if before[rank] is not None and states[rank] not in STOPPED]
    for rank in asked:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pids[rank], SIGNAL)
    _await_writing(folder, {rank: before[rank] or 0 for rank in asked})
    found = {}
    for rank in pids:
        text = ""
        if before[rank] is not None:
            text = _path(folder, rank).read_bytes()[before[rank] :].decode(errors="replace")
        found[rank] = text or f"no stacks: {states[rank] or f'no answer within {DUMP_S:g} s'}\n"
    return found


def _await_writing(folder: Path, before: Mapping[int, int]) -> None:
    """Waits until the files have grown and then stopped changing."""
    deadline, last = time.monotonic() + DUMP_S, dict(before)
    while time.monotonic() < deadline:
        time.sleep(0.2)
        sizes = {rank: _size(folder, rank) or 0 for rank in before}
        if sizes == last and all(sizes[rank] > before[rank] for rank in before):
            return
        last = sizes


def own_stacks() -> str:
    """The stacks of all threads of this process."""
    lines = []
    for thread, frame in sys._current_frames().items():
        lines.append(f"Thread {thread:#x} (most recent call first):")
        while frame is not None:
            code = frame.f_code
            lines.append(f'  File "{code.co_filename}", line {frame.f_lineno} in {code.co_name}')
            frame = frame.f_back  # type: ignore[assignment]
    return "\n".join(lines) + "\n"


def is_traced(pid: int) -> bool:
    """True if a debugger such as gdb is attached to a process."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("TracerPid:"):
                return line.split()[1] != "0"
    return False


def shows_debugger(stacks: str) -> bool:
    """True if stacks show that one of Python's debuggers is active."""
    return any(part in stacks for part in DEBUGGERS)


def disk_bytes(pid: int) -> str:
    """The bytes that a process has read from and written to disks so far, as text; it changes while the
    process uses a slow disk."""
    with contextlib.suppress(OSError):
        lines = Path(f"/proc/{pid}/io").read_text().splitlines()
        return " ".join(line for line in lines if line.startswith(("read_bytes", "write_bytes")))
    return ""


def _path(folder: Path, rank: int) -> Path:
    return folder / f"stacks{rank}.txt"


def _size(folder: Path, rank: int) -> int | None:
    with contextlib.suppress(OSError):
        return _path(folder, rank).stat().st_size
    return None
