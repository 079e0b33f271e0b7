"""Errors for users, whose configuration is wrong: one line that says what to do."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import NoReturn, ParamSpec, TypeVar

from gradwire.codecs.wording import closest, did_you_mean, shortened

__all__ = ["ConfigError", "closest", "did_you_mean", "refuse", "refused_as_config_error", "shortened"]

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

PACKAGE = "gradwire"

LONGEST = 300
"""Most characters of a refusal."""


class ConfigError(ValueError):
    """Bad configuration. The text is one line: field, value, what is allowed, the fix."""

    def __init__(self, message: str) -> None:
        super().__init__(fitted(" ".join(message.split())))


def fitted(message: str) -> str:
    """Shortens a message to `LONGEST` characters by leaving out the middles of long words, such as paths."""
    for most in (120, 80, 60, 40, 24):
        if len(message) > LONGEST:
            message = " ".join(shortened(word, most) for word in message.split(" "))
    return shortened(message, LONGEST)


def refused_as_config_error(
    function: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
) -> Result:
    """`function`'s result; its ValueError, which is already one line, as ConfigError."""
    try:
        return function(*args, **kwargs)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def found_late(error: BaseException) -> None:
    """Marks an error that ended what had begun: it is no refusal, even if it is one that a user can fix."""
    error.__dict__["found_late"] = True


def is_refusal(error: BaseException) -> bool:
    """True if an error says what a user can fix, in this program's words, before anything has begun."""
    return isinstance(error, ValueError) and is_own(error) and not getattr(error, "found_late", False)


def is_own(error: BaseException) -> bool:
    """True if this program has raised an error, and not a library that it calls."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    raised_in = "" if traceback is None else str(traceback.tb_frame.f_globals.get("__name__"))
    known = type(error) is ValueError and raised_in.split(".")[0] in ("", PACKAGE)
    return known or any(each.__module__.split(".")[0] == PACKAGE for each in type(error).__mro__)


def one_line(error: BaseException) -> str:
    """An error's text on one line, or its type if it has none."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if not isinstance(error, ValueError) or is_own(error) else f"{type(error).__name__}: {text}"


def refuse(error: ConfigError | str, code: int = 2) -> NoReturn:
    """Ends the process with exit code `code`; only rank 0 prints the error's one line.

    A line given as text is not shortened, because it may name the folder to look into.
    """
    rank = os.environ.get("RANK", "0")
    if rank == "0" or not rank.isdigit():  # what is no rank is refused itself
        print(f"error: {error}", file=sys.stderr, flush=True)
    sys.exit(code)
