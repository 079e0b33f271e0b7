"""Errors for users with a wrong configuration: one line that says what to do."""

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
"""The largest number of characters of a refusal."""


class ConfigError(ValueError):
    """Bad configuration. The text is one line: field, value, allowed values, the fix."""

    def __init__(self, message: str) -> None:
        super().__init__(fitted(" ".join(message.split())))


def fitted(message: str) -> str:
    """Shortens a message to `LONGEST` characters by cutting the middles of long words, such as paths."""
    for most in (120, 80, 60, 40, 24):
        if len(message) > LONGEST:
            message = " ".join(shortened(word, most) for word in message.split(" "))
    return shortened(message, LONGEST)


def refused_as_config_error(
    function: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
) -> Result:
    """Calls `function`; converts its ValueError, which is already one line, to ConfigError."""
    try:
        return function(*args, **kwargs)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def found_late(error: BaseException) -> None:
    """Marks an error that ended work in progress, so that it is not treated as a refusal, even if a user can
    fix it."""
    error.__dict__["found_late"] = True


def is_refusal(error: BaseException) -> bool:
    """True if an error tells the user what to fix and was raised by this program before any work began."""
    return isinstance(error, ValueError) and is_own(error) and not getattr(error, "found_late", False)


def is_own(error: BaseException) -> bool:
    """True if an error was raised by this program, and not by a library that it calls."""
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

    A line given as text is not shortened, because it may name a folder that the user needs.
    """
    rank = os.environ.get("RANK", "0")
    if rank == "0" or not rank.isdigit():  # what is no rank is refused itself
        print(f"error: {error}", file=sys.stderr, flush=True)
    sys.exit(code)
