"""Background traffic on the same links: one process per rank runs that rank's part of all background jobs."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from multiprocessing.connection import wait
from pathlib import Path
from statistics import fmean
from typing import IO, Any

from gradwire.harness.network.shaped import background_process
from gradwire.harness.network.shaped.namespace import Namespace
from gradwire.harness.network.shaped.star import ShapingError, address

START_S, END_S = 30.0, 5.0

REAPED_S = 1.0
"""Seconds to wait for an exit code, because a process closes its pipes a moment before its exit code is
known."""

MIB = 1 << 20


class BackgroundProcesses:
    """`jobs` ring all-reduces of `megabytes` MiB each, over and over (DynamiQ §5.2), until `stop`.

    The processes end with this one, however it ends, and with the thread that created this object. Raises
    ShapingError, with no process left running, if they cannot be started.
    """

    def __init__(self, namespaces: Sequence[Namespace], jobs: int, megabytes: float) -> None:
        if len(namespaces) < 2:
            raise ShapingError(
                f"network.background_jobs={jobs} needs links to share; use cluster.workers=2 or more"
            )
        self._jobs, self._processes = jobs, list[subprocess.Popen[str]]()
        addresses = [address(rank) for rank in range(len(namespaces))]
        settings = {
            "parent": os.getpid(),
            "addresses": addresses,
            "jobs": jobs,
            "chunk_bytes": max(1, round(megabytes * MIB / len(addresses))),
        }
        try:
            for rank, namespace in enumerate(namespaces):
                own = settings | {"rank": rank, "namespace": namespace.descriptor}
                self._processes.append(_started(own, namespace.descriptor))
            self._wait_until_ready()
        except BaseException:
            self._end()
            raise

    @property
    def sentinels(self) -> list[int]:
        """Descriptors that become readable when one of the processes has ended."""
        return [_output(process).fileno() for process in self._processes]

    def diagnose(self) -> dict[int, str]:
        """The ranks whose background jobs have ended; those that only lost a neighbour are left out if
        possible."""
        ended = wait(self.sentinels, 0)
        codes = {}
        for rank, process in enumerate(self._processes):
            if _output(process).fileno() in ended:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    codes[rank] = process.wait(REAPED_S)
        at_fault = {rank for rank, code in codes.items() if code != background_process.LOST_NEIGHBOUR}
        return {rank: self._reason(rank) for rank in sorted(at_fault or codes)}

    def stop(self) -> list[float]:
        """Ends all jobs; returns the throughput of each on a link, averaged over the ranks, in 10⁶ bit/s.

        Empty if one of them had already ended.
        """
        for process in self._processes:
            _close(process)
        try:
            reports = [json.loads(_answer(process)) for process in self._processes]
        except (ValueError, subprocess.TimeoutExpired):
            return []
        finally:
            self._end()
        return [_mean_goodput(reports, job) for job in range(self._jobs)]

    def _wait_until_ready(self) -> None:
        for rank, process in enumerate(self._processes):
            output = _output(process)
            if not wait([output.fileno()], START_S) or output.readline() != "ready\n":
                raise ShapingError(f"the background jobs did not start: rank {rank}: {self._reason(rank)}")

    def _reason(self, rank: int) -> str:
        process = self._processes[rank]
        try:
            code = process.wait(REAPED_S)
        except subprocess.TimeoutExpired:
            return "its background jobs do not answer"
        if code < 0:
            return f"its background jobs were killed by signal {-code}"
        assert process.stderr is not None
        lines = process.stderr.read().strip().splitlines()
        return f"its background jobs ended with exit code {code}" + (f" ({lines[-1]})" if lines else "")

    def _end(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    stream.close()


def _started(settings: dict[str, Any], descriptor: int) -> subprocess.Popen[str]:
    """Starts the process in its own process group, because the parent handles a terminal's Ctrl-C."""
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(Path(background_process.__file__)), json.dumps(settings)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        pass_fds=[descriptor],
        process_group=0,
    )


def _output(process: subprocess.Popen[str]) -> IO[str]:
    assert process.stdout is not None
    return process.stdout


def _close(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    with contextlib.suppress(OSError):
        process.stdin.close()


def _answer(process: subprocess.Popen[str]) -> str:
    """The last line that the process printed."""
    process.wait(END_S)
    return _output(process).readline()


def _mean_goodput(reports: Sequence[dict[str, Any]], job: int) -> float:
    rates = [report["received"][job] * 8e-6 / report["seconds"] for report in reports]
    return fmean(rates)
