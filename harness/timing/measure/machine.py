"""Observations of a process, and by one rank of its whole machine, during a step.

These are observations, which say how far times can be trusted; no result depends on them. What a system does
not report is left out.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

try:
    import resource
except ImportError:  # not a POSIX system
    resource = None  # type: ignore[assignment]

from gradwire.harness.timing.measure.spans import Recorder

PROC = Path("/proc")

LEAST_S = 0.1
"""Seconds between two looks at the machine's counters, which count in hundredths of a second."""

LONGEST_GAP_S = 0.01
"""Seconds between two steps beyond which other work was done between them."""

BUSY, STEAL = (0, 1, 2, 5, 6), 7
"""Columns of /proc/stat: user, nice, system, irq and softirq; and what the hypervisor took."""


class MachineWatch:
    """The counters of a machine: how many CPUs were in use, and for which part of the time tasks waited for
    one (pressure, steal)."""

    def __init__(self, proc: Path = PROC) -> None:
        self._stat, self._pressure = _opened(proc / "stat"), _opened(proc / "pressure" / "cpu")
        self._ticks = float(os.sysconf("SC_CLK_TCK")) if hasattr(os, "sysconf") else 100.0
        self._since, self._before = 0.0, dict[str, float]()
        self._last = 0.0

    def begin(self) -> None:
        """A step begins; activity since the last one does not count, if there was any."""
        now = time.monotonic()
        if now - self._last > LONGEST_GAP_S:
            self._since, self._before = now, self._read()

    def end(self) -> dict[str, float]:
        """A step has ended: the figures of the time since the last ones, some steps ago where these are
        short; else nothing."""
        self._last = now = time.monotonic()
        seconds = now - self._since
        if seconds < LEAST_S:
            return {}
        after = self._read()
        found = {
            key: round(max(0.0, value - self._before[key]) / seconds, 4)
            for key, value in after.items()
            if key in self._before
        }
        self._since, self._before = now, after
        return found

    def _read(self) -> dict[str, float]:
        """The counters in seconds, those that the system has."""
        found = dict[str, float]()
        try:
            if self._stat is not None:
                columns = [int(text) for text in os.pread(self._stat, 256, 0).split(b"\n")[0].split()[1:]]
                found["cpu_busy"] = sum(columns[index] for index in BUSY) / self._ticks
                found["cpu_steal"] = columns[STEAL] / self._ticks
            if self._pressure is not None:
                some = os.pread(self._pressure, 256, 0).split(b"\n")[0]
                found["cpu_pressure"] = int(some.rpartition(b"total=")[2]) / 1e6
        except (OSError, ValueError, IndexError):  # another system's format
            return {}
        return found

    def close(self) -> None:
        for file in (self._stat, self._pressure):
            if file is not None:
                os.close(file)
        self._stat = self._pressure = None


def _opened(path: Path) -> int | None:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None


class TakenWatch:
    """The share of a machine's CPUs that others take from this process, from now until it is read."""

    def __init__(self, proc: Path = PROC) -> None:
        self._machine = MachineWatch(proc)
        self._machine.begin()
        self._own, self._since = time.process_time(), time.monotonic()

    def close(self) -> float | None:
        """Ends the watch and returns the share; None where the system does not report it, or after an
        instant."""
        seconds = max(time.monotonic() - self._since, LEAST_S)
        own = (time.process_time() - self._own) / seconds
        found = self._machine.end()
        self._machine.close()
        if "cpu_busy" not in found:
            return None
        others = max(0.0, found["cpu_busy"] - own) + found.get("cpu_steal", 0.0)
        return round(min(1.0, others / (os.cpu_count() or 1)), 3)


class StepWatch:
    """The observations of one rank's steps: `begin` before each, `end` after it. Without a `machine` only
    those of its own process."""

    def __init__(self, recorder: Recorder, machine: MachineWatch | None = None) -> None:
        self._recorder, self._machine = recorder, machine
        self._before = self._own()

    def begin(self) -> None:
        if self._machine is not None:
            self._machine.begin()
        self._before = self._own()

    def end(self) -> dict[str, float]:
        """The observations of the step, by the keys of METRICS."""
        after = self._own()
        found = {key: value - self._before.get(key, 0.0) for key, value in after.items()}
        return found | (self._machine.end() if self._machine is not None else {})

    def close(self) -> None:
        """Ends the watch of the machine."""
        if self._machine is not None:
            self._machine.close()

    def _own(self) -> dict[str, float]:
        """This process's counters."""
        found = dict[str, float]()
        for kind, cpu_s in self._recorder.cpu_s.items():
            found[f"{kind}_cpu_s"] = cpu_s
        if resource is not None:
            usage = resource.getrusage(resource.RUSAGE_SELF)
            found["worker_cpu_s"] = usage.ru_utime + usage.ru_stime
            found["switches"] = float(usage.ru_nivcsw)
        return found


def own_watch(recorder: Recorder, rank: int, environment: Mapping[str, str]) -> StepWatch:
    """The watch of `rank`, with that of the machine if it is the first rank there."""
    first = environment.get("LOCAL_RANK", str(rank)) == "0"
    return StepWatch(recorder, MachineWatch() if first else None)
