"""Prints a line from time to time while one process prepares data for long."""

from __future__ import annotations

import time

EVERY_S = 10.0


class PreparationProgress:
    """Says how far the preparation of one split is; stays silent in its first ten seconds."""

    def __init__(self, title: str, most_tokens: int | None) -> None:
        self._title, self._most_tokens = title, most_tokens
        self._started = self._shown = time.monotonic()

    def show(self, num_documents: int, num_tokens: int) -> None:
        """Takes the counts so far; prints a line if the last one is ten seconds old."""
        now = time.monotonic()
        if now - self._shown < EVERY_S:
            return
        self._shown = now
        limit = f" of {self._most_tokens / 1e6:.0f}" if self._most_tokens is not None else ""
        print(
            f"preparing {self._title}: {num_documents} documents, {num_tokens / 1e6:.1f}{limit} million "
            f"tokens after {now - self._started:.0f} s",
            flush=True,
        )
