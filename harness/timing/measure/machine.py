"""Observations of a process, and by one rank per machine of the whole machine, during a step.

They indicate how reliable measured times are; no result depends on them. Figures that a system does not
report are left out.
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
"""The shortest interval between two readings of the machine's counters, which have a resolution of 10 ms."""

LONGEST_GAP_S = 0.01
"""Seconds between two steps from which on other work must have been done in between."""

BUSY, STEAL = (0, 1, 2, 5, 6), 7
"""Columns of /proc/stat: those that count as busy (user, nice, system, irq and softirq), and the time taken
by the hypervisor."""


class MachineWatch:
    """Reads the counters of a machine: the number of CPUs in use, and the share of time in which tasks waited
    for one (pressure, steal)."""

    def __init__(self, proc: Path = PROC) -> None:
        self._stat, self._pressure = _opened(proc / "stat"), _opened(proc / "pressure" / "cpu")
        self._ticks = float(os.sysconf("SC_CLK_TCK")) if hasattr(os, "sysconf") else 100.0
        self._since, self._before = 0.0, dict[str, float]()
        self._last = 0.0

    def begin(self) -> None:
        """Marks the begin of a step; activity since the last one is not counted."""
        now = time.monotonic()
        if now - self._last > LONGEST_GAP_S:
            self._since, self._before = now, self._read()

    def end(self) -> dict[str, float]:
        """Marks the end of a step. Returns the figures since the last reading, which covers several steps if
        these are short; empty if it is too soon."""
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
        """The available counters, in seconds."""
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
    """Measures the share of a machine's CPUs that other processes use, from its creation until `close`."""

    def __init__(self, proc: Path = PROC) -> None:
        self._machine = MachineWatch(proc)
        self._machine.begin()
        self._own, self._since = time.process_time(), time.monotonic()

    def close(self) -> float | None:
        """Ends the watch and returns the share; None if the system does not report it, or after too short a
        time."""
        seconds = max(time.monotonic() - self._since, LEAST_S)
        own = (time.process_time() - self._own) / seconds
        found = self._machine.end()
        self._machine.close()
        if "cpu_busy" not in found:
            return None
        others = max(0.0, found["cpu_busy"] - own) + found.get("cpu_steal", 0.0)
        return round(min(1.0, others / (os.cpu_count() or 1)), 3)


class StepWatch:
    """The observations of one rank's steps: call `begin` before and `end` after each step. Without a
    `machine` only the rank's own process is observed."""

    def __init__(self, recorder: Recorder, machine: MachineWatch | None = None) -> None:
        self._recorder, self._machine = recorder, machine
        self._before = self._own()

    def begin(self) -> None:
        if self._machine is not None:
            self._machine.begin()
        self._before = self._own()

    def end(self) -> dict[str, float]:
        """The observations of the step, by their keys in METRICS."""
        after = self._own()
        found = {key: value - self._before.get(key, 0.0) for key, value in after.items()}
        return found | (self._machine.end() if self._machine is not None else {})

    def close(self) -> None:
        """Ends the observation of the machine."""
        if self._machine is not None:
            self._machine.close()

    def _own(self) -> dict[str, float]:
        """This process's own counters."""
        found = dict[str, float]()
        for kind, cpu_s in self._recorder.cpu_s.items():
            found[f"{kind}_cpu_s"] = cpu_s
        if resource is not None:
            usage = resource.getrusage(resource.RUSAGE_SELF)
            found["worker_cpu_s"] = usage.ru_utime + usage.ru_stime
            found["switches"] = float(usage.ru_nivcsw)
        return found


def own_watch(recorder: Recorder, rank: int, environment: Mapping[str, str]) -> StepWatch:
    """The watch of `rank`; it includes the machine's if this is the first rank on the machine."""
    first = environment.get("LOCAL_RANK", str(rank)) == "0"
    return StepWatch(recorder, MachineWatch() if first else None)
