"""Runs golden cases as commands, in one process, with the sources that its Python finds, of any commit.

Reads JSON from standard input: `cases`, each a list of commands, each a list of overrides, and `renamed`,
older spellings. Writes a line of JSON for each case: the error that ended it, or "". It knows `gradwire`'s
front door and nothing behind it, nor any other module of the tests: both were different at other commits.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from unittest import mock

REFUSED = 2
"""The exit code for an error that a user can mend."""


@contextmanager
def undrawn() -> Iterator[None]:
    """In this block plots of runs take no time, because their files are empty."""

    def save(self: object, file: object, **_: object) -> None:
        if isinstance(file, str | os.PathLike):
            open(file, "wb").close()

    layout = "matplotlib.layout_engine.ConstrainedLayoutEngine.execute"
    with mock.patch("matplotlib.figure.Figure.savefig", save), mock.patch(layout):
        yield


def ended(overrides: list[str]) -> tuple[int, str]:
    """Run one command; its exit code and, where that is not 0, its last line."""
    from gradwire.__main__ import main

    said = io.StringIO()
    sys.argv = ["gradwire", *overrides]
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(said):
            main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        lines = [*said.getvalue().splitlines(), "" if isinstance(end.code, int) else str(end.code)]
        if code:
            return code, next((line for line in reversed(lines) if line.strip()), f"exit code {code}")
    return 0, ""


def error_of(overrides: list[str], renamed: dict[str, str]) -> str:
    """Run a command, if need be with the older spelling of what is refused; why it failed, or ""."""
    code, error = ended(overrides)
    for new, old in renamed.items():
        if code == REFUSED and new.rstrip("=") in error:
            overrides = [item.replace(new, old, 1) if item.startswith(new) else item for item in overrides]
            code, error = ended(overrides)
    return error


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the ranks of real runs print there
    asked = json.load(sys.stdin)
    with undrawn():
        for commands in asked["cases"]:
            errors = (error_of(overrides, asked["renamed"]) for overrides in commands)
            print(json.dumps(next((error for error in errors if error), "")), file=answers, flush=True)
