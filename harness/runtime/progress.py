"""The display of long-running work: a bar on a terminal, an occasional line elsewhere.

All tasks show their progress in this way: the work done, the total, and the time left at the rate of the last
steps. Quick work shows nothing. Only tasks display progress, never the library.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from threading import RLock
from typing import Any, Self, TypeVar

Item = TypeVar("Item")

BAR_S, FIRST_S = 2.0, 10.0
"""Seconds after which the bar, or the first line, appears; work that ends earlier shows neither."""

EVERY_S = 20.0
"""Seconds between lines."""

COLUMNS, LINES = 80, 24
"""The assumed size of a terminal that does not report its own."""

RECENT = 50
"""The rate is computed from this many of the last samples, which are at least a second apart."""


class Progress:
    """Progress of `total` pieces of work, `done` of which existed before; a context manager.

    A bar is shown on standard error if that is a terminal. Otherwise lines go to standard error, or to
    standard output if they are a command's `log`. `at_once` shows the bar from the beginning. Of several
    ranks only the first one shows progress, unless `visible` is given.
    """

    def __init__(
        self,
        title: str,
        total: int,
        unit: str,
        *,
        done: int = 0,
        visible: bool | None = None,
        log: bool = False,
    ) -> None:
        self._title, self._total, self._unit, self.done = title, total, unit, done
        self._visible = os.environ.get("RANK", "0") == "0" if visible is None else visible
        self._log = log
        self._began = self._shown_at = now = time.monotonic()
        self._samples = deque([(now, done)], RECENT)
        self._stream = sys.stdout if log else sys.stderr
        self._bar: Any = None
        if self._visible and sys.stderr.isatty():
            self._bar = _bar(title, total, unit, done, 0.0 if log else BAR_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def expect(self, number: int) -> None:
        """Adds `number` pieces to the total."""
        self._total += number
        if self._bar is not None:
            self._bar.total = self._total

    def advance(self, note: str = "", number: int = 1) -> None:
        """Counts `number` more pieces as done; `note` describes the last one."""
        self.done += number
        now = time.monotonic()
        if now - self._samples[-1][0] >= 1 or len(self._samples) == 1:
            self._samples.append((now, self.done))
        if self._bar is not None:
            if note:
                self._bar.set_postfix_str(note, refresh=False)
            self._bar.update(number)
        elif not self._log:
            self.show_due(note)

    def show_due(self, note: str = "") -> None:
        """Prints a line with `note`, if one is due and there is no bar."""
        now = time.monotonic()
        since = now - self._shown_at
        due = since >= EVERY_S or (self._shown_at == self._began and since >= FIRST_S)
        if not self._visible or self._bar is not None or not due or self.done >= self._total:
            return
        parts = [f"{self._title}: {self._unit} {self.done:,}/{self._total:,}", note, self.left()]
        self.say(", ".join(filter(None, parts)))

    def say(self, line: str) -> None:
        """Prints a separate line, above the bar if there is one."""
        if not self._visible:
            return
        if self._bar is not None:
            self._bar.write(line, file=self._bar.fp)
            return
        self._shown_at = time.monotonic()
        print(line, file=self._stream, flush=True)

    def postfix(self, text: str) -> None:
        """Appends a text to the bar's figures."""
        if self._bar is not None:
            self._bar.set_postfix_str(text, refresh=False)

    @property
    def has_bar(self) -> bool:
        return self._bar is not None

    @property
    def seconds_left(self) -> float | None:
        """The seconds left at the rate of the last pieces; None before there is a rate."""
        (since, before), now = self._samples[0], time.monotonic()
        if self.done <= before or now <= since:
            return None
        return (self._total - self.done) * (now - since) / (self.done - before)

    def left(self) -> str:
        """The time left, in words; empty if it is unknown or there are too few samples."""
        seconds = self.seconds_left
        known = seconds is not None and time.monotonic() - self._began >= FIRST_S
        return f"about {in_words(seconds)} left" if seconds is not None and known else ""

    def close(self) -> None:
        """Ends the bar, which stays on the screen."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def _bar(title: str, total: int, unit: str, done: int, delay_s: float) -> Any:
    from tqdm import tqdm

    tqdm.set_lock(RLock())  # its own is a semaphore for other processes' bars, and outlives a killed process
    size: dict[str, Any] = {"dynamic_ncols": True}
    try:
        known = all(os.get_terminal_size(sys.stderr.fileno()))
    except OSError:
        known = False
    if not known:  # on a terminal of no columns or lines tqdm would show nothing
        size = {"ncols": COLUMNS, "nrows": LINES}
    return tqdm(total=total, initial=done, desc=title, unit=unit, delay=delay_s, **size)


def tracked(
    items: Sequence[Item], title: str, unit: str, note: Callable[[Item], str] = lambda item: ""
) -> Iterator[Item]:
    """Yields the items, each a piece of work that counts as done when the next one is requested."""
    with Progress(title, len(items), unit) as progress:
        for item in items:
            yield item
            progress.advance(note(item))


class PhaseLines:
    """Lines about phases without countable pieces, such as the start of processes: one line `FIRST_S` seconds
    into a phase, then one every `EVERY_S`."""

    def __init__(self, title: str) -> None:
        self._title, self._phase = title, ""
        self._began = self._shown_at = time.monotonic()

    def look(self, phase: str) -> None:
        """Prints a line if one is due; an empty `phase` means that the phase shows its own progress."""
        now = time.monotonic()
        if phase != self._phase:
            self._phase, self._began, self._shown_at = phase, now, now - EVERY_S + FIRST_S
        if phase and now - self._shown_at >= EVERY_S:
            self._shown_at = now
            print(f"{self._title}: {phase}, for {in_words(now - self._began)}", file=sys.stderr, flush=True)


def in_words(seconds: float) -> str:
    """A duration in words: 40 s, 3 min, 2 h 10 min, 3 d 4 h."""
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h" if hours else f"{days} d"
