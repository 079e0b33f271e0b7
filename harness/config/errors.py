"""What a user sees when the configuration is wrong: one line, with a way out."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Iterable
from typing import NoReturn


class ConfigError(ValueError):
    """Bad configuration. The text is one line: field, value, what is allowed, the fix."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


def refuse(error: ConfigError, code: int = 2) -> NoReturn:
    """End the process with exit code `code` and the error's one line, printed by rank 0 only."""
    if os.environ.get("RANK", "0") == "0":
        print(f"error: {error}", file=sys.stderr, flush=True)
    sys.exit(code)


def closest(word: str, candidates: Iterable[str], count: int = 3) -> list[str]:
    """Up to `count` candidates that look like `word`, best first.

    Dotted keys are compared as a whole and by their last part, so that `train.batch` finds
    `train.micro_batch` and `bits` finds `codec.bits`.
    """
    names = sorted(set(candidates))
    whole = difflib.get_close_matches(word, names, n=count, cutoff=0.6)
    last = word.rsplit(".", 1)[-1]
    tails = [name for name in names if name.rsplit(".", 1)[-1] == last]
    siblings = [name for name in names if "." in word and name.startswith(word.rsplit(".", 1)[0] + ".")]
    near = [name for name in siblings if last in name or name.rsplit(".", 1)[-1] in last]
    return list(dict.fromkeys([*tails, *whole, *near]))[:count]


def did_you_mean(word: str, candidates: Iterable[str]) -> str:
    """`; did you mean a, b?`, or nothing when no candidate is close."""
    near = closest(word, candidates)
    return f"; did you mean {' or '.join(near)}?" if near else ""
