"""The table of all codecs, and the options that they have in common.

`codec_at`, a decorator of a codec's options, adds an entry to the table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from gradwire.codecs.fields import list_of

Options = TypeVar("Options")


class CodecEntry(NamedTuple):
    """The location of a codec's class below `gradwire.codecs`, and the class of its options."""

    place: str
    options: type


ENTRIES: dict[str, CodecEntry] = {}
"""Name to codec, complete once all modules of this folder are imported, as `registry` does."""


def codec_at(place: str, *names: str) -> Callable[[type[Options]], type[Options]]:
    """Class decorator that registers the decorated options for the codec at `place`, "<file>:<class>" below
    `gradwire.codecs`.

    The codec's name is the default of the options' field `name`, unless several `names` are given.
    """

    def enter(options: type[Options]) -> type[Options]:
        for name in names or (options.name,):  # type: ignore[attr-defined]
            assert name not in ENTRIES, f"two codecs are called {name}"
            ENTRIES[name] = CodecEntry(place, options)
        return options

    return enter


@dataclass
class CommonOptions:
    """The options that all codecs have in a run's configuration."""

    exclude: list[str] = list_of(hint="e.g. [*embed*]")  # globs of parameters that travel in bf16
    ef: bool = False  # error feedback: what a worker's encodings lose is added to its next gradient
    decisions: str | None = None  # decisions.jsonl of a run that this one follows; null: it decides itself


@codec_at("exact:Backend", "backend")
@codec_at("exact:BF16", "bf16")
@codec_at("exact:FP32", "fp32")
@dataclass
class NoOptions:
    """The options of a codec that has no others."""

    name: str = ""


def check_globs(globs: object) -> list[str]:
    """`globs` as a list. Raises ValueError unless they are a sequence of non-empty strings."""
    listed = list(globs) if isinstance(globs, Sequence) and not isinstance(globs, str) else [""]
    if not all(isinstance(glob, str) and glob for glob in listed):
        raise ValueError(f"codec.exclude={globs}: choose a list of names or globs, e.g. ['*embed*','*.bias']")
    return listed
