"""The options common to all codecs, and those of a codec that has no others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gradwire.codecs.fields import list_of


@dataclass
class CommonOptions:
    """The options common to all codecs, as a run's configuration has them."""

    exclude: list[str] = list_of(hint="e.g. [*embed*]")  # globs of parameters that travel in bf16
    ef: bool = False  # error feedback: what a worker's encodings lose is added to its next gradient
    decisions: str | None = None  # decisions.jsonl of a run that this one replays; null: it decides itself


@dataclass
class NoOptions:
    """A codec that can be told nothing but what all can."""

    name: str = ""


def check_globs(globs: object) -> list[str]:
    """`globs` as a list. Raises ValueError unless they are a sequence of non-empty strings."""
    listed = list(globs) if isinstance(globs, Sequence) and not isinstance(globs, str) else [""]
    if not all(isinstance(glob, str) and glob for glob in listed):
        raise ValueError(f"codec.exclude={globs}: choose a list of names or globs, e.g. ['*embed*','*.bias']")
    return listed
