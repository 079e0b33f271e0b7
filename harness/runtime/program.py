"""The command that started this program, for messages that tell users what to run."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

SCRIPT = "python run.py"
"""The command in help texts and in the first lines of configuration files."""

_COMMENTED = re.compile(rf"{SCRIPT}(?P<rest>.*?\S)(?P<gap>  +)(?=\S)|{SCRIPT}")
"""The command in a line of help, with the spaces before its description."""


def program() -> str:
    """Returns `gradwire`, `python -m gradwire` or `python run.py`, as the user or torchrun has started it.

    If neither is known, as in a script that uses the library, returns what is available here.
    """
    started = Path(sys.argv[0]) if sys.argv else Path()
    if started.name == "__main__.py" and started.parent.name == "gradwire":
        return "python -m gradwire"
    in_checkout = (Path(__file__).resolve().parents[2] / "run.py").is_file()
    if started.stem == "gradwire" or (started.name != "run.py" and not in_checkout):
        return "gradwire"
    return SCRIPT


_given: list[str] = []


def remember_command(arguments: Sequence[str]) -> None:
    """Stores the command line's arguments, before Hydra changes them."""
    _given[:] = arguments


def command_line() -> str | None:
    """The shell command that started this process; None if no command did."""
    return shlex.join([*program().split(), *_given]) if _given else None


def torchrun_target() -> str:
    """The target that follows torchrun's options: `run.py` or `-m gradwire`."""
    return "run.py" if program() == SCRIPT else "-m gradwire"


def as_started(text: str) -> str:
    """Returns a help text with its commands written in the way this program was started; columns stay
    aligned."""
    return "\n".join(_line(line) for line in text.split("\n"))


def _line(line: str) -> str:
    line = re.sub(r"(?<=\d) run\.py", f" {torchrun_target()}", line) if "torchrun" in line else line
    return _COMMENTED.sub(_written, line)


def _written(found: re.Match[str]) -> str:
    if found["gap"] is None:
        return program()
    spaces = max(len(found["gap"]) + len(SCRIPT) - len(program()), 1)
    return f"{program()}{found['rest']}{' ' * spaces}"
