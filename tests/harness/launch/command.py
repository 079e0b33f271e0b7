"""`run.py` in processes of its own, in a working directory of its own; they start warm where they can."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4
from weakref import WeakKeyDictionary

from tiny import TINY_MODEL
from warm import MARK, WarmPopen, process_name, warm_or_cold

from gradwire.harness.runtime.conf import conf_directory

RUN = str(conf_directory().parent / "run.py")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
TINY = (*TINY_MODEL, "train.steps=2", "train.log_every=1", "eval.max_sequences=4")
ENDLESS = (*TINY, "train.steps=1000000", "eval.every=1000000")


Start = Callable[..., subprocess.Popen[str]]
_marks: WeakKeyDictionary[subprocess.Popen[str], str] = WeakKeyDictionary()


def started(
    cwd: Path, *arguments: str, start: Start = warm_or_cold, **environment: str
) -> subprocess.Popen[str]:
    """`python <arguments>` in a session of its own."""
    inherited = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE")}
    environment[MARK] = uuid4().hex
    process = start(
        [sys.executable, *arguments],
        cwd=cwd,
        env=inherited | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    _marks[process] = environment[MARK]
    return process


def finished(process: subprocess.Popen[str], timeout_s: float = 240) -> subprocess.CompletedProcess[str]:
    """The process's outcome; it and its children are ended if it takes longer than `timeout_s`."""
    try:
        out, err = process.communicate(timeout=timeout_s)
    finally:
        process.kill()
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def call(cwd: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return finished(started(cwd, *arguments, **environment))


def call_cold(cwd: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs the command as a user's shell does: new interpreters for it and its workers, and with plots."""
    return finished(started(cwd, *arguments, start=subprocess.Popen, **environment))


def wait_for_steps(process: subprocess.Popen[str], directory: Path) -> None:
    """Waits until the run in `directory` is in its training loop."""
    deadline = time.monotonic() + 240
    while not (directory / "steps.jsonl").exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "the run does not start"
        time.sleep(0.05)


def errors(printed: str) -> list[str]:
    """The error lines that a user sees."""
    return [line for line in printed.splitlines() if line.startswith("error: ")]


def descendants(process: subprocess.Popen[str]) -> list[int]:
    """The processes that the command `process` has started and that still run, in the order of their start.

    A session, an environment and the name of a warm process are inherited; torchrun's ranks have sessions of
    their own. Ids say less: they begin again when all have been used.
    """
    name, mark = f"({process_name(_marks[process])})", f"{MARK}={_marks[process]}".encode()
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
            fields = text.rpartition(")")[2].split()
            marked = name in text or mark in stat.with_name("environ").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        pid, session, started_at = int(stat.parent.name), int(fields[3]), int(fields[19])
        if (marked or session == process.pid) and fields[0] not in "ZX" and pid != process.pid:
            found.append((started_at, pid))
    return [pid for _, pid in sorted(found)]


def workers_of(process: subprocess.Popen[str]) -> list[int]:
    """The ids of a running command's workers, in rank order; they are spawned, or forked where it is warm."""
    return _running(process, "multiprocessing.spawn")


def ranks_of_torchrun(process: subprocess.Popen[str]) -> list[int]:
    """The ids of the ranks that a running torchrun has started, in rank order: each leads a session."""
    return [pid for pid in _running(process, RUN) if os.getsid(pid) == pid]


def _running(process: subprocess.Popen[str], command: str) -> list[int]:
    """The ids of those descendants whose command line has `command` in it, or is that of a warm process."""
    if isinstance(process, WarmPopen):
        command = Path(f"/proc/{process.pid}/cmdline").read_text()
    found = []
    for pid in descendants(process):
        with contextlib.suppress(OSError):  # just ended
            if command in Path(f"/proc/{pid}/cmdline").read_text():
                found.append(pid)
    return found


def assert_alone(process: subprocess.Popen[str]) -> None:
    """Asserts that nothing is left of what the ended `process` started."""
    deadline = time.monotonic() + 10
    while descendants(process):
        assert time.monotonic() < deadline, f"still running: {descendants(process)}"
        time.sleep(0.05)
