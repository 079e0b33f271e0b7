"""Changes the rates of shaped links during a run, at given seconds of the training clock.

Rank 0 has the clock and the launcher controls the links. So rank 0 writes into a pipe whenever its clock
starts or stops, and a thread of the launcher changes the rates when they are due. When a run is resumed, the
clock continues from the checkpoint's seconds, and the links immediately get the rate for that time.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import NamedTuple

from gradwire.harness.network.links import Change
from gradwire.harness.network.shaped.namespace import Entrance

ClockListener = Callable[[float, bool], None]
"""Called with the reading of the training clock in seconds, and whether it is running from now on."""

MESSAGE = struct.Struct("=dd")
"""Training seconds, and the monotonic time, shared by all processes of a machine, since which the clock is
running; NaN while it is stopped. Messages this short are atomic in a pipe."""

END = MESSAGE.pack(math.nan, math.nan)
"""The launcher's own message that no more changes are to be made."""


def ignore_clock(seconds: float, running: bool) -> None:
    """Does nothing; used where rates do not follow the training clock."""


def clock_sender(entrance: Entrance | None) -> ClockListener:
    """The function that sends this process's training clock to the launcher, if the `entrance` asks for
    it.
    """
    if entrance is None or entrance.clock is None:
        return ignore_clock
    descriptor = os.open(entrance.clock, os.O_WRONLY | os.O_CLOEXEC)

    def send(seconds: float, running: bool) -> None:
        with contextlib.suppress(BrokenPipeError):  # the launcher has ended, and this process is about to
            os.write(descriptor, MESSAGE.pack(seconds, time.monotonic() if running else math.nan))

    return send


class Reading(NamedTuple):
    """A reading of the training clock, and the time since which it is running (NaN: it is stopped)."""

    seconds: float
    since: float

    def now(self) -> float:
        """Training seconds now."""
        return self.seconds if math.isnan(self.since) else self.seconds + time.monotonic() - self.since

    def until(self, seconds: float) -> float | None:
        """The seconds until the clock shows `seconds`; None while it is stopped."""
        return None if math.isnan(self.since) else max(0.0, seconds - self.now())


@dataclass(frozen=True)
class MadeChange:
    """A change as it was made. `made_s` is the training clock's reading when the last link had its new rate
    `rate_mbit`; changing all links, one after another, took `took_s` seconds."""

    planned_s: float
    made_s: float
    took_s: float
    factor: float
    rate_mbit: float


class RateChanges:
    """Makes `changes` to links of `rate_mbit` until `stop`, beginning with those at second 0.

    `set_rate` sets a rate in 10⁶ bit/s on all links and returns, by rank, the reasons why links could not be
    changed. After each change `record` is called with all changes made so far.
    """

    def __init__(
        self,
        changes: Sequence[Change],
        rate_mbit: float,
        set_rate: Callable[[float], Mapping[int, str]],
        record: Callable[[Sequence[MadeChange]], None],
    ) -> None:
        self._coming, self._rate_mbit = list(changes), rate_mbit
        self._set_rate, self._record = set_rate, record
        self._made = list[MadeChange]()
        self._failed: Mapping[int, str] = {}
        self._failure = os.eventfd(0, os.EFD_CLOEXEC)
        self._messages, self._written = os.pipe()
        self._thread = threading.Thread(target=self._run, name="rate changes", daemon=True)
        self._thread.start()

    @property
    def clock(self) -> str:
        """The path of the pipe into which rank 0 writes its clock."""
        return f"/proc/{os.getpid()}/fd/{self._written}"

    @property
    def sentinel(self) -> int:
        """A descriptor that becomes readable when a change could not be made."""
        return self._failure

    def diagnose(self) -> dict[int, str]:
        """The reasons why links could not be changed, by rank."""
        return dict(self._failed)

    def stop(self) -> None:
        """Stops making changes; a change in progress is completed."""
        os.write(self._written, END)
        self._thread.join()
        for descriptor in (self._messages, self._written, self._failure):
            os.close(descriptor)

    def _run(self) -> None:
        # Signals belong to the main thread, and a Ctrl-C must not end a program that is changing a link.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            self._follow()
        except Exception as error:  # whatever it is: rates that do not change would go unnoticed
            self._failed = {0: f"the rates of the links cannot be changed any more: {error!r}"}
        if self._failed:
            os.eventfd_write(self._failure, 1)

    def _follow(self) -> None:
        """Makes changes until none are left or one has failed."""
        clock = Reading(0.0, math.nan)
        while True:
            self._make_due(clock)
            if self._failed:
                return
            if wait([self._messages], clock.until(self._coming[0].at_s) if self._coming else None):
                message = os.read(self._messages, MESSAGE.size)
                if message == END:
                    return
                clock = Reading(*MESSAGE.unpack(message))

    def _make_due(self, clock: Reading) -> None:
        """Makes the latest change that is due; after a resume this may be a later one than the first."""
        due = [change for change in self._coming if change.at_s <= clock.now()]
        if not due:
            return
        del self._coming[: len(due)]
        at_s, factor = due[-1]
        rate, start = self._rate_mbit * factor, time.monotonic()
        self._failed = self._set_rate(rate)
        if not self._failed:
            self._made.append(MadeChange(at_s, clock.now(), time.monotonic() - start, factor, rate))
            with contextlib.suppress(OSError):  # a full disk; the next record has this change, too
                self._record(self._made)
