"""The display of work that lasts: a bar on a terminal, a line now and then elsewhere.

All tasks show their progress in this way, with what is done of how much, and the time that is left by the
rate of the last steps. What is quick shows nothing. The library shows nothing either: only tasks make these.
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
"""Seconds after which the bar and the first line come: what is done by then shows neither."""

EVERY_S = 20.0
"""Seconds between lines."""

COLUMNS, LINES = 80, 24
"""The size of a terminal that does not say how large it is."""

RECENT = 50
"""The rate is that of so many of the last samples, a second apart at least."""


class Progress:
    """Progress of `total` pieces of work, `done` of which were there before; a context manager.

    A bar goes to standard error if that is a terminal. Lines go to standard error, too. Where they are a
    command's `log`, they go to standard output, and the bar is there from the beginning. Of several ranks the
    first one shows them, unless `visible` says otherwise.
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
        """Adds `number` pieces to those that are to be done."""
        self._total += number
        if self._bar is not None:
            self._bar.total = self._total

    def advance(self, note: str = "", number: int = 1) -> None:
        """Counts `number` more pieces as done, the last of which was `note`."""
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
        """Prints a line, with `note` in it, if it is time for one and there is no bar."""
        now = time.monotonic()
        since = now - self._shown_at
        due = since >= EVERY_S or (self._shown_at == self._began and since >= FIRST_S)
        if not self._visible or self._bar is not None or not due or self.done >= self._total:
            return
        parts = [f"{self._title}: {self._unit} {self.done:,}/{self._total:,}", note, self.left()]
        self.say(", ".join(filter(None, parts)))

    def say(self, line: str) -> None:
        """Prints a line of its own, above the bar if there is one."""
        if not self._visible:
            return
        if self._bar is not None:
            self._bar.write(line, file=self._bar.fp)
            return
        self._shown_at = time.monotonic()
        print(line, file=self._stream, flush=True)

    def postfix(self, text: str) -> None:
        """Puts a text behind the bar's figures."""
        if self._bar is not None:
            self._bar.set_postfix_str(text, refresh=False)

    @property
    def has_bar(self) -> bool:
        return self._bar is not None

    @property
    def seconds_left(self) -> float | None:
        """The seconds left by the rate of the last pieces; None before there is one."""
        (since, before), now = self._samples[0], time.monotonic()
        if self.done <= before or now <= since:
            return None
        return (self._total - self.done) * (now - since) / (self.done - before)

    def left(self) -> str:
        """The time that is left, in words; empty if it is unknown, or hardly anything has been seen yet."""
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
    """Yields the items, each a piece of work that is done when the next one is asked for."""
    with Progress(title, len(items), unit) as progress:
        for item in items:
            yield item
            progress.advance(note(item))


class PhaseLines:
    """Lines about phases that have no pieces to count, such as the start of processes: one after `FIRST_S` in
    a phase, then one every `EVERY_S`."""

    def __init__(self, title: str) -> None:
        self._title, self._phase = title, ""
        self._began = self._shown_at = time.monotonic()

    def look(self, phase: str) -> None:
        """Prints a line if it is time for one; an empty `phase` shows its own progress."""
        now = time.monotonic()
        if phase != self._phase:
            self._phase, self._began, self._shown_at = phase, now, now - EVERY_S + FIRST_S
        if phase and now - self._shown_at >= EVERY_S:
            self._shown_at = now
            print(f"{self._title}: {phase}, for {in_words(now - self._began)}", file=sys.stderr, flush=True)


def in_words(seconds: float) -> str:
    """A duration as a person says it: 40 s, 3 min, 2 h 10 min, 3 d 4 h."""
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
